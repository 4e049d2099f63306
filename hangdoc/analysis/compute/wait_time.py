"""Share of the time that a rank waits for other ranks, in each part of the window.

The kernel's clocks give the time asleep: neither running nor runnable. The stacks give the reason for the sleep.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from hangdoc.analysis import Case, Key
from hangdoc.analysis.compute.resources import ResourcesFacts
from hangdoc.analysis.ranks.cpu_clocks import clocks, usage_between
from hangdoc.analysis.ranks.phases import WAITING
from hangdoc.analysis.ranks.process import process_looks
from hangdoc.analysis.ranks.progress import Look, ProgressJob, distinct, looks_at
from hangdoc.analysis.thresholds import PACE_LOOKS, SLICE_S, SPINS_WAITING, WATCHED_S
from hangdoc.evidence import Process

PARTS = 3  # equal parts of the window; a job that makes progress does so in each


@dataclass(frozen=True, slots=True)
class WaitTime:
    """Share of the time that one rank waited for other ranks, 0..1."""

    parts: tuple[float, ...]  # in each of PARTS
    slices: tuple[float, ...] | None  # in each slice of SLICE_S to 2 * SLICE_S; None: known from stacks only
    spins: bool  # it busy-waits, as MPI does, so CPU time does not tell waiting from work
    seen: tuple[float, ...]  # parts, by the stacks alone

    @property
    def share(self) -> float:
        return sum(self.parts) / len(self.parts)


def wait_time(case: Case, key: Key) -> WaitTime | None:
    """Wait time of one rank. None: too few looks or too short a window."""
    every, series = looks_at(case, key), process_looks(case, key)
    looks = _watched(every)
    if len(looks) < len(every):
        series = [one for one in series if one[0] >= looks[0].at_s]
    if len(looks) < PACE_LOOKS or len(series) < PACE_LOOKS or series[-1][0] - series[0][0] < WATCHED_S:
        return None
    start, end = looks[0].at_s, looks[-1].at_s
    edges = _edges(start, end, PARTS)
    looks_in = [[look for look in looks if first <= look.at_s <= last] for first, last in pairwise(edges)]
    if min(len(part) for part in looks_in) < 2:
        return None
    seen = tuple(sum(look.phase in WAITING for look in part) / len(part) for part in looks_in)
    processes_at = dict(series)
    used = case.facts(ResourcesFacts)[key]
    spins = _spins(looks, processes_at) and (used.demand or used.cores_used or 0.0) >= SPINS_WAITING * sum(seen) / PARTS
    asleep = None if spins else _Asleep.of(series)
    if asleep is None:
        return WaitTime(seen, None, spins, seen)
    for_others = _waiting_share_of_sleep(looks, processes_at, 1.0)
    finest = max(SLICE_S, min(2 * SLICE_S, 2.0 * (case.job(ProgressJob).period_s or 0.0)))
    slices = _edges(start, end, max(PARTS, int((end - start) / finest)))
    return WaitTime(
        tuple(asleep.share(first, last) * for_others for first, last in pairwise(edges)),
        tuple(
            asleep.share(first, last) * _waiting_share_of_sleep(_near(looks, first, last), processes_at, for_others)
            for first, last in pairwise(slices)
        ),
        spins,
        seen,
    )


def wait_times(case: Case) -> dict[Key, WaitTime]:
    """Wait times that compare: if the clocks of one rank do not tell (it busy-waits), all are from the stacks.

    A rank may sleep a quarter of the time and stand in collectives for most of it, as others do: in FSDP, gloo's copies
    count as work by the clocks, and as a wait by the stacks.
    """
    waits = {key: found for key in case.ranks if (found := wait_time(case, key))}
    if any(wait.slices is None for wait in waits.values()):
        return {key: replace(wait, parts=wait.seen, slices=None) for key, wait in waits.items()}
    return waits


def _watched(looks: Sequence[Look]) -> Sequence[Look]:
    """The looks without the first if that took long: on a busy host, sources and models are read for seconds."""
    if len(looks) > 1 and looks[1].at_s - looks[0].at_s > (looks[-1].at_s - looks[0].at_s) / PARTS:
        return looks[1:]
    return looks


def _edges(start: float, end: float, parts: int) -> list[float]:
    return [start + (end - start) * i / parts for i in range(parts + 1)]


@dataclass(frozen=True, slots=True)
class _Asleep:
    """Cumulative time, in seconds, that the rank's threads were neither running nor runnable."""

    at_s: tuple[float, ...]  # instant of each look
    sum_s: tuple[float, ...]  # time asleep up to that look

    @classmethod
    def of(cls, series: Sequence[tuple[float, Process]]) -> _Asleep | None:
        """None: the kernel does not report run-queue delay."""
        readings, sums = clocks(series), [0.0]
        for pair in pairwise(readings):
            time = usage_between(pair)
            if time.delay_s is None:
                return None
            sums.append(sums[-1] + max(0.0, time.seconds - time.demand_s))
        return cls(tuple(clock.at_s for clock in readings), tuple(sums))

    def share(self, first: float, last: float) -> float:
        """Share of the time between two instants."""
        return min(1.0, max(0.0, (self._until(last) - self._until(first)) / max(1e-9, last - first)))

    def _until(self, at_s: float) -> float:
        after = min(max(1, bisect_left(self.at_s, at_s)), len(self.at_s) - 1)
        (a, b), (x, y) = self.at_s[after - 1 : after + 1], self.sum_s[after - 1 : after + 1]
        return x + (y - x) * (at_s - a) / (b - a) if b > a else y


