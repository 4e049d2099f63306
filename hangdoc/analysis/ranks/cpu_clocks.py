"""CPU time and run-queue delay of a rank's threads between two looks, from the kernel's counters of each thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hangdoc.analysis.fast_dataclass import fast_dataclass
from hangdoc.analysis.ranks.process_context import of_harness
from hangdoc.analysis.thresholds import RAN_S
from hangdoc.evidence import Process, ThreadCpu


@fast_dataclass(frozen=True, slots=True)
class CpuClocks:
    """CPU counters of a rank at one look, by thread id (s since the thread started)."""

    at_s: float
    cpu_s: Mapping[int, float]
    delay_s: Mapping[int, float]  # time in a run queue; only threads for which the kernel reports it


@fast_dataclass(frozen=True, slots=True)
class CpuUsage:
    """CPU time that a rank's threads used, and their time in run queues, between two looks (s)."""

    seconds: float  # between the looks
    cpu_s: float
    delay_s: float | None  # time in run queues; None: not reported by the kernel
    by_thread: Mapping[int, float]  # CPU time plus delay, by thread id

    @property
    def demand_s(self) -> float:
        """CPU time the threads wanted: used, plus time in run queues."""
        return self.cpu_s + (self.delay_s or 0.0)


NO_USAGE = CpuUsage(0.0, 0.0, None, {})


def clocks(series: Sequence[tuple[float, Process]]) -> list[CpuClocks]:
    """The counters at each look."""
    return [_clock(series, at) for at in range(len(series))]


def usage_over(series: Sequence[tuple[float, Process]]) -> CpuUsage:
    """CPU usage between the first and the last look of a series."""
    return usage_between([_clock(series, 0), _clock(series, len(series) - 1)]) if len(series) > 1 else NO_USAGE


def _clock(series: Sequence[tuple[float, Process]], number: int) -> CpuClocks:
    """The counters at one look.

    Without the process group's own threads: they wake for every message, and a busy host delays them all. The kernel
    counts a wait in a run queue only when it ends; a thread that stays runnable with unchanged counters is in one now.
    """
    at_s, process = series[number]
    threads = [thread for thread in process.threads if not of_harness(thread.comm)]
    delays = {t.tid: t.run_delay_s for t in threads if t.run_delay_s is not None}
    for tid, queued_s in _queued_s(series, number, threads).items():
        if tid in delays:
            delays[tid] += queued_s
    return CpuClocks(at_s, {thread.tid: thread.cpu_s for thread in threads}, delays)


def _queued_s(series: Sequence[tuple[float, Process]], number: int, threads: Sequence[ThreadCpu]) -> dict[int, float]:
    """Time in the run queue so far, by thread id: since the first look that saw the thread runnable and not running."""
    at_s = series[number][0]
    still = {thread.tid: thread for thread in threads if thread.state == "R"}
    if not still:
        return {}
    since = dict.fromkeys(still, at_s)
    for before_s, process in reversed(series[:number]):
        runnable = {t.tid: t for t in process.threads if t.state == "R"}
        still = {tid: old for tid, new in still.items() if (old := runnable.get(tid)) and _ran_s(old, new) < RAN_S}
        since.update(dict.fromkeys(still, before_s))
        if not still:
            break
    return {tid: at_s - first_s for tid, first_s in since.items()}


def _ran_s(before: ThreadCpu, after: ThreadCpu) -> float:
    return after.cpu_s - before.cpu_s + (after.run_delay_s or 0.0) - (before.run_delay_s or 0.0)


def usage_between(found: Sequence[CpuClocks]) -> CpuUsage:
    """CPU usage between the first and the last of these counters, without threads that ended in between."""
    if len(found) < 2:
        return NO_USAGE
    first, last = found[0], found[-1]
    cpu_s = delay_s = 0.0
    by_thread: dict[int, float] = {}
    for tid, now in last.cpu_s.items():
        by_thread[tid] = ran = max(0.0, now - first.cpu_s.get(tid, 0.0))
        cpu_s += ran
        if tid in last.delay_s:
            queued = max(0.0, last.delay_s[tid] - first.delay_s.get(tid, 0.0))
            delay_s += queued
            by_thread[tid] += queued
    return CpuUsage(last.at_s - first.at_s, cpu_s, delay_s if last.delay_s else None, by_thread)
