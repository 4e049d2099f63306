"""The garbage collector, held off where there is much evidence, which has no cycles."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def gc_paused() -> Iterator[None]:
    """What is made meanwhile is no garbage, and each collection would go through all that was ever seen."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()  # what was made is as old as can be: it is not gone through at once, as young objects are
            gc.unfreeze()
            gc.enable()


def give_back() -> None:
    """What was freed, to the system: lines of hundreds of hosts leave holes that malloc would keep (glibc)."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def collect_rarely() -> None:
    """For as long as this process lives: of thousands of ranks a collection takes seconds."""
    gc.set_threshold(100_000, 20, 20)
