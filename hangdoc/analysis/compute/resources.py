"""Analysis `resources`: the CPU and memory that each rank demanded over the window, and what it received.

A thread is on a core, in a run queue (schedstat counts both in nanoseconds), or asleep. Time on a core plus time in a
run queue is its `demand`. Throttling by a cgroup shows only in the cgroup's cpu.stat.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.fast_dataclass import fast_dataclass
from hangdoc.analysis.ranks.cpu_clocks import usage_over
from hangdoc.analysis.ranks.process import process_looks
from hangdoc.analysis.thresholds import BUSY_THREAD, IDLE_CORES, PAGE_READ_S, RATE_WINDOW_S
from hangdoc.evidence import Environ, Host, Process
from hangdoc.evidence.resources import Cgroup, CpuLimit, MemoryLimit, Neighbour, Neighbours
from hangdoc.formatting import fold_ranks

THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

_STATE = attrgetter("state")

Fields = dict[str, Any]  # a subset of the fields of ResourcesFacts


@fast_dataclass(frozen=True, slots=True)
class ResourcesFacts:
    """One rank over the window. Shares are 0..1, rates per second. None: not seen, or seen only once."""

    window_s: float | None = None  # length of the window, seconds
    cores_used: float | None = None  # CPU time / window, in cores
    user_cores: float | None = None  # the same for user time only, without system time
    demand: float | None = None  # cores demanded: time on a core plus time in a run queue
    delay_share: float | None = None  # share of the demanded CPU time spent in a run queue
    busy_threads: int | None = None  # threads that demanded at least BUSY_THREAD
    cores: int | None = None  # number of cores in its CPU affinity
    core_list: str | None = None  # those cores: "0-1"
    bound: bool | None = None  # its affinity has fewer cores than the host
    crowd: int | None = None  # ranks on this host with exactly this affinity, including itself
    nice: int | None = None  # its niceness
    nicer: int | None = None  # its niceness minus the lowest niceness placement the job's ranks
    throttled_share: float | None = None  # share of the time that its cgroup's CPU quota throttled it
    throttled_periods: float | None = None  # share of the CPU quota's periods with throttling
    cpu_limit: float | None = None  # CPU quota in cores; of several limits, the one that throttles most
    cpu_limit_file: str | None = None  # file of that limit
    memory_limit: int | None = None  # bytes; of several limits, the one nearest to its usage
    memory_limit_file: str | None = None  # file of that limit
    memory_used: int | None = None  # bytes charged to that limit
    memory_full: float | None = None  # memory_used / memory_limit
    memory_hits: float | None = None  # times per second that usage hit the limit
    refaults: float | None = None  # pages per second read again soon after reclaim
    major_faults: float | None = None  # pages per second that the rank itself waited for
    faulting: bool | None = None  # its major faults account for its time in state D: PAGE_READ_S each at most
    memory_stall: float | None = None  # share of the time that a task was stalled on memory (PSI "some")
    memory_stall_of: str | None = None  # scope of memory_stall: "its cgroup" or "the host"
    thread_setting: str | None = None  # "OMP_NUM_THREADS=16"
    swapped_bytes: int | None = None
    oom_kills: int | None = None  # OOM kills under its memory limits, since the cgroup was created
    blocked_share: float | None = None  # share of the samples with a thread in uninterruptible sleep (state D)
    neighbour: str | None = None  # busiest process on its cores outside the job: "python x.py (pid 7) and 2 more"
    neighbour_cores: float | None = None  # cores of its affinity used by processes outside the job
    neighbour_nice: int | None = None  # niceness of the busiest one


@dataclass(frozen=True, slots=True)
class ResourcesJob:
    """The job's ranks on the most oversubscribed host. None: not seen."""

    demand_per_core: float | None = None  # cores demanded by the ranks / cores in their affinities
    busy_threads: int | None = None  # sum over the ranks
    cores: int | None = None  # number of cores in their affinities
    host_cores: int | None = None
    delay_share: float | None = None  # median over the ranks


class ResourcesAnalysis(Analysis[ResourcesFacts, ResourcesJob]):
    rank_facts = ResourcesFacts
    job_facts = ResourcesJob
    seen_by = ("cpu",)

    def derive(self, case: Case) -> tuple[dict[Key, ResourcesFacts], ResourcesJob]:
        hosts = {shot.host: shot.records["host"] for shot in case.history if "host" in shot.records}
        neighbours = {host: _neighbours(case, host) for host in {host for host, _ in case.ranks}}
        placement = JobPlacement.of(case)
        facts = {key: _facts(case, key, hosts.get(key[0]), neighbours[key[0]], placement) for key in case.ranks}
        by_host: dict[str, list[ResourcesFacts]] = {}
        for key, rank in facts.items():
            by_host.setdefault(key[0], []).append(rank)
        jobs = [_job(ranks, hosts.get(host)) for host, ranks in by_host.items()]
        worst = max(jobs, key=lambda job: job.demand_per_core or 0.0, default=ResourcesJob())
        return facts, worst


