"""Python tracebacks in logs: the exception, what it came of, and the stack on which it was raised."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hangdoc.evidence import Frame, Stack, Stacks
from hangdoc.redaction.text import redact_text

MOST_FRAMES = 200
TEXT = 400  # characters kept of a message

HEADING = "Traceback (most recent call last)"
_FRAME = re.compile(
    r'\s*(?:\| )?File "(?P<file>[^"]{1,1000})", line (?P<line>\d{1,9})(?:, in (?P<function>\S.{0,200}))?'
)
_WATCHDOG_FRAME = re.compile(
    r"(?:^|[\s:])#(\d{1,3}) (?P<function>\S{1,200}) from (?P<file>\S{1,1000}):(?P<line>\d{1,9})\s*$"
)
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]{0,200})(?:: ?(?P<message>.*))?$")
CHAIN = re.compile(r"During handling of the above exception|The above exception was the direct cause")
_GOES_ON = re.compile(r"[:,]\s*$|NCCL error|CollectiveFingerPrint|DistBackendError")
# Whoever starts a program, a thread or a worker: an exception that has come to here was caught by nobody.
_OUTERMOST = frozenset(
    {"<module>", "_run_module_as_main", "_bootstrap", "_bootstrap_inner", "_wrap", "wrapper", "_main"}
)


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception as it was printed."""

    type: str  # as printed, with its module: "torch.distributed.DistBackendError"
    message: str
    frames: tuple[Frame, ...]  # innermost first
    causes: tuple[str, ...] = ()  # exceptions it came of, "Type: message", the first to happen first
    uncaught: bool = False  # its stack begins where a program does

    @property
    def text(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def stacks(self) -> Stacks:
        """The stack as a look at the process would have shown it."""
        return Stacks((Stack(0, "MainThread", self.frames),))


def read(lines: Iterable[str]) -> Raised | None:
    """What the lines after the heading say, its own indentation taken off; None where they are none of a traceback.

    Stops at the end of the traceback, those of a chain with it.
    """
    rest = iter(lines)
    causes: list[str] = []
    while True:
        frames, last = _frames(rest)
        found = _EXCEPTION.match(last) if last else None
        if not frames and not found:
            return None
        kind, message = (found["type"], (found["message"] or "").strip()) if found else ("", "")
        told, goes_on = _message(rest, message)
        if not goes_on:
            uncaught = bool(frames) and frames[0].function in _OUTERMOST
            return Raised(kind, redact_text(told)[:TEXT], tuple(reversed(frames)), tuple(causes), uncaught)
        causes.append(redact_text(f"{kind}: {told}")[:TEXT])


def _frames(lines: Iterator[str]) -> tuple[list[Frame], str | None]:
    """The frames, outermost first, and the line that ends them: the exception's."""
    frames: list[Frame] = []
    for text in lines:
        if match := _FRAME.match(text):
            if len(frames) < MOST_FRAMES:
                file = match["file"]
                frames.append(Frame(match["function"] or "<module>", file, int(match["line"]), _short(file)))
        elif text and not text[0].isspace():
            return frames, text
    return frames, None


def _message(lines: Iterator[str], first: str) -> tuple[str, bool]:
    """The exception's message with the lines that belong to it, and whether another traceback follows."""
    told, blank = [first], False
    for count, text in enumerate(lines):
        if CHAIN.match(text):
            for after in lines:
                if HEADING in after:
                    return " ".join(told).strip(), True
                if after.strip():
                    break
            break
        if HEADING in text or count > 12:
            break
        blank = blank or not text.strip()
        if text.strip() and not blank and len(told) < 5 and (not first or _GOES_ON.search(" ".join(told))):
            told.append(text.strip())
        elif text.strip():
            break
    return " ".join(told).strip(), False


def _short(file: str) -> str:
    """The file's name as py-spy shortens it."""
    return re.sub(r".*/(?:site|dist)-packages/|.*/python3\.\d+/", "", file)


def watchdog_stack(lines: Iterable[str]) -> Stacks | None:
    """The stack that NCCL's watchdog prints of the failed collective.

    Frames `#0 all_reduce from FILE:LINE`, innermost first; None if there are none.
    """
    frames: list[Frame] = []
    for text in lines:
        match = _WATCHDOG_FRAME.search(text)
        if match is None or int(match[1]) != len(frames):
            break
        file = match["file"]
        frames.append(Frame(match["function"], file, int(match["line"]), file.rpartition("-packages/")[2]))
    return Stacks((Stack(0, "MainThread", tuple(frames)),)) if frames else None
