"""All of it together: one host at one instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hangdoc.evidence.target import Target, Unseen


@dataclass(frozen=True, slots=True)
class Host:
    """What does not change while we watch (record of host probe `host`)."""

    name: str
    boot_id: str | None
    kernel: str
    cores: int
    cpu_model: str | None
    cpu_flags: frozenset[str] | None  # None: not readable
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class End:
    """How a rank's process ended, as the kernel tells it."""

    code: int | None = None  # exit code, where it ended by itself
    signal: int | None = None  # number of the signal that ended it
    at_s: float | None = None  # when it was noticed (monotonic clock); None: it had ended before we watched
    oom_kills: int | None = None  # out-of-memory kills that the counter gained in the seconds before
    oom_counter: str | None = None  # file of that counter
    kernel: tuple[str, ...] = ()  # lines of the kernel's log about it


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """One rank at one instant: the records of the probes that looked, by probe name."""

    target: Target
    alive: bool | None  # False: the process is gone or a zombie
    records: Mapping[str, Any] = field(default_factory=dict)
    exit: str | None = None  # "signal 9 (SIGKILL)", "exit code 1", where known
    end: End | None = None  # the same in full


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One host at one instant."""

    host: str
    at_s: float  # monotonic clock of this host
    time: str  # ISO-8601 wall clock of this host, for people
    ranks: tuple[RankEvidence, ...]
    records: Mapping[str, Any] = field(default_factory=dict)  # of host probes
    unseen: tuple[Unseen, ...] = ()
    tier: str = "pulse"  # pulse | look | examine
    elsewhere: tuple[int, ...] = ()  # PIDs: ranks of this host that another host's agent answers for


def of_job(shot: Snapshot, job: str) -> Snapshot:
    """The part of a snapshot that belongs to one job."""
    ranks = tuple(rank for rank in shot.ranks if rank.target.job == job)
    pids = {rank.target.pid for rank in ranks}
    unseen = tuple(lack for lack in shot.unseen if lack.pid is None or lack.pid in pids)
    return replace(shot, ranks=ranks, unseen=unseen)
