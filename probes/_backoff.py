"""Processes of which a look took long and told nothing are left alone, for longer each time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

LONG_S = 1.0  # a look that fails sooner costs little
PAUSES_S = (0.0, 5.0, 10.0, 20.0, 40.0, 60.0)  # after so many looks in a row; the first may be a busy host's fault

Process = tuple[int, int]  # PID and start time


@dataclass(frozen=True, slots=True)
class _Failed:
    error: Exception
    times: int
    until_s: float


class Backoff:
    """Which processes are left alone, and what the last look at them said."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._failed: dict[Process, _Failed] = {}
        self._now = now

    def keep(self, processes: Collection[Process]) -> None:
        """Forget all others."""
        self._failed = {process: failed for process, failed in self._failed.items() if process in processes}

    def left_alone(self, process: Process) -> Exception | None:
        """Why the process is not looked at now; None where it may be."""
        failed = self._failed.get(process)
        return failed.error if failed and self._now() < failed.until_s else None

    def note(self, process: Process, took_s: float, outcome: object) -> None:
        """What a look at it came to."""
        if not isinstance(outcome, Exception) or took_s < LONG_S:
            self._failed.pop(process, None)
            return
        times = self._failed[process].times + 1 if process in self._failed else 1
        pause_s = PAUSES_S[min(times, len(PAUSES_S)) - 1]
        self._failed[process] = _Failed(outcome, times, self._now() + pause_s)
