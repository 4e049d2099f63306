"""How slow this machine is at the moment: the two threads of a core, both busy, take almost twice the CPU time each."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

MAX_SLOWDOWN = 12.0  # a limit is never stretched by more
QUIET_S = 0.02  # CPU time of a million additions where nothing else runs: docs/benchmarks.md
EVERY_S, ADDITIONS = 0.25, 100_000  # of the samples: 1 % of a quiet core


def slowness(additions: int = 1_000_000) -> float:
    """CPU time of additions now, in units of a quiet machine; from 1 to MAX_SLOWDOWN. For limits in CPU time.

    Ask before and after what is measured, and take the larger: a virtual machine may change its pace within seconds.
    """
    began, total = time.thread_time(), 0
    for number in range(additions):
        total += number
    return min(MAX_SLOWDOWN, max(1.0, (time.thread_time() - began) / (QUIET_S * additions / 1_000_000)))


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Fails where the block takes more CPU time than this, on a quiet machine."""
    before, began = slowness(), time.process_time()
    yield
    took, pace = time.process_time() - began, max(before, slowness())
    assert took < limit_s * pace, f"{took:.2f} s of CPU time, {pace:.1f} times a quiet machine's"


@dataclass
class Pace:
    """The slowness all the while that something is measured."""

    samples: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return sum(self.samples) / len(self.samples)


@contextmanager
def paced() -> Iterator[Pace]:
    """Samples the slowness until the context ends: what takes long has another pace than the instants around it."""
    pace, ended = Pace([slowness()]), threading.Event()

    def sample() -> None:
        while not ended.wait(EVERY_S):
            pace.samples.append(slowness(ADDITIONS))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield pace
    finally:
        ended.set()
        sampler.join()
