"""Where the ranks of a job mean to meet, and what they were told (probes `store`, `environ`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Environ:
    """Environment variables that matter, through an allow-list: never a secret."""

    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who listens on the port where a rank wants to meet the others."""

    pid: int | None  # None: a process that may not be looked into
    command: str | None  # shortened and redacted
    uid: int | None = None
    age_s: float | None = None
    kin: bool | None = None  # it belongs to this rank's job; None: that could not be told


@dataclass(frozen=True, slots=True)
class JobProcess:
    """A process of this host that was started as a part of the same job."""

    pid: int
    number: int | None  # its rank; of a launcher its node
    age_s: float
    agent: bool = False  # a launcher


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where a rank that is being set up, or a launcher, means to meet the others (record of probe `store`)."""

    address: str  # as it was told
    port: int
    resolved: tuple[str, ...] | None = None  # addresses it stands for; empty: the name is unknown; None: not asked
    local: bool | None = None  # one of them is an address of its own network namespace
    holder: Holder | None = None  # where local: who listens there; None: nobody
    clients: int | None = None  # where somebody listens: connections to it, the listener's own included
    kin: tuple[JobProcess, ...] = ()
    timeout_s: float | None = None  # how long init_process_group waits


@dataclass(frozen=True, slots=True)
class Advertised:
    """Where a rank says that it listens."""

    rank: int  # global
    address: str
    port: int
    hostname: str | None = None


@dataclass(frozen=True, slots=True)
class Mesh:
    """What the store holds of the group that a rank is being made a member of (record of probe `mesh`)."""

    advertised: tuple[Advertised, ...] = ()
    missing: tuple[int, ...] = ()  # global ranks of the group, among those asked for, that have left nothing yet