@dataclass(frozen=True, slots=True)
class JobPlacement:
    """Niceness and affinity over all living ranks of the job."""

    least_nice: int  # lowest niceness
    crowds: Mapping[tuple[str, tuple[int, ...]], int]  # host and affinity -> number of ranks with it

    @classmethod
    def of(cls, case: Case) -> JobPlacement:
        alive = (key for key in case.ranks if case.ranks[key].alive is not False)
        newest = [(key[0], process) for key in alive if isinstance(process := case.record(key, "cpu"), Process)]
        crowds = Counter((host, process.affinity) for host, process in newest if process.affinity)
        return cls(min((process.nice for _, process in newest if process.nice is not None), default=0), crowds)


def _facts(
    case: Case, key: Key, host: object, neighbours: Sequence[Neighbours], placement: JobPlacement
) -> ResourcesFacts:
    fields = _process(case, key, host, placement)
    if "window_s" in fields:
        fields.update(_cgroup(case, key))
        faults = fields.get("major_faults")
        fields["faulting"] = None if faults is None else 0 < faults >= fields["blocked_share"] / PAGE_READ_S
    if len(neighbours) > 1:
        fields.update(_neighbour(case, key, neighbours))
    return ResourcesFacts(**fields)


def _process(case: Case, key: Key, host: object, placement: JobPlacement) -> Fields:
    series = process_looks(case, key)
    if not series or case.ranks[key].alive is False:
        return {}
    newest = series[-1][1]
    cores, nice = newest.affinity, newest.nice
    nicer = None if nice is None else nice - placement.least_nice
    fields: Fields = {"nice": nice, "nicer": nicer, "thread_setting": _thread_setting(case.record(key, "environ"))}
    if cores:
        fields |= {"cores": len(cores), "core_list": _folded(cores), "crowd": placement.crowds[key[0], cores]}
        fields["bound"] = len(cores) < host.cores if isinstance(host, Host) else None
    total = usage_over(series)
    if total.seconds < RATE_WINDOW_S:
        return fields
    fields |= {
        "window_s": total.seconds,
        "cores_used": total.cpu_s / total.seconds,
        "user_cores": _user_s(series) / total.seconds if newest.system_s is not None else None,
        "demand": total.demand_s / total.seconds if total.delay_s is not None else None,
        "delay_share": total.delay_s / total.demand_s if total.delay_s is not None and total.demand_s > 0.0 else None,
        "busy_threads": sum([part >= BUSY_THREAD * total.seconds for part in total.by_thread.values()]),
        "blocked_share": sum(["D" in map(_STATE, process.threads) for _, process in series]) / len(series),
    }
    return fields


def _user_s(series: Sequence[tuple[float, Process]]) -> float:
    first, last = series[0][1], series[-1][1]
    return max(0.0, last.cpu_s - (last.system_s or 0.0) - first.cpu_s + (first.system_s or 0.0))


@lru_cache(maxsize=256)
def _folded(cores: tuple[int, ...]) -> str:
    return fold_ranks(cores)


def _thread_setting(environ: object) -> str | None:
    variables = environ.variables if isinstance(environ, Environ) else {}
    return ", ".join([f"{name}={variables[name]}" for name in THREAD_SETTINGS if name in variables]) or None


# --- control groups -------------------------------------------------------------------------------


def _cgroup(case: Case, key: Key) -> Fields:
    series = [(at, record) for at, record in case.series(key, "cgroup") if isinstance(record, Cgroup)]
    if len(series) < 2:
        return {}
    seconds = series[-1][0] - series[0][0]
    if seconds < RATE_WINDOW_S:
        return {}
    first, last = series[0][1], series[-1][1]
    stall = _grown(first.memory_stall_s, last.memory_stall_s)
    return {
        **_cpu(first, last, seconds),
        **_memory(first, last, seconds),
        "major_faults": _rate(first.major_faults, last.major_faults, seconds),
        "memory_stall": stall / seconds if stall is not None else None,
        "memory_stall_of": "the host" if last.pressure_group == "/" else "its cgroup",
        "swapped_bytes": last.swapped_bytes,
    }


