"""Dumps of `pystack remote PID` and `pystack core`: most recent call last, native frames in between."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

from msgspec.structs import replace

from hangdoc.evidence import Frame, Variable
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._dump_ranks import ProcessDump, process_dumps, rank_pieces
from hangdoc.postmortem.readers._frames import (
    MAX_THREADS,
    MAX_VARIABLES,
    ThreadBuilder,
    native_frame,
    python_frame,
    stacks_record,
    variable,
)
from hangdoc.postmortem.readers._pasted_text import OwnerHints, text_lines

_HEADER = re.compile(r"Traceback for thread (\d{1,9})(?: \((.*?)\))? \[(.*?)\] \(most recent call last\):\s*")
_FRAME = re.compile(
    r'\s*\((Python|C)\) File "(.*)", line (\d{1,9}), in (.+?)(?: \(([^()]*\.so[^()]*|[^()]*/[^()]*)\))?\s*'
)
_PID = re.compile(r"\s*pid: (\d{1,9}) ppid: \d+.*")
_SECTION = re.compile(r"\s*(Arguments|Locals):\s*")
_VARIABLE = re.compile(r"\s*([A-Za-z_]\w*): (.*)")
OPENING = re.compile(r"Traceback for thread \d{1,9}(?: \(.*?\))? \[.*?\] \(most recent call last\)")
_MAX_FRAMES = 4096
MAX_REMARK = 80  # characters
MAX_EARLIER = 64  # threads that a person may refer to
# Written by a person in place of the inner frames of a dump: `[same as above]`, `... same as rank 0`.
_AS_ABOVE = re.compile(
    r"\s*[\[(.\u2026 ]{0,8}(?:the )?(?:same|identical)(?: (?:stack|frames|rest))? (?:as|to)"
    r" (?:above|before|rank ?\d{1,6})[\]). ]{0,4}",
    re.IGNORECASE,
)


class PystackReader:
    name = "pystack dump"
    order = 32
    marks = ("Traceback for thread ",)
    help = "`pystack remote --locals PID` of every rank"

    def recognises(self, source: Source) -> bool:
        head = source.head_text
        return bool(OPENING.search(head) and re.search(r'\((?:Python|C)\) File "', head))

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        return rank_pieces(process_dumps(text_lines(source, context), OPENING, _Parser), source, context)


class _Parser:
    """Parses one channel (`_pasted_text.ChannelParser`)."""

    def __init__(self, hints: OwnerHints) -> None:
        self.pieces: list[Piece] = []
        self._hints = hints
        self._process: ProcessRef | None = None
        self._threads: list[tuple[ThreadBuilder, list[Frame]]] = []
        self._earlier: deque[list[Frame]] = deque(maxlen=MAX_EARLIER)  # outermost first
        self._pending: tuple[str, str, int] | None = None
        self._variables: list[Variable] | None = None
        self._argument = False

    def feed(self, text: str) -> bool:
        if found := _HEADER.fullmatch(text.strip()):
            self._close()
            tid = int(found[1])
            if self._threads and (self._hints.updated or any(thread.tid == tid for thread, _ in self._threads)):
                self.end()
            self._process = self._process or self._hints.take()
            if len(self._threads) < MAX_THREADS:
                self._threads.append((ThreadBuilder(tid, None, "Has the GIL" in found[3]), []))
            return True
        if found := _PID.fullmatch(text):
            self.end()
            self._process = self._hints.take(int(found[1]))
            return True
        if not self._threads:
            return False
        if found := _FRAME.fullmatch(text):
            self._close()
            frames = self._threads[-1][1]
            if found[1] == "C" and len(frames) < _MAX_FRAMES:
                frames.append(native_frame(found[4], found[5] or found[2], int(found[3])))
            elif found[1] == "Python":
                self._pending = (found[4], found[2], int(found[3]))
            return True
        if found := _SECTION.fullmatch(text):
            self._argument = found[1] == "Arguments"
            self._variables = self._variables or []
            return True
        if self._variables is not None and (found := _VARIABLE.fullmatch(text)):
            made = variable(found[1], found[2][:600], self._argument)
            if made is not None and len(self._variables) < MAX_VARIABLES:
                self._variables.append(made)
            return True
        if len(text) <= MAX_REMARK and _AS_ABOVE.fullmatch(text):
            self._complete()
            return True
        return self._pending is not None and text[:1].isspace()  # the source line below a frame

    def _close(self) -> None:
        if self._pending is not None and self._threads and len(self._threads[-1][1]) < _MAX_FRAMES:
            self._threads[-1][1].append(python_frame(*self._pending, self._variables))
        self._pending = self._variables = None

    def _complete(self) -> None:
        """Add the inner frames of the last dump before that has the frame at which this one stops."""
        self._close()
        frames = self._threads[-1][1]
        for before in reversed(self._earlier) if frames else ():
            at = next((at for at, one in enumerate(before) if _place(one) == _place(frames[-1])), None)
            if at is not None and before[at + 1 :]:
                frames.extend(before[at + 1 :][:_MAX_FRAMES])
                return

    def end(self) -> None:
        self._close()
        for thread, frames in self._threads:
            self._earlier.append(frames)
            for frame in reversed(frames):
                thread.add(frame)
        threads = [thread for thread, _ in self._threads]
        mains = [thread for thread in threads if _outermost(thread) == "<module>"]
        pid = self._process.pid if self._process else None
        for thread in threads:
            if thread.tid == pid or (len(mains) == 1 and thread is mains[0]):
                thread.name = "MainThread"
                pid = pid if pid is not None else thread.tid or None  # Linux: the main thread's TID is the PID
        record = stacks_record(threads)
        if self._process is not None and record is not None:
            process = replace(self._process, rank=self._hints.rank_of(self._process, pid), pid=pid)
            self.pieces.append(Piece(process, "stacks", ProcessDump(process, record)))
        self._process, self._threads = None, []


def _place(frame: Frame) -> tuple[str, str, int | None]:
    return frame.function, frame.file, frame.line


def _outermost(thread: ThreadBuilder) -> str | None:
    return next((frame.function for frame in reversed(thread.frames) if not frame.native), None)


READER = PystackReader()
