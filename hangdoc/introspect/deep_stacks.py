"""Stacks that py-spy cannot read, read from memory: more than 4,096 frames or more than 1,024 threads.

py-spy rejects a process with more than 4,096 frames or threads, and needs 2 s for 4,000 threads. This reader keeps only
the two ends of a stack, and no variables. It does not pause the process; a stack that changed meanwhile shows as a
frame without a code object.

Layouts: Include/internal/pycore_{runtime,interp,frame}.h and cpython/{pystate,code}.h of CPython 3.10 to 3.14. Thread
states must point back to their interpreter, otherwise the layout is unknown.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hangdoc.introspect.frames import INNERMOST, OUTERMOST
from hangdoc.introspect.interpreter import Interpreter, find
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.objects import Objects
from hangdoc.system import procfs

MAX_FRAMES = 4096  # of a thread that py-spy can read
MAX_THREADS = 1024  # read of a process
LIMIT_S = 2.0  # measured 0.3 s for 100,000 frames, 0.5 s for 10,000 threads
_ATTEMPTS = 3  # the process keeps running: its threads come and go
_MAX_COUNTED = 100_000  # threads
_PAGE, _PAGES = 4096, 16  # pages read at once: the callers of a frame lie below it
_STATE_BYTES = 256  # of a PyThreadState
_FRAME_BYTES = 104
_TABLE_BYTES, _TEXT_CHARACTERS = 1 << 20, 4096
_SHIMS = (3, 4)  # FRAME_OWNED_BY_INTERPRETER, FRAME_OWNED_BY_CSTACK: no Python frames
_TAG = 3  # bits of a _PyStackRef that are not part of the address (3.14)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Offsets in bytes."""

    interpreters: int  # _PyRuntimeState.interpreters.head
    threads: int  # PyInterpreterState.threads.head
    thread_id: int  # PyThreadState.thread_id
    native_id: int | None  # PyThreadState.native_thread_id
    frame: tuple[int, ...]  # from PyThreadState to its innermost frame
    code: int  # of the frame: its PyCodeObject
    previous: int  # of the frame
    instruction: int  # of the frame: an address, in 3.10 an index
    owner: int | None  # of the frame
    first_line: int  # of PyCodeObject
    filename: int  # followed by co_name
    table: int  # co_linetable
    instructions: int  # their start in PyCodeObject


_LAYOUTS = {
    (3, 10): _Layout(32, 8, 176, None, (24,), 32, 24, 96, None, 40, 104, 120, 0),
    (3, 11): _Layout(40, 16, 152, 160, (56, 8), 32, 48, 56, None, 72, 112, 136, 184),
    (3, 12): _Layout(40, 72, 136, 144, (56, 0), 0, 8, 56, 70, 68, 112, 136, 192),
    (3, 13): _Layout(632, 7344, 152, 160, (72,), 0, 8, 56, 70, 68, 112, 136, 200),
    (3, 14): _Layout(808, 7344, 152, 160, (72,), 0, 8, 56, 74, 68, 112, 136, 208),
}
_INTERPRETER = 16  # PyThreadState.interp
_NEXT = 8  # PyThreadState.next

Frame = tuple[int, int]  # address of its code object, and its instruction


@dataclass(frozen=True, slots=True)
class Deep:
    """Threads of a process in py-spy's JSON format, main thread first; `left_out`: frames left out of a stack."""

    threads: list[dict[str, Any]]
    threads_left_out: int

    @property
    def why(self) -> str | None:
        """Why py-spy cannot read it; None: it can."""
        count = len(self.threads) + self.threads_left_out
        if count > MAX_THREADS:
            return f"it has {count:,} threads; only {len(self.threads):,} are shown, without variables"
        deepest = max(len(thread["frames"]) + thread["left_out"] for thread in self.threads)
        if deepest > MAX_FRAMES:
            return f"a stack is {deepest:,} frames deep: only its two ends are shown, without variables"
        return None


def read(pid: int) -> Deep | None:
    """The stacks of a process; None: not readable, or unknown layout."""
    until_s = time.monotonic() + LIMIT_S
    for _ in range(_ATTEMPTS):
        try:
            memory = Memory(pid)
            interpreter = find(memory)
            layout = _LAYOUTS.get(interpreter.version) if interpreter else None
            return _Reader(memory, interpreter, layout, pid, until_s).read() if interpreter and layout else None
        except (Unreadable, struct.error, _Changed):
            continue
    return None


