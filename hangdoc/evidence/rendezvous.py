"""Rendezvous of a job's ranks, and their environment (probes `store`, `environ`, `mesh`)."""

from __future__ import annotations

from collections.abc import Mapping

from hangdoc.evidence.record import Record


class Environ(Record, frozen=True):
    """Allow-listed environment variables, never a secret (record of probe `environ`)."""

    variables: Mapping[str, str]


class Holder(Record, frozen=True):
    """The process that listens on a rank's rendezvous port."""

    pid: int | None  # None: its process is not readable
    command: str | None  # shortened and redacted
    uid: int | None = None
    age_s: float | None = None
    kin: bool | None = None  # belongs to this rank's job; None: unknown


class JobProcess(Record, frozen=True):
    """A process of this host that was started as part of the same job."""

    pid: int
    number: int | None  # rank; for a launcher its node rank
    age_s: float
    agent: bool = False  # a launcher


class Rendezvous(Record, frozen=True):
    """The rendezvous of a rank that is starting, or of a launcher (record of probe `store`)."""

    address: str  # as configured
    port: int
    resolved: tuple[str, ...] | None = None  # addresses of that name; empty: unknown name; None: not resolved
    local: bool | None = None  # one of them belongs to the rank's network namespace
    holder: Holder | None = None  # if local: the listener; None: nobody listens
    clients: int | None = None  # if local: connections to the listener, its own included
    kin: tuple[JobProcess, ...] = ()
    timeout_s: float | None = None  # timeout of init_process_group


class Advertised(Record, frozen=True):
    """The address that a rank advertises to its peers."""

    rank: int  # global
    address: str
    port: int
    hostname: str | None = None


class Mesh(Record, frozen=True):
    """Store content for the process group that a rank is creating (record of probe `mesh`)."""

    advertised: tuple[Advertised, ...] = ()
    missing: tuple[int, ...] = ()  # global ranks of the group, of those asked for, that have advertised nothing yet
