"""How long a rank waits for the others, over the parts of the window: by its threads' clocks, and by its stacks.

Asleep is what neither runs nor queues for a core; its stacks tell what it sleeps for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.call_path import is_library
from hangdoc.analysis.ranks.cpu_clocks import clocks, spent
from hangdoc.analysis.ranks.phases import WAITING
from hangdoc.analysis.ranks.process import process_looks
from hangdoc.analysis.ranks.progress import Look, looks_at
from hangdoc.evidence import Process

PARTS = 3  # of the window, in each of which steps must go by
MIN_WINDOW_S = 6.0
MIN_LOOKS = 8
SPINS = 0.7  # cores at least, while it waits: one that computes in between is now and then taken for waiting meanwhile
SLICE_S = 0.5  # the window in its finest parts: about a look each, two where a step takes as long


@dataclass(frozen=True, slots=True)
class Waiting:
    """Shares of the time one rank waited for others."""

    parts: tuple[float, ...]  # in each of PARTS
    slices: tuple[float, ...] | None  # in finer parts of a second and less; None where only its stacks tell
    spins: bool  # it waits with a thread on a core, as MPI does: its CPU clock tells nothing

    @property
    def share(self) -> float:
        return sum(self.parts) / len(self.parts)


def waiting(case: Case, key: Key) -> Waiting | None:
    """None where it was not seen enough."""
    looks, series = looks_at(case, key), process_looks(case, key)
    if len(looks) < MIN_LOOKS or len(series) < MIN_LOOKS or series[-1][0] - series[0][0] < MIN_WINDOW_S:
        return None
    start, end = looks[0].at_s, looks[-1].at_s
    edges = _edges(start, end, PARTS)
    looks_in = [[look for look in looks if first <= look.at_s <= last] for first, last in pairwise(edges)]
    if min(len(part) for part in looks_in) < 2:
        return None
    seen = tuple(sum(look.phase in WAITING for look in part) / len(part) for part in looks_in)
    known = dict(series)
    used = case.rank_facts["resources"][key]
    spins = _spins(looks, known) and (used.demand or used.cores_used or 0.0) >= SPINS * sum(seen) / PARTS
    asleep = None if spins else _Asleep.of(series)
    if asleep is None:
        return Waiting(seen, None, spins)
    for_others = _slept_for_others(looks, known, 1.0)
    finest = max(SLICE_S, min(2 * SLICE_S, 2.0 * (case.job_facts["progress"].period_s or 0.0)))
    slices = _edges(start, end, max(PARTS, int((end - start) / finest)))
    return Waiting(
        tuple(asleep.share(first, last) * for_others for first, last in pairwise(edges)),
        tuple(
            asleep.share(first, last) * _slept_for_others(_near(looks, first, last), known, for_others)
            for first, last in pairwise(slices)
        ),
        spins,
    )


def _edges(start: float, end: float, parts: int) -> list[float]:
    return [start + (end - start) * i / parts for i in range(parts + 1)]


@dataclass(frozen=True, slots=True)
class _Asleep:
    """The time in which no thread of a rank ran or wanted to, summed up to each look (s)."""

    at_s: tuple[float, ...]
    sum_s: tuple[float, ...]

    @classmethod
    def of(cls, series: Sequence[tuple[float, Process]]) -> _Asleep | None:
        """None where the kernel does not tell how long threads stand in run queues."""
        told, sums = clocks(series), [0.0]
        for pair in pairwise(told):
            time = spent(pair)
            if time.delay_s is None:
                return None
            sums.append(sums[-1] + max(0.0, time.seconds - time.asked_s))
        return cls(tuple(clock.at_s for clock in told), tuple(sums))

    def share(self, first: float, last: float) -> float:
        """Of the time between two instants."""
        return min(1.0, max(0.0, (self._until(last) - self._until(first)) / max(1e-9, last - first)))

    def _until(self, at_s: float) -> float:
        after = min(max(1, bisect_left(self.at_s, at_s)), len(self.at_s) - 1)
        (a, b), (x, y) = self.at_s[after - 1 : after + 1], self.sum_s[after - 1 : after + 1]
        return x + (y - x) * (at_s - a) / (b - a) if b > a else y


def _near(looks: Sequence[Look], first: float, last: float) -> list[Look]:
    """The looks between two instants, those just before and after too."""
    margin = SLICE_S / 2
    return [look for look in looks if first - margin <= look.at_s <= last + margin]


def _slept_for_others(looks: Sequence[Look], known: Mapping[float, Process], usual: float) -> float:
    """Of the looks that found no thread on a core, the share in which it waited for others; `usual` if none did."""
    asleep = [look for look in looks if look.at_s in known and not _on_core(known[look.at_s])]
    return sum(look.phase in WAITING for look in asleep) / len(asleep) if asleep else usual


def _on_core(process: Process) -> bool:
    """On a core, or kept from one by storage: in state D it waits for no rank."""
    return any(thread.state in "RD" for thread in process.threads if thread.tid == process.pid or thread.state == "D")


def _spins(looks: Sequence[Look], known: Mapping[float, Process]) -> bool:
    found = [known[look.at_s] for look in looks if look.phase in WAITING and look.at_s in known]
    return len(found) > 1 and sum(_on_core(process) for process in found) > len(found) / 2


def steps(case: Case, key: Key) -> bool:
    """Whether a rank came on in every part of the window: it is not one long wait."""
    looks = looks_at(case, key)
    start, end = looks[0].at_s, looks[-1].at_s
    moved = {
        min(PARTS - 1, int(PARTS * (after.at_s - start) / max(1e-9, end - start)))
        for after, came_on in zip(looks[1:], _came_on(case, key), strict=True)
        if came_on
    }
    return len(moved) == PARTS


def stood(case: Case, key: Key) -> float:
    """Share of the looks that found a rank at the same place of the same step as the look before."""
    came_on = _came_on(case, key)
    return came_on.count(False) / len(came_on) if came_on else 0.0


def _came_on(case: Case, key: Key) -> list[bool]:
    """Of each look but the first, whether it found the rank elsewhere than the look before."""
    known: dict[Key, list[bool]] = case.once("came on", dict)
    if key not in known:
        looks = looks_at(case, key)
        marks = {id(look.story): _mark(look) for look in {id(one.story): one for one in looks}.values()}
        known[key] = [marks[id(a.story)] != marks[id(b.story)] for a, b in pairwise(looks)]
    return known[key]


def _mark(look: Look) -> tuple[object, ...]:
    lines = tuple([(step.function, step.line) for step in look.story if not is_library(step.file)])
    numbers = tuple(v.number for step in look.story for _, v in sorted(step.variables.items()) if v.number is not None)
    return lines, numbers


class WaitingRanks:
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