class _Changed(Exception):
    """Inconsistent data: an unknown layout, or the stack changed meanwhile."""


class _Reader:
    def __init__(self, memory: Memory, interpreter: Interpreter, layout: _Layout, pid: int, until_s: float) -> None:
        self._memory, self._interpreter, self._layout, self._pid = memory, interpreter, layout, pid
        self._pages: dict[int, bytes | None] = {}
        self._until_s = until_s

    def read(self) -> Deep:
        states = list(self._states())
        chosen = states[: -MAX_THREADS - 1 : -1]  # newest thread first, main thread last
        stacks = [(state, *self._frames(state)) for state in chosen]
        codes = {
            code: self._code(code)
            for code in self._code_objects({code for _, frames, _ in stacks for code, _ in frames})
        }
        found = []
        for number, (state, frames, left_out) in enumerate(stacks):
            if any(code not in codes for code, _ in frames):
                raise _Changed
            found.append(self._thread(state, number == 0, [codes[c].frame(at) for c, at in frames], left_out))
        if not found:
            raise _Changed
        return Deep(found, len(states) - len(chosen))

    def _states(self) -> Iterator[bytes]:
        """All PyThreadStates of the main interpreter, newest first."""
        at = self._memory.word(self._interpreter.runtime + self._layout.interpreters)
        interpreter = at
        while following := self._memory.word(at + self._next_interpreter):  # the main one is the oldest
            at = interpreter = following
        address = self._memory.word(interpreter + self._layout.threads)
        for _ in range(_MAX_COUNTED):
            if not address:
                return
            state = self._memory.read(address, _STATE_BYTES)
            if _word(state, _INTERPRETER) != interpreter or time.monotonic() > self._until_s:
                raise _Changed
            yield state
            address = _word(state, _NEXT)
        raise _Changed

    @property
    def _next_interpreter(self) -> int:
        return {(3, 13): 7264, (3, 14): 7272}.get(self._interpreter.version, 0)

    def _frames(self, state: bytes) -> tuple[list[Frame], int]:
        """The ends of a stack, innermost first, and the number of frames between them."""
        layout = self._layout
        address = _word(state, layout.frame[0])
        for offset in layout.frame[1:]:
            address = self._memory.word(address + offset)
        inner: list[Frame] = []
        outer: deque[Frame] = deque(maxlen=OUTERMOST)
        count = passed = seen = 0
        while address:
            passed += 1
            if address == seen:  # a cycle: the stack changed meanwhile (Brent's algorithm)
                raise _Changed
            if not passed & (passed - 1):
                seen = address
            raw = self._at(address)
            if layout.owner is None or raw[layout.owner] not in _SHIMS:
                if layout.instructions:
                    frame = _word(raw, layout.code) & ~_TAG, _word(raw, layout.instruction)
                else:
                    frame = _word(raw, layout.code), 2 * struct.unpack_from("<i", raw, layout.instruction)[0]
                (inner if len(inner) < INNERMOST else outer).append(frame)
                count += 1
                if not count & 1023 and time.monotonic() > self._until_s:
                    raise _Changed
            address = _word(raw, layout.previous)
        return [*inner, *outer], count - len(inner) - len(outer)

    def _at(self, address: int) -> bytes:
        """A frame, from the page cache."""
        page, offset = divmod(address, _PAGE)
        raw = (self._page(page) or b"")[offset : offset + _FRAME_BYTES]
        if len(raw) < _FRAME_BYTES:
            raw += (self._page(page + 1) or b"")[: _FRAME_BYTES - len(raw)]
        if len(raw) < _FRAME_BYTES:
            raise Unreadable(f"a frame at {address:#x}")
        return raw

    def _page(self, page: int) -> bytes | None:
        if page not in self._pages:
            if len(self._pages) > 16 * _PAGES:
                self._pages.clear()
            wanted = range(page, max(page - _PAGES, 0), -1)
            self._pages.update(
                zip(wanted, self._memory.read_many([(number * _PAGE, _PAGE) for number in wanted]), strict=True)
            )
        return self._pages.get(page)

    def _code_objects(self, addresses: set[int]) -> list[int]:
        """The addresses that hold code objects."""
        return [at for at, (kind, _) in Objects(self._memory).heads(addresses).items() if kind.name == "code"]

    def _code(self, address: int) -> _Code:
        layout = self._layout
        raw = self._memory.read(address, 208)
        (first_line,) = struct.unpack_from("<i", raw, layout.first_line)
        table = _word(raw, layout.table)
        size = min(self._memory.word(table + 16), _TABLE_BYTES)
        lines = self._memory.read(table + 32, size) if size else b""
        file, name = (self._text(_word(raw, layout.filename + at)) for at in (0, 8))
        start = address + layout.instructions if layout.instructions else 0
        return _Code(name, file, first_line, lines, start)

    def _text(self, address: int) -> str:
        """A compact str: PEP 393."""
        head = self._memory.read(address, 40)
        length, state = min(_word(head, 16), _TEXT_CHARACTERS), head[32]
        width, ascii_only = state >> 2 & 7, state >> 6 & 1
        if width not in (1, 2, 4) or not length:
            return ""
        new = self._interpreter.version >= (3, 12)
        start = (40 if new else 48) if ascii_only else (56 if new else 72)
        encoding = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[width]
        return self._memory.read(address + start, length * width).decode(encoding, "replace")

    def _thread(self, state: bytes, main: bool, frames: list[dict[str, Any]], left_out: int) -> dict[str, Any]:
        native = self._layout.native_id
        tid = self._pid if main else _word(state, native) if native is not None else 0
        stat = procfs.stat(self._pid, tid) if tid else None
        return {
            "thread_id": _word(state, self._layout.thread_id),
            "thread_name": "MainThread" if main else None,
            "os_thread_id": tid,
            "active": stat is not None and stat.state == "R",
            "owns_gil": False,
            "frames": frames,
            "left_out": left_out,
        }


