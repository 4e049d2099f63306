"""Limit on the CPU time of a playbook, so that no rule or template of a user runs forever.

Rules and templates run in short steps (one round of a comprehension, one filter); `check` runs before each step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

CPU_S = 1.0  # per playbook; a built-in one takes milliseconds
CPU_S_PER_RANK = 0.2e-3  # in addition; all built-in ones together take less

_end: ContextVar[float] = ContextVar("_end", default=math.inf)  # CPU seconds of this thread


class TooSlow(Exception):
    """The CPU time is used up."""


def cpu_s(ranks: int) -> float:
    """The CPU time of a playbook over this many ranks."""
    return CPU_S + CPU_S_PER_RANK * ranks


@contextmanager
def allowance(seconds: float) -> Iterator[None]:
    """Limit the CPU time of this thread inside the block; `check` raises TooSlow after that."""
    token = _end.set(time.thread_time() + seconds)
    try:
        yield
    finally:
        _end.reset(token)


def check() -> None:
    """Raise TooSlow if the CPU time is used up."""
    if time.thread_time() > _end.get():
        raise TooSlow
