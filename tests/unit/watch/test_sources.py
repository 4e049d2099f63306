"""Ranks that the source of this host remembers."""

from __future__ import annotations

import os

from hangdoc.evidence import Target
from hangdoc.system import procfs
from hangdoc.watch.sources import RESTARTS, _remembered

GONE = 1 << 22  # a PID that no process has


def target(pid: int, start: int, job: str = "elastic") -> Target:
    return Target(pid, start, "here", 0, job=job)


def test_the_dead_of_the_last_restarts_are_remembered() -> None:
    stat = procfs.stat(os.getpid())
    assert stat is not None
    living, absent = target(os.getpid(), stat.start_ticks), target(-1, 0)
    other = [target(GONE + 1, 5, "other")]
    dead = [target(GONE, start) for start in range(10)]
    kept = _remembered([absent, living, *other, *dead], [])
    assert kept == [absent, living, *other, *dead[10 - 2 * RESTARTS :]]  # of two that are not gone
