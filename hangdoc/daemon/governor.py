"""Keeps the daemon within its budget: measures its own cost, and makes rounds rarer before the budget is exceeded."""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hangdoc.system import procfs

CPU_SHARE = 0.01  # of a core, children included: the default budget
MEMORY_MIB = 80.0
WINDOW_S = 300.0  # over which the budget holds: a new job costs a second or two of looks
RECENT_S = 30.0  # a step down also needs a cost that goes on: the window remembers what is over
MAX_LEVEL = 4  # looks are 2 ** MAX_LEVEL times rarer
UP_S = 30.0  # between two steps down: the last one must show first
DOWN_SHARE = 0.4  # of the budget, recently: twice as many looks then still fit
DOWN_S = 90.0  # for this long, before looks become more frequent again
PAGE_MIB = resource.getpagesize() / 2**20


@dataclass(frozen=True, slots=True)
class Budget:
    """What hangdoc may cost the node."""

    cpu_share: float = CPU_SHARE  # of one core
    memory_mib: float = MEMORY_MIB


@dataclass(frozen=True, slots=True)
class Usage:
    """What this process has cost so far."""

    cpu_s: float  # its threads, and its children that have ended
    memory_mib: float  # resident now


def own_usage() -> Usage:
    """The cost of this process."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    pages = (procfs.text("/proc/self/statm") or "0 0").split()[1]
    return Usage(time.process_time() + children.ru_utime + children.ru_stime, int(pages) * PAGE_MIB)


class Governor:
    """Decides how much rarer rounds must be. `level` 0: as usual; each level halves the number of looks."""

    def __init__(self, budget: Budget, usage: Callable[[], Usage] = own_usage) -> None:
        self.budget = budget
        self.level = 0
        self.share = 0.0  # of one core, over the last WINDOW_S
        self.usage = Usage(0.0, 0.0)  # at the last measurement
        self._measure = usage
        self._past: deque[tuple[float, float]] = deque()  # monotonic time, CPU time
        self._stepped_s = float("-inf")  # when the level last changed
        self._cheap_s: float | None = None  # since when a lower level would fit

    @property
    def factor(self) -> int:
        """How many times rarer looks are than usual."""
        return 1 << self.level

    @property
    def over_memory(self) -> bool:
        return self.usage.memory_mib > self.budget.memory_mib

    def measure(self, now_s: float) -> int:
        """Measure, and change the level if it is time; returns the change: 1 steps down, -1 steps up again.

        What was spent before the first measurement, the start, does not count.
        """
        self.usage = usage = self._measure()
        self._past.append((now_s, usage.cpu_s))
        while len(self._past) > 2 and now_s - self._past[1][0] >= WINDOW_S:
            self._past.popleft()
        self.share = (usage.cpu_s - self._past[0][1]) / WINDOW_S
        return self._step(now_s, self._recent(now_s))

    def _recent(self, now_s: float) -> float:
        """The share over the last RECENT_S."""
        began_s, spent_s = next((past for past in reversed(self._past) if now_s - past[0] >= RECENT_S), self._past[0])
        return (self.usage.cpu_s - spent_s) / max(RECENT_S, now_s - began_s)

    def _step(self, now_s: float, recent: float) -> int:
        budget = self.budget.cpu_share
        self._cheap_s = None if recent > DOWN_SHARE * budget else now_s if self._cheap_s is None else self._cheap_s
        over = self.share > budget and recent > budget
        if over and self.level < MAX_LEVEL and now_s - self._stepped_s >= UP_S:
            change = 1
        elif self.level and self._cheap_s is not None and now_s - max(self._cheap_s, self._stepped_s) >= DOWN_S:
            change = -1
        else:
            return 0
        self.level += change
        self._stepped_s, self._cheap_s = now_s, None
        return change
