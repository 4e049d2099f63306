"""What holds of all ranks but one, without asking each of the others for each of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from hangdoc.analysis.ranks.phases import WAITING
from hangdoc.analysis.ranks.progress import Look


class Values:
    """A number of each rank."""

    def __init__(self, values: Iterable[float]) -> None:
        self.sorted = sorted(values)

    def median(self, but: float | None = None) -> float:
        """Of all but one that is `but`; raises IndexError where none is left."""
        skipped = len(self.sorted) if but is None else bisect_left(self.sorted, but)
        count = len(self.sorted) - (but is not None)
        low, high = (self.sorted[i + (i >= skipped)] for i in ((count - 1) // 2, count // 2))
        return low if count % 2 else (low + high) / 2

    def up_to(self, limit: float) -> int:
        """How many do not exceed it."""
        return bisect_right(self.sorted, limit)


class Waiters:
    """How many ranks wait, at the times since each was looked at first: clocks of hosts are not compared."""

    def __init__(self, ranks: Iterable[Sequence[Look]]) -> None:
        at_first = 0
        changes: list[tuple[float, int]] = []
        for looks in ranks:
            at_first += bool(looks) and _waits(looks[0])
            for before, after in pairwise(looks):
                if _waits(before) != _waits(after):  # from half way on the later look is the nearer one
                    middle = (before.at_s + after.at_s) / 2 - looks[0].at_s
                    changes.append((middle, 1 if _waits(after) else -1))
        changes.sort()
        self.times = [at for at, _ in changes]
        self.counts = list(accumulate((by for _, by in changes), initial=at_first))

    def at(self, after_s: float) -> int:
        """By the look at each that is nearest to that time."""
        return self.counts[bisect_left(self.times, after_s)]


def _waits(look: Look) -> bool:
    return look.phase in WAITING
