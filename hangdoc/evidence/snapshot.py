"""Snapshots: everything known of one host at one instant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from hangdoc.evidence.record import Record
from hangdoc.evidence.target import Target, Unseen


class Host(Record, frozen=True):
    """Static properties of a host (record of host probe `host`)."""

    name: str
    boot_id: str | None
    kernel: str
    cores: int
    cpu_model: str | None
    cpu_flags: frozenset[str] | None  # None: not readable
    memory_bytes: int | None = None


class End(Record, frozen=True):
    """How a rank's process ended, from the kernel."""

    code: int | None = None  # exit code, if it exited by itself
    signal: int | None = None  # number of the signal that killed it
    at_s: float | None = None  # when we noticed (monotonic clock); None: it ended before we watched
    oom_kills: int | None = None  # increase of the OOM kill counter in the seconds before
    oom_counter: str | None = None  # file of that counter
    kernel: tuple[str, ...] = ()  # lines of the kernel log about the process
    native_thread: bool | None = None  # a thread that runs no Python raised the signal; None: unknown


class RankEvidence(Record, frozen=True):
    """One rank at one instant: its records, by probe name."""

    target: Target
    alive: bool | None  # False: the process is gone or a zombie
    records: Mapping[str, Any] = {}
    exit: str | None = None  # "signal 9 (SIGKILL)", "exit code 1"; None: unknown or alive
    end: End | None = None  # details of the exit


class Snapshot(Record, frozen=True):
    """One host at one instant."""

    host: str
    at_s: float  # monotonic clock of this host
    time: str  # wall clock of this host, ISO 8601, for display
    ranks: tuple[RankEvidence, ...]
    records: Mapping[str, Any] = {}  # records of host probes, by probe name
    unseen: tuple[Unseen, ...] = ()
    tier: str = "pulse"  # pulse | look | examine
    elsewhere: tuple[int, ...] = ()  # PIDs of ranks of this host that another host's agent reports


def of_job(shot: Snapshot, job: str) -> Snapshot:
    """The part of a snapshot that belongs to one job."""
    ranks = tuple(rank for rank in shot.ranks if rank.target.job == job)
    pids = {rank.target.pid for rank in ranks}
    unseen = tuple(lack for lack in shot.unseen if lack.pid is None or lack.pid in pids)
    return replace(shot, ranks=ranks, unseen=unseen)
