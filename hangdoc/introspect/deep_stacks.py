"""Stacks that py-spy cannot read, read from memory: more than 4,096 frames, or more than 1,024 threads.

To py-spy a process with more than 4,096 frames or threads is no Python process, and 4,000 threads take it 2 s. Here
only the ends of a stack are kept, and no variables. The process is not paused: where a stack changed meanwhile, a frame
has no code object.

Layouts: Include/internal/pycore_{runtime,interp,frame}.h and cpython/{pystate,code}.h of CPython 3.10 to 3.13; the
thread states must point back to their interpreter, else the layout is another.
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

MOST_FRAMES = 4096  # of a thread, that py-spy reads
MOST_THREADS = 1024  # of a process, that are kept
LIMIT_S = 2.0  # measured 0.3 s for 100,000 frames, 0.5 s for 10,000 threads
_ATTEMPTS = 3  # at a process whose threads come and go
_COUNTED = 100_000  # threads
_PAGE, _PAGES = 4096, 16  # read at once: the callers of a frame lie below it
_STATE_BYTES = 256  # of a PyThreadState
_FRAME_BYTES = 104
_TABLE_BYTES, _TEXT_CHARACTERS = 1 << 20, 4096
_SHIM = 3  # FRAME_OWNED_BY_CSTACK: no frame of Python


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
    instruction: int  # of the frame: an address, or in 3.10 a number
    owner: int | None  # of the frame
    first_line: int  # of PyCodeObject
    filename: int  # followed by co_name
    table: int  # co_linetable
    instructions: int  # where they begin in PyCodeObject


_LAYOUTS = {
    (3, 10): _Layout(32, 8, 176, None, (24,), 32, 24, 96, None, 40, 104, 120, 0),
    (3, 11): _Layout(40, 16, 152, 160, (56, 8), 32, 48, 56, None, 72, 112, 136, 184),
    (3, 12): _Layout(40, 72, 136, 144, (56, 0), 0, 8, 56, 70, 68, 112, 136, 192),
    (3, 13): _Layout(632, 7344, 152, 160, (72,), 0, 8, 56, 70, 68, 112, 136, 200),
}
_INTERPRETER = 16  # PyThreadState.interp
_NEXT = 8  # PyThreadState.next

Frame = tuple[int, int]  # addresses of its code object and its instruction


@dataclass(frozen=True, slots=True)
class Deep:
    """The threads of a process as py-spy's JSON has them, with what is `left_out` of each stack, the main one first."""

    threads: list[dict[str, Any]]
    threads_left_out: int

    @property
    def why(self) -> str | None:
        """What of it is beyond py-spy; None where nothing is."""
        count = len(self.threads) + self.threads_left_out
        if count > MOST_THREADS:
            return f"it has {count:,} threads, of which {len(self.threads):,} are shown, without variables"
        deepest = max(len(thread["frames"]) + thread["left_out"] for thread in self.threads)
        if deepest > MOST_FRAMES:
            return f"a stack is {deepest:,} frames deep: only its two ends are shown, without variables"
        return None


def read(pid: int) -> Deep | None:
    """The stacks of a process; None where they cannot be read, or where the layout is unknown."""
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
    """What was read is not what it should be: another layout, or the stack has changed meanwhile."""


class _Reader:
    def __init__(self, memory: Memory, interpreter: Interpreter, layout: _Layout, pid: int, until_s: float) -> None:
        self._memory, self._interpreter, self._layout, self._pid = memory, interpreter, layout, pid
        self._pages: dict[int, bytes | None] = {}
        self._until_s = until_s

    def read(self) -> Deep:
        states = list(self._states())
        chosen = states[: -MOST_THREADS - 1 : -1]  # the list begins with the newest thread and ends with the main one
        stacks = [(state, *self._frames(state)) for state in chosen]
        codes = {code: self._code(code) for code in self._checked({one[0] for _, some, _ in stacks for one in some})}
        found = []
        for number, (state, frames, left_out) in enumerate(stacks):
            if any(code not in codes for code, _ in frames):
                raise _Changed
            found.append(self._thread(state, number == 0, [codes[c].frame(at) for c, at in frames], left_out))
        if not found:
            raise _Changed
        return Deep(found, len(states) - len(chosen))

    def _states(self) -> Iterator[bytes]:
        """Every PyThreadState of the main interpreter, the newest first."""
        at = self._memory.word(self._interpreter.runtime + self._layout.interpreters)
        interpreter = at
        while following := self._memory.word(at + self._next_interpreter):  # the main one is the oldest
            at = interpreter = following
        address = self._memory.word(interpreter + self._layout.threads)
        for _ in range(_COUNTED):
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
        return 7264 if self._interpreter.version == (3, 13) else 0

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
            if address == seen:  # a ring: it ran while it was read (Brent's algorithm)
                raise _Changed
            if not passed & (passed - 1):
                seen = address
            raw = self._at(address)
            if layout.owner is None or raw[layout.owner] != _SHIM:
                if layout.instructions:
                    frame = _word(raw, layout.code), _word(raw, layout.instruction)
                else:
                    frame = _word(raw, layout.code), 2 * struct.unpack_from("<i", raw, layout.instruction)[0]
                (inner if len(inner) < INNERMOST else outer).append(frame)
                count += 1
                if not count & 1023 and time.monotonic() > self._until_s:
                    raise _Changed
            address = _word(raw, layout.previous)
        return [*inner, *outer], count - len(inner) - len(outer)

    def _at(self, address: int) -> bytes:
        """A frame, from pages that are read many at once."""
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
                zip(wanted, self._memory.read_many([(one * _PAGE, _PAGE) for one in wanted]), strict=True)
            )
        return self._pages.get(page)

    def _checked(self, addresses: set[int]) -> list[int]:
        """Those that are code objects."""
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
    start: int  # address of its first instruction; 0 where instructions are counted from it

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
    """The same from the table of CPython 3.10: PEP 626, Objects/lnotab_notes.txt."""
    line, end = first_line, 0
    for size, delta in struct.iter_unpack("<Bb", table[: len(table) // 2 * 2]):
        start, end = end, end + size
        if delta != -128:
            line += delta
        if start <= at < end:
            return line if delta != -128 else None
    return None


def _varint(table: bytes, i: int) -> tuple[int, int]:
    """Six bits a byte, the lowest first; bit 6 says that more follow."""
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
