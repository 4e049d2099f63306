"""Analysis `resources`: what CPU and memory each rank asked for, over the whole window, and what it got.

A thread is either on a core, in a run queue (schedstat counts both to the nanosecond), or asleep. Run queue and core
together are what it asked for: `demand`. A cgroup's throttling shows in its cpu.stat only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

from hangdoc.analysis import Case, Key
from hangdoc.analysis.fast_dataclass import light
from hangdoc.analysis.ranks.cpu_clocks import over
from hangdoc.analysis.ranks.process import process_looks
from hangdoc.evidence import Environ, Host, Process
from hangdoc.evidence.resources import Cgroup, CpuLimit, MemoryLimit, Neighbour, Neighbours
from hangdoc.formatting import fold_ranks

BUSY_THREAD = 0.1  # cores asked for by a thread that counts as one that runs
THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
BUSY_NEIGHBOUR = 0.05  # cores used by a process that is worth counting
MIN_WINDOW_S = 2.0  # counters over less say nothing

_STATE = attrgetter("state")

Fields = dict[str, Any]  # some of those of ResourcesFacts


@light(frozen=True, slots=True)
class ResourcesFacts:
    """One rank over the window; shares are 0..1, rates are per second; None: not seen, or seen once only."""

    window_s: float | None = None
    cores_used: float | None = None
    user_cores: float | None = None  # the same, without what the kernel took for it
    demand: float | None = None  # cores asked for: used, and waited for in a run queue
    delay_share: float | None = None  # of the CPU time it asked for, the part it stood in a run queue
    busy_threads: int | None = None  # threads that asked for a tenth of a core and more
    cores: int | None = None  # it may run on
    core_list: str | None = None  # "0-1"
    bound: bool | None = None  # to fewer cores than the host has
    crowd: int | None = None  # ranks of this host that may run on none but these cores, itself included
    nice: int | None = None
    nicer: int | None = None  # by how much its niceness exceeds the lowest of the job's ranks
    throttled_share: float | None = None  # of the time its cgroup was kept off the CPUs
    throttled_periods: float | None = None  # share of the quota's periods in which that happened
    cpu_limit: float | None = None  # cores
    cpu_limit_file: str | None = None
    memory_limit: int | None = None  # bytes; the limit nearest to what is used
    memory_limit_file: str | None = None
    memory_used: int | None = None
    memory_full: float | None = None  # used / limit
    memory_hits: float | None = None  # times a second that the limit was hit
    refaults: float | None = None  # pages a second read again soon after they were reclaimed
    major_faults: float | None = None  # pages a second that the rank itself had to wait for
    memory_stall: float | None = None  # share of the time some task waited for memory (PSI) ...
    memory_stall_of: str | None = None  # ... of its group, or of the host
    thread_setting: str | None = None  # "OMP_NUM_THREADS=16"
    swapped_bytes: int | None = None
    oom_kills: int | None = None  # under its memory limits, ever
    blocked_share: float | None = None  # samples in which a thread was in uninterruptible sleep
    neighbour: str | None = (
        None  # the busiest process on its cores that is not of the job: "python x.py (pid 7) and 2 more"
    )
    neighbour_cores: float | None = None  # that all such processes used of its cores
    neighbour_nice: int | None = None  # of the busiest


@dataclass(frozen=True, slots=True)
class ResourcesJob:
    """The job's ranks on the host where it is worst; None: not seen."""

    demand_per_core: float | None = None  # cores asked for by the ranks / cores they may run on
    busy_threads: int | None = None
    cores: int | None = None  # they may run on
    host_cores: int | None = None
    delay_share: float | None = None  # median over the ranks


@dataclass(slots=True)
class ResourcesAnalysis:
    name: str = "resources"
    order: int = 8
    rank_facts: type | None = ResourcesFacts
    job_facts: type | None = ResourcesJob

    def derive(self, case: Case) -> tuple[dict[Key, ResourcesFacts], ResourcesJob]:
        hosts = {shot.host: shot.records["host"] for shot in case.history if "host" in shot.records}
        beside = {host: _beside(case, host) for host in {host for host, _ in case.ranks}}
        among = JobPlacement.of(case)
        facts = {key: _facts(case, key, hosts.get(key[0]), beside[key[0]], among) for key in case.ranks}
        by_host: dict[str, list[ResourcesFacts]] = {}
        for key, one in facts.items():
            by_host.setdefault(key[0], []).append(one)
        jobs = [_job(ranks, hosts.get(host)) for host, ranks in by_host.items()]
        worst = max(jobs, key=lambda job: job.demand_per_core or 0.0, default=ResourcesJob())
        return facts, worst


@dataclass(frozen=True, slots=True)
class JobPlacement:
    """What only the ranks together tell."""

    least_nice: int
    crowds: Mapping[tuple[str, tuple[int, ...]], int]  # host and cores: how many ranks may run on none but these

    @classmethod
    def of(cls, case: Case) -> JobPlacement:
        alive = (key for key in case.ranks if case.ranks[key].alive is not False)
        newest = [(key[0], one) for key in alive if isinstance(one := case.record(key, "cpu"), Process)]
        crowds = Counter((host, one.affinity) for host, one in newest if one.affinity)
        return cls(min((one.nice for _, one in newest if one.nice is not None), default=0), crowds)


