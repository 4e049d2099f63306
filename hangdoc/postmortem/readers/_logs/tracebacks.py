"""Stacks in logs: Python tracebacks, and the stack of a failed collective that NCCL's watchdog prints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hangdoc.evidence import Frame, Stack, Stacks
from hangdoc.redaction.text import redact_text

MAX_STRANGE = 3  # lines between two frames
MAX_FRAMES = 200
TEXT = 400  # characters of a message that are kept

HEADING = "Traceback (most recent call last)"
_FRAME = re.compile(
    r'\s*(?:\| )?File "(?P<file>[^"]{1,1000})", line (?P<line>\d{1,9})(?:, in (?P<function>\S.{0,200}))?'
)
_WATCHDOG_FRAME = re.compile(
    r"(?:^|[\s:])#(\d{1,3}) (?P<function>\S{1,200}) from (?P<file>\S{1,1000}):(?P<line>\d{1,9})\s*$"
)
_EXCEPTION = re.compile(
    r"(?!(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b)(?P<type>[A-Za-z_][\w.]{0,200})(?:: ?(?P<message>.*))?$"
)
_GLUED = re.compile(r"(?<=\w)\[rank\d{1,6}\]: ?Traceback.*$")  # the next rank wrote before the end of the line
CHAINED = re.compile(r"During handling of the above exception|The above exception was the direct cause")
_CONTINUES = re.compile(r"[:,]\s*$|NCCL error|CollectiveFingerPrint|DistBackendError")
# Entry points of a program, thread or worker: an exception whose traceback begins there was not caught.
_OUTERMOST = frozenset(
    {"<module>", "_run_module_as_main", "_bootstrap", "_bootstrap_inner", "_wrap", "wrapper", "_main"}
)


@dataclass(frozen=True, slots=True)
class LoggedException:
    """An exception as it was printed, with its traceback."""

    type: str  # as printed, with its module: "torch.distributed.DistBackendError"
    message: str
    frames: tuple[Frame, ...]  # innermost first
    causes: tuple[str, ...] = ()  # "Type: message" of the chained exceptions, earliest first
    uncaught: bool = False  # the traceback begins at an entry point
    innermost: str | None = None  # source line of the innermost frame, if the traceback ends with it: it was cut

    @property
    def text(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def stacks(self) -> Stacks:
        """The traceback as a record of the main thread."""
        return Stacks((Stack(0, "MainThread", self.frames),))


def parse_traceback(lines: Iterable[str]) -> LoggedException | None:
    """Parse the lines after the heading, without its indentation, to the end of the chain; None: not a traceback."""
    rest = iter(lines)
    causes: list[str] = []
    while True:
        frames, last, innermost = _frames(rest)
        found = _EXCEPTION.match(last) if last else None
        if not frames and not found:
            return None
        kind, message = (found["type"], (found["message"] or "").strip()) if found else ("", "")
        message, chained = _message(rest, message)
        if not chained:
            uncaught = bool(frames) and frames[0].function in _OUTERMOST
            shown, inwards = redact_text(message)[:TEXT], tuple(reversed(frames))
            return LoggedException(kind, shown, inwards, tuple(causes), uncaught, None if found else innermost)
        causes.append(redact_text(f"{kind}: {message}")[:TEXT])


def _frames(lines: Iterator[str]) -> tuple[list[Frame], str | None, str | None]:
    """The frames, outermost first, the line of the exception after them, and the source line of the innermost frame.

    A few lines that are neither may be parts of source lines that a terminal broke.
    """
    frames: list[Frame] = []
    strange = 0
    source: str | None = None
    for text in lines:
        if match := _FRAME.match(text):
            source = None
            if len(frames) < MAX_FRAMES:
                file = match["file"]
                frames.append(Frame(match["function"] or "<module>", file, int(match["line"]), _short(file)))
        elif text and not text[0].isspace():
            text = _GLUED.sub("", text)
            if _EXCEPTION.match(text) or strange == MAX_STRANGE or HEADING in text:
                return frames, text, source
            strange += 1
        elif source is None and text.strip():
            source = text.strip()[:TEXT]
    return frames, None, source


def _message(lines: Iterator[str], first: str) -> tuple[str, bool]:
    """The exception's message with its continuation lines, and whether a chained traceback follows."""
    message, blank = [first], False
    for count, text in enumerate(lines):
        if CHAINED.match(text):
            for after in lines:
                if HEADING in after:
                    return " ".join(message).strip(), True
                if after.strip():
                    break
            break
        if HEADING in text or count > 12:
            break
        blank = blank or not text.strip()
        if text.strip() and not blank and len(message) < 5 and (not first or _CONTINUES.search(" ".join(message))):
            message.append(text.strip())
        elif text.strip():
            break
    return " ".join(message).strip(), False


def _short(file: str) -> str:
    """The file name as py-spy shortens it."""
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
