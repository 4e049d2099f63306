"""The exception that each thread of another process handles: the code in `except`, `finally` or `__exit__` runs for it.

A thread state has a stack of handled exceptions, one entry for each generator that runs. The traceback names the frames
from the one that caught the exception to the one that raised it.
Sources: Include/cpython/{pystate,pyerrors}.h, Include/internal/pycore_traceback.h, Objects/frameobject.c of CPython
3.10 to 3.14.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from itertools import islice

from hangdoc.evidence.stacks import Frame, HandledException
from hangdoc.introspect.frames import short_name
from hangdoc.introspect.interpreter import Interpreter
from hangdoc.introspect.local_variables import shorten
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.objects import Objects
from hangdoc.introspect.thread_states import LAYOUTS, Changed, ThreadStates, word
from hangdoc.redaction.text import redact_text

DEADLINE_S = 0.25  # of one process
_THREADS = 64
_GENERATORS = 16  # entries of the stack of handled exceptions
_TRACEBACK = 100  # frames
_ARGUMENTS = 4  # of an exception
_NAME = 96  # characters

_ARGS, _TRACE = 24, {(3, 10): 32}  # in PyBaseExceptionObject: args, traceback
_TRACE_SINCE_311 = 40
_NO_LINE = -1  # tb_lineno, from 3.12 on: to be found from tb_lasti


def handled_exceptions(memory: Memory, interpreter: Interpreter, pid: int) -> tuple[HandledException, ...]:
    """What the main thread and the oldest others handle. Raises Unreadable, or struct.error."""
    layout = LAYOUTS.get(interpreter.version)
    if layout is None:
        return ()
    states = ThreadStates(memory, interpreter, layout, time.monotonic() + DEADLINE_S)
    reader = _Reader(memory, interpreter, states)
    try:
        oldest = list(states.all())[: -_THREADS - 1 : -1]
        return tuple(
            found
            for number, state in enumerate(oldest)
            if (found := reader.handled(state, pid if number == 0 else _tid(state, layout.native_id))) is not None
        )
    except Changed:
        raise Unreadable(f"PID {pid}: its threads changed meanwhile") from None


def _tid(state: bytes, native_id: int | None) -> int | None:
    return word(state, native_id) if native_id is not None else None


class _Reader:
    def __init__(self, memory: Memory, interpreter: Interpreter, states: ThreadStates) -> None:
        self._memory, self._version, self._states = memory, interpreter.version, states
        self._objects = Objects(memory, interpreter.version)

    def handled(self, state: bytes, tid: int | None) -> HandledException | None:
        """The innermost exception that a thread handles; None: none."""
        for address in islice(self._entries(word(state, self._states.layout.handled)), _GENERATORS):
            kind = next((kind for kind, _ in self._objects.heads([address]).values()), None)
            if kind is not None and "BaseException" in (kind.name, *kind.bases):
                trace = self._memory.word(address + _TRACE.get(self._version, _TRACE_SINCE_311))
                frames = tuple(islice(self._traceback(trace), _TRACEBACK))
                return HandledException(tid, shorten(kind.name, _NAME), self._text(address), frames)
        return None

    def _entries(self, item: int) -> Iterator[int]:
        """Addresses of the handled exceptions, innermost first; an entry without one has 0 or None."""
        value, previous = (8, 24) if self._version <= (3, 10) else (0, 8)
        while item:
            yield self._memory.word(item + value)
            item = self._memory.word(item + previous)

    def _text(self, exception: int) -> str:
        """Its arguments, as far as they are short ASCII strings or numbers."""
        args = self._memory.word(exception + _ARGS)
        if (head := self._objects.heads([args]).get(args)) is None or head[0].name != "tuple":
            return ""
        count = min(word(head[1], 16), _ARGUMENTS)
        items = self._memory.words(args + 24, count) if count else ()
        seen = self._objects.describe(items)
        texts = [text for item in items if item in seen and (text := seen[item].text) is not None]
        return shorten(redact_text(", ".join(texts)))

    def _traceback(self, at: int) -> Iterator[Frame]:
        """Frames of a traceback, outermost first, as far as the time allows."""
        while at and time.monotonic() < self._states.until_s:
            raw = self._memory.read(at, 40)
            _, _, following, frame = struct.unpack_from("<4Q", raw)
            if not any(kind.name == "traceback" for kind, _ in self._objects.heads([at]).values()):
                return
            instruction, line = struct.unpack_from("<2i", raw, 32)
            code = self._code_of(frame)
            if code is not None:
                found = self._states.code(code)
                number = found.line(instruction) if line == _NO_LINE else line
                yield Frame(shorten(found.name, _NAME), found.file, number, short_name(found.file))
            at = following

    def _code_of(self, frame: int) -> int | None:
        """The code object of a PyFrameObject: f_code (3.10), else that of its _PyInterpreterFrame."""
        at = frame + 32 if self._version <= (3, 10) else self._memory.word(frame + 24) + self._states.layout.code
        code = self._memory.word(at) & ~3
        return next(iter(self._states.code_objects([code])), None)
