"""Stacks that py-spy cannot read, read from memory: more than 4,096 frames or more than 1,024 threads.

py-spy rejects a process with more than 4,096 frames or threads, and needs 2 s for 4,000 threads. This reader keeps only
the two ends of a stack, and no variables. It does not pause the process; a stack that changed meanwhile shows as a
frame without a code object.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from hangdoc.introspect.frames import INNERMOST, OUTERMOST
from hangdoc.introspect.interpreter import Interpreter, find
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.thread_states import LAYOUTS, TAG, Changed, Layout, ThreadStates, py_spy_frame, word
from hangdoc.system import procfs

MAX_FRAMES = 4096  # of a thread that py-spy can read
MAX_THREADS = 1024  # read of a process
LIMIT_S = 2.0  # measured 0.3 s for 100,000 frames, 0.5 s for 10,000 threads
_ATTEMPTS = 3  # the process keeps running: its threads come and go
_PAGE, _PAGES = 4096, 16  # pages read at once: the callers of a frame lie below it
_FRAME_BYTES = 104
_SHIMS = (3, 4)  # FRAME_OWNED_BY_INTERPRETER, FRAME_OWNED_BY_CSTACK: no Python frames

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
            layout = LAYOUTS.get(interpreter.version) if interpreter else None
            return _Reader(memory, interpreter, layout, pid, until_s).read() if interpreter and layout else None
        except (Unreadable, struct.error, Changed):
            continue
    return None


class _Reader:
    def __init__(self, memory: Memory, interpreter: Interpreter, layout: Layout, pid: int, until_s: float) -> None:
        self._memory, self._layout, self._pid = memory, layout, pid
        self._states = ThreadStates(memory, interpreter, layout, until_s)
        self._pages: dict[int, bytes | None] = {}
        self._until_s = until_s

    def read(self) -> Deep:
        states = list(self._states.all())
        chosen = states[: -MAX_THREADS - 1 : -1]  # newest thread first, main thread last
        stacks = [(state, *self._frames(state)) for state in chosen]
        codes = {
            code: self._states.code(code)
            for code in self._states.code_objects({code for _, frames, _ in stacks for code, _ in frames})
        }
        found = []
        for number, (state, frames, left_out) in enumerate(stacks):
            if any(code not in codes for code, _ in frames):
                raise Changed
            shown = [py_spy_frame(codes[code], at - codes[code].start) for code, at in frames]
            found.append(self._thread(state, number == 0, shown, left_out))
        if not found:
            raise Changed
        return Deep(found, len(states) - len(chosen))

    def _frames(self, state: bytes) -> tuple[list[Frame], int]:
        """The ends of a stack, innermost first, and the number of frames between them."""
        layout = self._layout
        address = word(state, layout.frame[0])
        for offset in layout.frame[1:]:
            address = self._memory.word(address + offset)
        inner: list[Frame] = []
        outer: deque[Frame] = deque(maxlen=OUTERMOST)
        count = passed = seen = 0
        while address:
            passed += 1
            if address == seen:  # a cycle: the stack changed meanwhile (Brent's algorithm)
                raise Changed
            if not passed & (passed - 1):
                seen = address
            raw = self._at(address)
            if layout.owner is None or raw[layout.owner] not in _SHIMS:
                if layout.instructions:
                    frame = word(raw, layout.code) & ~TAG, word(raw, layout.instruction)
                else:
                    frame = word(raw, layout.code), 2 * struct.unpack_from("<i", raw, layout.instruction)[0]
                (inner if len(inner) < INNERMOST else outer).append(frame)
                count += 1
                if not count & 1023 and time.monotonic() > self._until_s:
                    raise Changed
            address = word(raw, layout.previous)
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

    def _thread(self, state: bytes, main: bool, frames: list[dict[str, Any]], left_out: int) -> dict[str, Any]:
        native = self._layout.native_id
        tid = self._pid if main else word(state, native) if native is not None else 0
        stat = procfs.stat(self._pid, tid) if tid else None
        return {
            "thread_id": word(state, self._layout.thread_id),
            "thread_name": "MainThread" if main else None,
            "os_thread_id": tid,
            "active": stat is not None and stat.state == "R",
            "owns_gil": False,
            "frames": frames,
            "left_out": left_out,
        }
