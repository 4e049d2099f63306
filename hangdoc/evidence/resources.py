"""What limits and disturbs a rank: cgroups and other processes (probes `cgroup`, `neighbours`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CpuLimit:
    """A CPU quota on a rank's group or one above it. Counters run since the group was made."""

    file: str
    cores: float
    periods: int | None = None  # in which the group wanted to run
    throttled_periods: int | None = None  # in which it used its quota up
    throttled_s: float | None = None  # summed over the CPUs it was kept from


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A memory limit on a rank's group or one above it. Counters run since the group was made."""

    file: str
    bytes: int
    used_bytes: int | None = None
    hits: int | None = None  # times that an allocation ran into the limit and had to reclaim
    refaults: int | None = None  # pages read again soon after they were reclaimed
    swap_bytes: int | None = None
    oom_kills: int | None = None


@dataclass(frozen=True, slots=True)
class Cgroup:
    """What limits one rank (record of probe `cgroup`)."""

    cpu: tuple[CpuLimit, ...] = ()  # the rank's own group first
    memory: tuple[MemoryLimit, ...] = ()
    pressure_group: str | None = None  # that the three below are of; "/" is the whole host
    cpu_stall_s: float | None = None  # time in which some of the group's tasks waited for a CPU
    memory_stall_s: float | None = None  # time in which some of them waited for memory
    memory_full_s: float | None = None  # time in which all of them did
    major_faults: int | None = None  # of the rank itself: pages that had to be read from storage
    swapped_bytes: int | None = None  # of the rank itself


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A process that is no rank, nor a helper of one."""

    pid: int
    command: str  # program and script, shortened; no arguments, which may hold secrets
    cores: float  # used since the look before
    nice: int
    core: int | None  # it last ran on
    affinity: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Record of host probe `neighbours`: the busiest first."""

    processes: tuple[Neighbour, ...]
