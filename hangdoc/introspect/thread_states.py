"""Thread states and code objects of CPython 3.10 to 3.14 in another process, read from memory.

Layouts: Include/internal/pycore_{runtime,interp,frame}.h and cpython/{pystate,code}.h of these versions. Thread states
must point back to their interpreter, otherwise the layout is unknown.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hangdoc.introspect.interpreter import Interpreter
from hangdoc.introspect.memory import Memory
from hangdoc.introspect.objects import Objects

_MAX_INTERPRETERS, _MAX_COUNTED = 1000, 100_000  # interpreters, threads
_STATE_BYTES = 256  # of a PyThreadState
_TABLE_BYTES, _TEXT_CHARACTERS = 1 << 20, 4096


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets in bytes."""

    interpreters: int  # _PyRuntimeState.interpreters.head
    threads: int  # PyInterpreterState.threads.head
    thread_id: int  # PyThreadState.thread_id
    native_id: int | None  # PyThreadState.native_thread_id
    handled: int  # PyThreadState.exc_info
    frame: tuple[int, ...]  # from PyThreadState to its innermost frame
    code: int  # of the frame: its PyCodeObject
    previous: int  # of the frame
    instruction: int  # of the frame: an address, in 3.10 an index
    owner: int | None  # of the frame
    first_line: int  # of PyCodeObject
    filename: int  # followed by co_name
    table: int  # co_linetable
    instructions: int  # their start in PyCodeObject


LAYOUTS = {
    (3, 10): Layout(32, 8, 176, None, 144, (24,), 32, 24, 96, None, 40, 104, 120, 0),
    (3, 11): Layout(40, 16, 152, 160, 120, (56, 8), 32, 48, 56, None, 72, 112, 136, 184),
    (3, 12): Layout(40, 72, 136, 144, 104, (56, 0), 0, 8, 56, 70, 68, 112, 136, 192),
    (3, 13): Layout(632, 7344, 152, 160, 120, (72,), 0, 8, 56, 70, 68, 112, 136, 200),
    (3, 14): Layout(808, 7344, 152, 160, 120, (72,), 0, 8, 56, 74, 68, 112, 136, 208),
}
_INTERPRETER = 16  # PyThreadState.interp
_NEXT = 8  # PyThreadState.next
TAG = 3  # bits of a _PyStackRef that are not part of the address (3.14)


class Changed(Exception):
    """Inconsistent data: an unknown layout, or the stack changed meanwhile."""


class ThreadStates:
    """Reads until the deadline. Methods raise Unreadable, struct.error or Changed."""

    def __init__(self, memory: Memory, interpreter: Interpreter, layout: Layout, until_s: float) -> None:
        self._memory, self._interpreter, self.layout = memory, interpreter, layout
        self.until_s = until_s

    def all(self) -> Iterator[bytes]:
        """All PyThreadStates of the main interpreter, newest first."""
        at = self._memory.word(self._interpreter.runtime + self.layout.interpreters)
        interpreter = at
        for _ in range(_MAX_INTERPRETERS):
            if not (following := self._memory.word(at + self._next_interpreter)):
                break
            at = interpreter = following  # the main one is the oldest
        address = self._memory.word(interpreter + self.layout.threads)
        for _ in range(_MAX_COUNTED):
            if not address:
                return
            state = self._memory.read(address, _STATE_BYTES)
            if word(state, _INTERPRETER) != interpreter or time.monotonic() > self.until_s:
                raise Changed
            yield state
            address = word(state, _NEXT)
        raise Changed

    @property
    def _next_interpreter(self) -> int:
        return {(3, 13): 7264, (3, 14): 7272}.get(self._interpreter.version, 0)

    def code_objects(self, addresses: Iterable[int]) -> list[int]:
        """The addresses that hold code objects."""
        return [at for at, (kind, _) in Objects(self._memory).heads(addresses).items() if kind.name == "code"]

    def code(self, address: int) -> Code:
        layout = self.layout
        raw = self._memory.read(address, 208)
        (first_line,) = struct.unpack_from("<i", raw, layout.first_line)
        table = word(raw, layout.table)
        size = min(self._memory.word(table + 16), _TABLE_BYTES)
        lines = self._memory.read(table + 32, size) if size else b""
        file, name = (self._text(word(raw, layout.filename + at)) for at in (0, 8))
        start = address + layout.instructions if layout.instructions else 0
        return Code(name, file, first_line, lines, start)

    def _text(self, address: int) -> str:
        """A compact str: PEP 393."""
        head = self._memory.read(address, 40)
        length, state = min(word(head, 16), _TEXT_CHARACTERS), head[32]
        width, ascii_only = state >> 2 & 7, state >> 6 & 1
        if width not in (1, 2, 4) or not length:
            return ""
        new = self._interpreter.version >= (3, 12)
        start = (40 if new else 48) if ascii_only else (56 if new else 72)
        encoding = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[width]
        return self._memory.read(address + start, length * width).decode(encoding, "replace")


@dataclass(frozen=True, slots=True)
class Code:
    name: str
    file: str
    first_line: int
    table: bytes
    start: int  # address of the first instruction; 0: instructions are offsets

    def line(self, at: int) -> int | None:
        """The line of the instruction at byte `at`."""
        find = line_at if self.start else old_line_at
        return find(self.table, self.first_line, at)


def py_spy_frame(code: Code, at: int) -> dict[str, Any]:
    """The frame at byte `at` of its code, in py-spy's JSON format, without variables."""
    return {
        "name": code.name, "filename": code.file, "module": None, "short_filename": None,
        "line": code.line(at) or 0, "locals": None,
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


def word(raw: bytes, at: int) -> int:
    """The unsigned word at an offset."""
    return int.from_bytes(raw[at : at + 8], "little")
