"""Locks that the threads of a rank wait for and hold, by the source of their lines, in stacks of a job that has ended.

A thread whose innermost frame is at `with self.a:` waits for that lock: C code without a frame acquires it. A line in
such a block holds the lock. Two threads mean the same lock if both name it alike in one file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

from hangdoc.analysis.ranks.call_path import is_library
from hangdoc.evidence import Frame, Stack, Stacks
from hangdoc.evidence.locks import Holding, Locks, LockWait
from hangdoc.introspect.source_records import Guards

MAX_THREADS = 200


def locks_of(stacks: Stacks, guards: Mapping[str, Guards]) -> Locks | None:
    """The locks of one process; None: no thread is seen to wait for a lock that another one holds."""
    waits: list[LockWait] = []
    holdings: list[Holding] = []
    for stack in stacks.threads[:MAX_THREADS]:
        frames = [frame for frame in stack.frames if not frame.native]
        if frames and (here := guards.get(_line(frames[0]))) and here.acquires:
            name = here.acquires[-1]
            waits.append(LockWait(stack.tid, _identity(frames[0], name), name))
        holdings += _holdings(stack, frames, guards)
    wanted = {wait.semaphore: wait.tid for wait in waits}
    held = tuple(one for one in holdings if wanted.get(one.semaphore, one.tid) != one.tid)
    return Locks(tuple(wait.tid for wait in waits), tuple(waits), held) if held else None


def _holdings(stack: Stack, frames: list[Frame], guards: Mapping[str, Guards]) -> Iterator[Holding]:
    for frame in frames:
        own = guards.get(_line(frame)) if not is_library(frame.file) else None
        for name in own.inside if own else ():
            yield Holding(
                stack.tid, _identity(frame, name), name, frame.function, frame.file, frame.line or 0, found=False
            )


def _line(frame: Frame) -> str:
    return f"{frame.file}:{frame.line}"


def _identity(frame: Frame, name: str) -> int:
    """Stands for the address of the lock."""
    return zlib.crc32(f"{frame.file}:{name}".encode("utf-8", "replace"))
