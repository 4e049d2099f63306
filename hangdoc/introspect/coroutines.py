"""The coroutines in which a task of asyncio is suspended: while the event loop waits, they are on no thread's stack.

A task refers to its coroutine. The frame of a coroutine is a part of it (a separate object in 3.10), and what it awaits
is on top of the value stack of that frame. Sources: Modules/_asynciomodule.c, Include/cpython/genobject.h,
Include/internal/pycore_frame.h of CPython 3.10 to 3.14.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Any

from hangdoc.introspect.interpreter import find
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.objects import Objects
from hangdoc.introspect.thread_states import LAYOUTS, TAG, Changed, Code, ThreadStates, py_spy_frame

DEADLINE_S = 0.1  # of one task
_MAX_FRAMES = 64
_OBJECT_BYTES = 512  # read of a task or a coroutine
_TOP = 2  # values of a frame's stack, of which one is awaited
_MAX_VALUES = 4096  # of a frame: its variables and its stack
_TASK, _COROUTINE, _WAITER = "_asyncio.Task", "coroutine", "_asyncio.FutureIter"
_FUTURE = 16  # of a FutureIter
_VALUES, _COUNT = 72, 64  # of an interpreter frame: its values, and their number (int)
_VALUES_314, _END_314 = 80, 64  # their end, as an address
_FRAME_310, _VALUES_310, _DEPTH_310 = 16, 64, 80  # f_valuestack, f_stackdepth of the PyFrameObject


def awaiting(pid: int, task: int) -> list[dict[str, Any]]:
    """The suspended frames of a task, innermost first, in py-spy's JSON format. Empty: no task, or not readable."""
    try:
        memory = Memory(pid)
        interpreter = find(memory)
        layout = LAYOUTS.get(interpreter.version) if interpreter else None
        if interpreter is None or layout is None:
            return []
        states = ThreadStates(memory, interpreter, layout, time.monotonic() + DEADLINE_S)
        return [py_spy_frame(code, at) for code, at in _Reader(memory, interpreter.version, states).frames(task)][::-1]
    except (Unreadable, struct.error, Changed):
        return []


class _Reader:
    def __init__(self, memory: Memory, version: tuple[int, int], states: ThreadStates) -> None:
        self._memory, self._version, self._states = memory, version, states
        self._objects = Objects(memory, version)

    def frames(self, task: int) -> Iterator[tuple[Code, int]]:
        """Code and instruction of each suspended frame, outermost first."""
        at: int | None = self._coroutine(task)
        for _ in range(_MAX_FRAMES):
            found = self._suspended(at) if at and time.monotonic() < self._states.until_s else None
            if found is None:
                return
            frame, code, instruction = found
            yield code, instruction
            at = self._awaited(frame)

    def _kinds(self, addresses: list[int]) -> dict[int, str]:
        return {at: kind.name for at, (kind, _) in self._objects.heads(addresses).items()}

    def _coroutine(self, task: int) -> int | None:
        head = self._objects.heads([task]).get(task)
        if head is None or head[0].name != _TASK:
            return None
        count = min(head[0].extent or _OBJECT_BYTES, _OBJECT_BYTES) // 8
        return self._first(list(self._memory.words(task, count)), _COROUTINE)

    def _first(self, addresses: list[int], kind: str) -> int | None:
        kinds = self._kinds(addresses)
        return next((at for at in addresses if kinds.get(at) == kind), None)

    def _suspended(self, coroutine: int) -> tuple[int, Code, int] | None:
        """The frame of a coroutine, its code, and the instruction at which it is suspended."""
        layout = self._states.layout
        if not layout.instructions:  # 3.10
            frame = self._memory.word(coroutine + _FRAME_310)
            return self._at(frame) if frame else None
        words = list(self._memory.words(coroutine, _OBJECT_BYTES // 8))
        codes = set(self._states.code_objects([one & ~TAG for one in words]))
        for number, one in enumerate(words):
            frame = coroutine + 8 * number - layout.code
            if one & ~TAG in codes and frame > coroutine and (found := self._at(frame)):
                return found
        return None

    def _at(self, frame: int) -> tuple[int, Code, int] | None:
        layout = self._states.layout
        address = self._memory.word(frame + layout.code) & ~TAG
        if address not in self._states.code_objects([address]):
            return None
        code = self._states.code(address)
        if layout.instructions:
            instruction = self._memory.word(frame + layout.instruction) - code.start
        else:
            (index,) = struct.unpack("<i", self._memory.read(frame + layout.instruction, 4))
            instruction = 2 * index
        return (frame, code, instruction) if code.line(instruction) is not None else None

    def _awaited(self, frame: int) -> int | None:
        """The coroutine that a suspended frame awaits, also as a task."""
        if self._version >= (3, 14):
            start, end = frame + _VALUES_314, self._memory.word(frame + _END_314)
        elif self._version >= (3, 11):
            start = frame + _VALUES
            end = start + 8 * struct.unpack("<i", self._memory.read(frame + _COUNT, 4))[0]
        else:
            start = self._memory.word(frame + _VALUES_310)
            end = start + 8 * struct.unpack("<i", self._memory.read(frame + _DEPTH_310, 4))[0]
        count = (end - start) // 8
        if not 0 < count <= _MAX_VALUES:
            return None
        top = min(count, _TOP)
        values = [value & ~TAG for value in self._memory.words(end - 8 * top, top)][::-1]
        if coroutine := self._first(values, _COROUTINE):
            return coroutine
        waiter = self._first(values, _WAITER)
        return self._coroutine(self._memory.word(waiter + _FUTURE)) if waiter else None
