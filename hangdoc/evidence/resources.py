"""Resource limits and competition: cgroups and other processes (probes `cgroup`, `neighbours`)."""

from __future__ import annotations

from hangdoc.evidence.record import Record


class CpuLimit(Record, frozen=True):
    """A CPU quota on a rank's cgroup or one of its parents. Counters start when the group is created."""

    file: str  # that sets the quota
    cores: float  # quota
    periods: int | None = None  # quota periods in which the group was runnable
    throttled_periods: int | None = None  # periods in which it exhausted its quota
    throttled_s: float | None = None  # summed over all throttled CPUs


class MemoryLimit(Record, frozen=True):
    """A memory limit on a rank's cgroup or one of its parents. Counters start when the group is created."""

    file: str  # that sets the limit
    bytes: int  # limit
    used_bytes: int | None = None
    hits: int | None = None  # allocations that hit the limit and had to reclaim
    refaults: int | None = None  # pages read again soon after being reclaimed
    swap_bytes: int | None = None
    oom_kills: int | None = None


class Cgroup(Record, frozen=True):
    """cgroup limits and memory pressure of one rank (record of probe `cgroup`)."""

    cpu: tuple[CpuLimit, ...] = ()  # the rank's own group first
    memory: tuple[MemoryLimit, ...] = ()
    pressure_group: str | None = None  # cgroup of the three fields below; "/": the whole host
    cpu_stall_s: float | None = None  # time in which some task of the group waited for a CPU
    memory_stall_s: float | None = None  # time in which some task waited for memory
    memory_full_s: float | None = None  # time in which all tasks waited for memory
    major_faults: int | None = None  # page faults of the rank that read from storage
    swapped_bytes: int | None = None  # memory of the rank in swap


class Neighbour(Record, frozen=True):
    """A process that is neither a rank nor a helper of one."""

    pid: int
    command: str  # program and script, shortened; no arguments, which may contain secrets
    cores: float  # CPU use since the previous sample, in cores
    nice: int
    core: int | None  # on which it last ran
    affinity: tuple[int, ...] | None = None


class Neighbours(Record, frozen=True):
    """The busiest other processes of a host, busiest first (record of host probe `neighbours`)."""

    processes: tuple[Neighbour, ...]