def _cpu(first: Cgroup, last: Cgroup, seconds: float) -> Fields:
    before = {limit.file: limit for limit in first.cpu}
    shares = [(limit, *_throttled(before[limit.file], limit, seconds)) for limit in last.cpu if limit.file in before]
    if not shares:
        return {}
    limit, share, periods = max(shares, key=lambda item: (item[1] or 0.0, -item[0].cores))
    return {
        "throttled_share": share,
        "throttled_periods": periods,
        "cpu_limit": limit.cores,
        "cpu_limit_file": limit.file,
    }


def _throttled(before: CpuLimit, now: CpuLimit, seconds: float) -> tuple[float | None, float | None]:
    """Share of the time, and of the quota's periods. The kernel sums the time over CPUs, so it can exceed wall time."""
    kept_s = _grown(before.throttled_s, now.throttled_s)
    periods, hit = _grown(before.periods, now.periods), _grown(before.throttled_periods, now.throttled_periods)
    share = min(1.0, kept_s / seconds) if kept_s is not None else None
    return share, hit / periods if periods and hit is not None else None


def _memory(first: Cgroup, last: Cgroup, seconds: float) -> Fields:
    if not last.memory:
        return {}
    limit = max(last.memory, key=lambda limit: (limit.used_bytes or 0) / max(1, limit.bytes))
    before = next((old for old in first.memory if old.file == limit.file), MemoryLimit(limit.file, limit.bytes))
    kills = [limit.oom_kills for limit in last.memory if limit.oom_kills is not None]
    return {
        "memory_limit": limit.bytes,
        "memory_limit_file": limit.file,
        "memory_used": limit.used_bytes,
        "memory_full": limit.used_bytes / limit.bytes if limit.used_bytes is not None and limit.bytes else None,
        "memory_hits": _rate(before.hits, limit.hits, seconds),
        "refaults": _rate(before.refaults, limit.refaults, seconds),
        "oom_kills": max(kills, default=None),
    }


def _grown(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else max(0.0, now - before)


def _rate(before: float | None, now: float | None, seconds: float) -> float | None:
    grown = _grown(before, now)
    return None if grown is None else grown / seconds


# --- neighbours: processes outside the job --------------------------------------------------------


def _neighbours(case: Case, host: str) -> list[Neighbours]:
    """Records of the processes outside the job on a host, oldest first."""
    shots = [shot.records.get("neighbours") for shot in case.shots(host)]
    return [record for record in shots if isinstance(record, Neighbours)]


def _neighbour(case: Case, key: Key, seen: Sequence[Neighbours]) -> Fields:
    """CPU time that processes outside the job took on this rank's cores, averaged over the looks."""
    series = process_looks(case, key)
    own_cores = set(series[-1][1].affinity or ()) if series else set()
    total: dict[int, float] = defaultdict(float)
    known: dict[int, Neighbour] = {}
    for record in seen:
        for process in record.processes:
            if not own_cores or process.core is None or process.core in own_cores:
                total[process.pid] += process.cores
                known[process.pid] = process
    if not total:
        return {}
    busiest = known[max(total, key=lambda pid: total[pid])]
    named = f"{busiest.command} (pid {busiest.pid})"
    more = sum(taken >= IDLE_CORES * len(seen) for taken in total.values()) - 1
    return {
        "neighbour": f"{named} and {more} more" if more > 0 else named,
        "neighbour_cores": sum(total.values()) / len(seen),
        "neighbour_nice": busiest.nice,
    }


def _job(ranks: Sequence[ResourcesFacts], host: object) -> ResourcesJob:
    """Totals over the ranks of one host."""
    demands = [rank.demand for rank in ranks if rank.demand is not None]
    lists = {rank.core_list for rank in ranks if rank.core_list}
    cores = len({core for text in lists for core in _unfold(text)}) or None
    delays = sorted(rank.delay_share for rank in ranks if rank.delay_share is not None)
    return ResourcesJob(
        demand_per_core=sum(demands) / cores if demands and cores else None,
        busy_threads=sum(rank.busy_threads or 0 for rank in ranks) if demands else None,
        cores=cores,
        host_cores=host.cores if isinstance(host, Host) else None,
        delay_share=delays[len(delays) // 2] if delays else None,
    )


@lru_cache(maxsize=256)
def _unfold(text: str) -> tuple[int, ...]:
    """The cores of "0-2,5"."""
    ends = [part.split("-") for part in text.split(",")]
    return tuple([core for end in ends for core in range(int(end[0]), int(end[-1]) + 1)])


ANALYSIS = ResourcesAnalysis()
