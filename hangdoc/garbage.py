"""The garbage collector, held off where there is much evidence, which has no cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """What is made meanwhile is no garbage, and each collection would go through all that was ever seen."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def collect_rarely() -> None:
    """For as long as this process lives: of thousands of ranks a collection takes seconds."""
    gc.set_threshold(100_000, 20, 20)
