"""Dumps of Python's faulthandler: on a signal, after a timeout, or on a crash.

CPython 3.8-3.14 (Python/traceback.c, Modules/faulthandler.c): `Thread 0x... (most recent call first):`, in 3.14 with
the thread's name; `Stack (most recent call first):` if only one thread was requested. The main thread comes last. Of a
crash, `Current thread` is the one that crashed; none is, if that thread runs no Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hangdoc.evidence import End
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._dump_ranks import ProcessDump, process_dumps, rank_pieces
from hangdoc.postmortem.readers._elided import EarlierStacks, elision
from hangdoc.postmortem.readers._frames import MAX_THREADS, ThreadBuilder, python_frame, stacks_record
from hangdoc.postmortem.readers._pasted_text import OwnerHints, text_lines

_HEADER = re.compile(
    r"(?:(Current thread|Thread) (0x[0-9a-f]{1,16})(?: \[(.*)\])?|Stack) \(most recent call first\):?\s*"
)
_FRAME = re.compile(r'\s*File "(.*)", line (\d{1,9}|\?\?\?) in (.+?)\s*')
_FATAL = re.compile(r"Fatal Python error: (.{1,200})")
_TIMEOUT = re.compile(r"Timeout \(\d+:\d\d:\d\d(?:\.\d+)?\)!\s*")
_REST = re.compile(r"\s*(?:<no Python frame>|<tstate is freed>|Garbage-collecting)\s*")
OPENING = re.compile(
    r"(?:Current thread|Thread) 0x[0-9a-f]{1,16}(?: \[.*\])? \(most recent call first\)"
    r"|Stack \(most recent call first\)|Fatal Python error: |Timeout \(\d+:\d\d:\d\d"
)
_HEADING = re.compile(
    r"(?:Thread 0x[0-9a-f]{1,16}[^(\n]{0,120}|Stack )\(most recent call first\)|Timeout \(\d{1,4}:\d\d:\d\d"
)
_ANY_FRAME = re.compile(r'File "[^"\n]{0,1000}", line \d{1,9} in |<no Python frame>')
_SIGNALS = {"Segmentation fault": 11, "Bus error": 7, "Floating": 8, "Illegal instruction": 4}
_ABORT = 6  # every other fatal error ends in abort()
_LOOKS_LIKE = re.compile(
    r"(?:\(most recent call first\):?|Timeout \(\d{1,4}:\d\d:\d\d(?:\.\d{1,9})?\)!)[ \t]*\r?\n"
    r'(?:[^\n]{0,80}?File "[^\n]*", line \d+ in |[^\n]*<no Python frame>)'
)


class FaulthandlerReader:
    name = "faulthandler dump"
    order = 30
    marks = ("(most recent call first)", "Timeout (")
    help = (
        "`faulthandler.register(signal.SIGUSR1)` in the script, then `kill -USR1 PID`; PYTHONFAULTHANDLER=1 for crashes"
    )

    def recognises(self, source: Source) -> bool:
        head = source.head_text
        return _LOOKS_LIKE.search(head) is not None and (_is_mostly_dumps(head) or _on_demand(head))

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        dumps = faulthandler_dumps(text_lines(source, context))
        if not _is_mostly_dumps(source.head_text):
            dumps = (dump for dump in dumps if not dump.more)  # the log reader knows whose crash it was
        return rank_pieces(dumps, source, context)


def _is_mostly_dumps(head: str) -> bool:
    """False for a log that contains a dump."""
    rows = [row for row in head.splitlines() if row.strip()]
    return 3 * sum(bool(OPENING.search(row) or _ANY_FRAME.search(row)) for row in rows) >= len(rows)


def _on_demand(head: str) -> bool:
    """True if a dump does not belong to a crash: a signal, a timeout or the script asked for it."""
    crashed = False
    for row in head.splitlines():
        if _FATAL.search(row):
            crashed = True
        elif _HEADING.search(row):
            if not crashed:
                return True
        elif row.strip() and not _ANY_FRAME.search(row) and not _REST.fullmatch(row):
            crashed = False
    return False


def faulthandler_dumps(texts: Iterable[str]) -> Iterator[ProcessDump]:
    """Every dump in these lines, with its process as far as the lines name it."""
    return process_dumps(texts, OPENING, _Parser)


class _Parser:
    """Parses one channel (`_pasted_text.ChannelParser`)."""

    def __init__(self, hints: OwnerHints) -> None:
        self.pieces: list[Piece] = []
        self._hints = hints
        self._process: ProcessRef | None = None
        self._threads: list[ThreadBuilder] = []
        self._fatal: int | None = None  # signal of the crash
        self._current = False  # a thread is marked as the one that crashed
        self._earlier = EarlierStacks()

    def feed(self, text: str) -> bool:
        if found := _HEADER.fullmatch(text.strip()):
            self._header(int(found[2], 16) if found[2] else 0, found[3])
            self._current |= found[1] != "Thread"
            return True
        if found := _FATAL.match(text):
            self.end()
            self._begin()
            self._fatal = next((number for name, number in _SIGNALS.items() if found[1].startswith(name)), _ABORT)
            return True
        if _TIMEOUT.fullmatch(text):
            self.end()
            self._begin()
            return True
        if self._process is not None and (found := _FRAME.fullmatch(text)):
            if not self._threads:  # the line that begins the thread was left out
                self._threads.append(ThreadBuilder(0, None))
            line = int(found[2]) if found[2].isdigit() else None
            self._threads[-1].add(python_frame(found[3], found[1], line))
            return True
        if self._threads and not _REST.fullmatch(text) and (mark := elision(text)):
            self._threads[-1].leave_out(mark)
            return True
        return self._process is not None and bool(not text.strip() or _REST.fullmatch(text))

    def _begin(self) -> None:
        self._process = self._hints.take()

    def _header(self, tid: int, name: str | None) -> None:
        again = any(_is_main(thread) or (tid and thread.tid == tid) for thread in self._threads)
        if again or (self._hints.updated and self._threads):
            self.end()
        if self._process is None:
            self._begin()
        if len(self._threads) < MAX_THREADS:
            self._threads.append(ThreadBuilder(tid, name))

    def end(self) -> None:
        for thread in self._threads:
            thread.fill(self._earlier, self._process.rank if self._process else None)
            thread.name = "MainThread" if _is_main(thread) else thread.name  # 3.14 names it after the program
        names = [thread.name for thread in self._threads]
        alone = len(names) == 1 and names[0]  # one thread of several may have been asked for
        if names and not alone and "MainThread" not in names and not _is_threading_thread(self._threads[-1]):
            self._threads[-1].name = "MainThread"
        record = stacks_record(self._threads)
        if self._process is not None and record is not None:
            end = End(signal=self._fatal, native_thread=not self._current) if self._fatal is not None else None
            more = (Piece(self._process, "end", end),) if end else ()
            self.pieces.append(Piece(self._process, "stacks", ProcessDump(self._process, record, more=more)))
        self._process, self._threads, self._fatal, self._current = None, [], None, False


def _is_main(thread: ThreadBuilder) -> bool:
    """True for a main thread: its outermost frame is a module, or the join at interpreter shutdown."""
    return bool(thread.frames) and thread.frames[-1].function in ("<module>", "_shutdown")


def _is_threading_thread(thread: ThreadBuilder) -> bool:
    """True for a thread that `threading` started."""
    return not thread.frames or thread.frames[-1].function == "_bootstrap"


READER = FaulthandlerReader()