def _near(looks: Sequence[Look], first: float, last: float) -> list[Look]:
    """The looks between two instants, with a margin of half a slice."""
    margin = SLICE_S / 2
    return [look for look in looks if first - margin <= look.at_s <= last + margin]


def _waiting_share_of_sleep(looks: Sequence[Look], processes_at: Mapping[float, Process], default: float) -> float:
    """Share of the looks at a sleeping rank that found it waiting for other ranks; `default` if it never slept."""
    asleep = [look for look in looks if look.at_s in processes_at and not _on_core(look, processes_at[look.at_s])]
    return sum(look.phase in WAITING for look in asleep) / len(asleep) if asleep else default


def _on_core(look: Look, process: Process) -> bool:
    """Its thread on a core, or any thread in state D: a rank blocked on storage waits for no other rank."""
    own = process.pid, look.thread.stack.tid  # in a container, the main thread's TID is another one
    return any(thread.state in "RD" for thread in process.threads if thread.tid in own or thread.state == "D")


def _spins(looks: Sequence[Look], processes_at: Mapping[float, Process]) -> bool:
    """Most looks that found it waiting also found it on a core."""
    waiting = [look for look in looks if look.phase in WAITING and look.at_s in processes_at]
    return len(waiting) > 1 and sum(_on_core(look, processes_at[look.at_s]) for look in waiting) > len(waiting) / 2


def moves_throughout(case: Case, key: Key) -> bool:
    """True if the rank moved in every part of the window, so its wait is not one long wait."""
    every = looks_at(case, key)
    looks = _watched(every)
    start, end = looks[0].at_s, looks[-1].at_s
    parts_moved = {
        min(PARTS - 1, int(PARTS * (after.at_s - start) / max(1e-9, end - start)))
        for after, moved in zip(looks[1:], _moved(case, key)[len(every) - len(looks) :], strict=True)
        if moved
    }
    return len(parts_moved) == PARTS


def unmoved_share(case: Case, key: Key) -> float:
    """Share of the looks that found the rank at the same place of the same step as the look before."""
    moved = _moved(case, key)
    return moved.count(False) / len(moved) if moved else 0.0


def _moved(case: Case, key: Key) -> list[bool]:
    """For each look after the first: the rank is at another place or step than in the look before."""
    known: dict[Key, list[bool]] = case.once("moved", dict)
    if key not in known:
        looks = looks_at(case, key)
        positions = {look.thread: _position(look) for look in distinct(looks)}
        known[key] = [positions[a.thread] != positions[b.thread] for a, b in pairwise(looks)]
    return known[key]


def _position(look: Look) -> tuple[object, ...]:
    """Lines of the user's own code, and the numbers in all frames."""
    lines = tuple([look.path.lines[depth] for depth in look.path.own])
    numbers = tuple(v.number for step in look.thread for _, v in sorted(step.variables.items()) if v.number is not None)
    return lines, numbers


class WaitingRanks:
    """Number of waiting ranks over time.

    Time counts from each rank's first look, because clocks of different hosts are not comparable.
    """

    def __init__(self, ranks: Iterable[Sequence[Look]]) -> None:
        initial = 0
        changes: list[tuple[float, int]] = []
        for looks in ranks:
            initial += bool(looks) and looks[0].phase in WAITING
            for before, after in pairwise(looks):
                if (before.phase in WAITING) != (after.phase in WAITING):  # the change is taken to be halfway between
                    middle = (before.at_s + after.at_s) / 2 - looks[0].at_s
                    changes.append((middle, 1 if after.phase in WAITING else -1))
        changes.sort()
        self.times = [at for at, _ in changes]
        self.counts = list(accumulate((by for _, by in changes), initial=initial))

    def at(self, after_s: float) -> int:
        """Number of ranks whose look nearest to that time found them waiting."""
        return self.counts[bisect_left(self.times, after_s)]