@dataclass(frozen=True, slots=True)
class _Code:
    name: str
    file: str
    first_line: int
    table: bytes
    start: int  # address of the first instruction; 0: instructions are offsets

    def frame(self, instruction: int) -> dict[str, Any]:
        at = instruction - self.start
        line = line_at(self.table, self.first_line, at) if self.start else old_line_at(self.table, self.first_line, at)
        return {
            "name": self.name, "filename": self.file, "module": None, "short_filename": None, "line": line or 0,
            "locals": None,
        }  # fmt: skip


def line_at(table: bytes, first_line: int, at: int) -> int | None:
    """The line of the instruction at byte `at`, from co_linetable: Objects/locations.md of CPython 3.11 and later."""
    line, start, i = first_line, 0, 0
    while i < len(table):
        kind, length = table[i] >> 3 & 15, 2 * ((table[i] & 7) + 1)
        i += 1
        shown: int | None = line
        if kind == 15:
            shown = None
        elif kind >= 13:
            delta, i = _signed(table, i)
            shown = line = line + delta
            for _ in range(3 if kind == 14 else 0):
                _, i = _varint(table, i)
        elif kind >= 10:
            shown = line = line + kind - 10
            i += 2
        else:
            i += 1
        if start <= at < start + length:
            return shown
        start += length
    return None


def old_line_at(table: bytes, first_line: int, at: int) -> int | None:
    """As `line_at`, from the table of CPython 3.10: PEP 626, Objects/lnotab_notes.txt."""
    line, end = first_line, 0
    for size, delta in struct.iter_unpack("<Bb", table[: len(table) // 2 * 2]):
        start, end = end, end + size
        if delta != -128:
            line += delta
        if start <= at < end:
            return line if delta != -128 else None
    return None


def _varint(table: bytes, i: int) -> tuple[int, int]:
    """Six bits per byte, lowest first; bit 6 marks a continuation."""
    value = shift = 0
    while i < len(table) and shift < 36:
        value |= (table[i] & 63) << shift
        shift, i = shift + 6, i + 1
        if not table[i - 1] & 64:
            break
    return value, i


def _signed(table: bytes, i: int) -> tuple[int, int]:
    value, i = _varint(table, i)
    return (-(value >> 1) if value & 1 else value >> 1), i


def _word(raw: bytes, at: int) -> int:
    return int.from_bytes(raw[at : at + 8], "little")
