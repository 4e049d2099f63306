"""How slow this machine is at the moment: the two threads of a core, both busy, take almost twice the CPU time each."""

from __future__ import annotations

import time

MAX_SLOWDOWN = 12.0  # a limit is never stretched by more
QUIET_S = 0.02  # CPU time of a million additions where nothing else runs: docs/benchmarks.md


def slowness() -> float:
    """CPU time of a million additions now, in units of a quiet machine; from 1 to MAX_SLOWDOWN. For limits in CPU time.

    Ask before and after what is measured, and take the larger: a virtual machine may change its pace within seconds.
    """
    began, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number
    return min(MAX_SLOWDOWN, max(1.0, (time.process_time() - began) / QUIET_S))