def _facts(case: Case, key: Key, host: object, beside: Sequence[Neighbours], among: JobPlacement) -> ResourcesFacts:
    fields = _process(case, key, host, among)
    if "window_s" in fields:
        fields.update(_cgroup(case, key))
    if len(beside) > 1:
        fields.update(_neighbour(case, key, beside))
    return ResourcesFacts(**fields)


def _process(case: Case, key: Key, host: object, among: JobPlacement) -> Fields:
    series = process_looks(case, key)
    if not series or case.ranks[key].alive is False:
        return {}
    newest = series[-1][1]
    cores, nice = newest.affinity, newest.nice
    nicer = None if nice is None else nice - among.least_nice
    told: Fields = {"nice": nice, "nicer": nicer, "thread_setting": _thread_setting(case.record(key, "environ"))}
    if cores:
        told |= {"cores": len(cores), "core_list": _folded(cores), "crowd": among.crowds[key[0], cores]}
        told["bound"] = len(cores) < host.cores if isinstance(host, Host) else None
    total = over(series)
    if total.seconds < MIN_WINDOW_S:
        return told
    told |= {
        "window_s": total.seconds,
        "cores_used": total.cpu_s / total.seconds,
        "user_cores": _user_s(series) / total.seconds if newest.system_s is not None else None,
        "demand": total.asked_s / total.seconds if total.delay_s is not None else None,
        "delay_share": total.delay_s / total.asked_s if total.delay_s is not None and total.asked_s > 0.0 else None,
        "busy_threads": sum([part >= BUSY_THREAD * total.seconds for part in total.by_thread.values()]),
        "blocked_share": sum(["D" in map(_STATE, process.threads) for _, process in series]) / len(series),
    }
    return told


def _user_s(series: Sequence[tuple[float, Process]]) -> float:
    first, last = series[0][1], series[-1][1]
    return max(0.0, last.cpu_s - (last.system_s or 0.0) - first.cpu_s + (first.system_s or 0.0))


@lru_cache(maxsize=256)
def _folded(cores: tuple[int, ...]) -> str:
    return fold_ranks(cores)


def _thread_setting(environ: object) -> str | None:
    told = environ.variables if isinstance(environ, Environ) else {}
    return ", ".join([f"{name}={told[name]}" for name in THREAD_SETTINGS if name in told]) or None


# --- control groups -------------------------------------------------------------------------------


def _cgroup(case: Case, key: Key) -> Fields:
    series = [(at, record) for at, record in case.series(key, "cgroup") if isinstance(record, Cgroup)]
    if len(series) < 2:
        return {}
    seconds = series[-1][0] - series[0][0]
    if seconds < MIN_WINDOW_S:
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
    """Share of the time, and of the quota's periods. The kernel sums the time over CPUs: it may exceed the clock's."""
    kept_s = _grown(before.throttled_s, now.throttled_s)
    periods, hit = _grown(before.periods, now.periods), _grown(before.throttled_periods, now.throttled_periods)
    share = min(1.0, kept_s / seconds) if kept_s is not None else None
    return share, hit / periods if periods and hit is not None else None


def _memory(first: Cgroup, last: Cgroup, seconds: float) -> Fields:
    if not last.memory:
        return {}
    limit = max(last.memory, key=lambda one: (one.used_bytes or 0) / max(1, one.bytes))
    before = next((one for one in first.memory if one.file == limit.file), MemoryLimit(limit.file, limit.bytes))
    kills = [one.oom_kills for one in last.memory if one.oom_kills is not None]
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


# --- beside others --------------------------------------------------------------------------------


def _beside(case: Case, host: str) -> list[Neighbours]:
    """The looks at what runs on a host beside the job."""
    shots = [shot.records.get("neighbours") for shot in case.shots(host)]
    return [record for record in shots if isinstance(record, Neighbours)]


def _neighbour(case: Case, key: Key, seen: Sequence[Neighbours]) -> Fields:
    """What the processes beside the job took of this rank's cores, on average over the looks."""
    series = process_looks(case, key)
    mine = set(series[-1][1].affinity or ()) if series else set()
    total: dict[int, float] = defaultdict(float)
    known: dict[int, Neighbour] = {}
    for record in seen:
        for process in record.processes:
            if not mine or process.core is None or process.core in mine:
                total[process.pid] += process.cores
                known[process.pid] = process
    if not total:
        return {}
    busiest = known[max(total, key=lambda pid: total[pid])]
    named = f"{busiest.command} (pid {busiest.pid})"
    more = sum(taken >= BUSY_NEIGHBOUR * len(seen) for taken in total.values()) - 1
    return {
        "neighbour": f"{named} and {more} more" if more > 0 else named,
        "neighbour_cores": sum(total.values()) / len(seen),
        "neighbour_nice": busiest.nice,
    }


def _job(ranks: Sequence[ResourcesFacts], host: object) -> ResourcesJob:
    """The ranks of one host together."""
    asked = [one.demand for one in ranks if one.demand is not None]
    lists = {one.core_list for one in ranks if one.core_list}
    cores = len({core for text in lists for core in _unfold(text)}) or None
    delays = sorted(one.delay_share for one in ranks if one.delay_share is not None)
    return ResourcesJob(
        demand_per_core=sum(asked) / cores if asked and cores else None,
        busy_threads=sum(one.busy_threads or 0 for one in ranks) if asked else None,
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
