"""What a rank's threads got and waited for of the CPU between two instants, from the kernel's clocks of each thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.analysis.stack import of_harness
from hangdoc.evidence import Process, ThreadCpu

_RAN_S = 0.001


@dataclass(frozen=True, slots=True)
class Clock:
    """The threads' clocks at an instant, by thread (s, since each started)."""

    at_s: float
    cpu_s: Mapping[int, float]
    delay_s: Mapping[int, float]  # in a run queue; without the threads of which the kernel does not tell


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU time that a rank's threads got, and waited for in run queues, between two instants (s)."""

    seconds: float
    cpu_s: float
    delay_s: float | None
    by_thread: Mapping[int, float]  # both together

    @property
    def asked_s(self) -> float:
        return self.cpu_s + (self.delay_s or 0.0)


def processes(case: Case, key: Key) -> list[tuple[float, Process]]:
    """A rank's records of probe `cpu` with their instants, oldest first."""
    known: dict[Key, list[tuple[float, Process]]] = case.once("processes", dict)
    if key not in known:
        known[key] = [(at, record) for at, record in case.series(key, "cpu") if isinstance(record, Process)]
    return known[key]


def clocks(series: Sequence[tuple[float, Process]]) -> list[Clock]:
    """The clocks at each instant.

    The threads of a process group are left out: they wake for every message, and a busy host delays them all. The
    kernel adds a wait in a run queue when it ends; a thread that stays runnable with clocks that stand is in one.
    """
    found: list[Clock] = []
    before: Mapping[int, ThreadCpu] = {}
    queued_s: dict[int, float] = {}
    for at_s, process in series:
        threads = [thread for thread in process.threads if not of_harness(thread.comm)]
        runnable = {thread.tid: thread for thread in threads if thread.state == "R"}
        stood = [tid for tid, new in runnable.items() if (old := before.get(tid)) and _ran_s(old, new) < _RAN_S]
        queued_s = {tid: queued_s.get(tid, 0.0) + at_s - found[-1].at_s for tid in stood}
        delays = {t.tid: t.run_delay_s for t in threads if t.run_delay_s is not None}
        delays.update((tid, delays[tid] + more) for tid, more in queued_s.items() if tid in delays)
        found.append(Clock(at_s, {thread.tid: thread.cpu_s for thread in threads}, delays))
        before = runnable
    return found


def _ran_s(before: ThreadCpu, after: ThreadCpu) -> float:
    return after.cpu_s - before.cpu_s + (after.run_delay_s or 0.0) - (before.run_delay_s or 0.0)


def spent(found: Sequence[Clock]) -> Spent:
    """What was spent between the first of these instants and the last; threads that ended in between are left out."""
    if len(found) < 2:
        return Spent(0.0, 0.0, None, {})
    first, last = found[0], found[-1]
    cpu_s, delay_s = _grown(first.cpu_s, last.cpu_s), _grown(first.delay_s, last.delay_s)
    whole = {tid: time + delay_s.get(tid, 0.0) for tid, time in cpu_s.items()}
    return Spent(last.at_s - first.at_s, sum(cpu_s.values()), sum(delay_s.values()) if delay_s else None, whole)


def _grown(before: Mapping[int, float], now: Mapping[int, float]) -> dict[int, float]:
    return {tid: max(0.0, value - before.get(tid, 0.0)) for tid, value in now.items()}
