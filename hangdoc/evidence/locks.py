"""Mutexes and lock files (probes `locks`, `lockfile`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LockFileHolder:
    """A living process that has a lock file."""

    pid: int
    command: str  # shortened
    cpu_s: float  # used so far, with its children


@dataclass(frozen=True, slots=True)
class LockFile:
    """A lock file that a rank waits for (record of probe `lockfile`)."""

    path: str | None = None  # None: it waits for none
    kind: str = ""  # baton | filelock | kernel | loop: what the frames say that waits for it
    inode: int = 0
    age_s: float = 0.0  # since it was last written or made, by this host's wall clock
    before_s: float = 0.0  # how long before the rank's process was started that was; negative: since
    local: bool = False  # on a filesystem that no other host has
    holders: tuple[
        LockFileHolder, ...
    ] = ()  # who has it open (kernel: who has the lock), other than those that wait for it
    hidden: int = 0  # processes of the file's owner whose descriptors may not be read
    named_pid: int | None = None  # the PID that stands in the file
    named_host: str | None = None  # the host that stands in it
    named_alive: bool | None = None  # whether that is a living process of this host


@dataclass(frozen=True, slots=True)
class LockWait:
    """A thread that waits for a lock, without a timeout."""

    tid: int
    semaphore: int  # address in the process
    name: str  # as the source has it: "self.lock"
    found: bool = False  # the lock object was found in memory by that name
    reentrant: bool | None = None  # an RLock; None: the object was not found
    owner: int | None = None  # thread id; 0: a thread that has ended; None: not known (a plain lock does not tell)


@dataclass(frozen=True, slots=True)
class Holding:
    """A thread whose source says that it has acquired a lock that another, or itself, waits for."""

    tid: int
    semaphore: int
    name: str
    function: str
    file: str
    line: int
    found: bool  # the lock object was found in memory by that name; else only the names agree


@dataclass(frozen=True, slots=True)
class Locks:
    """The locks of one rank (record of probe `locks`)."""

    parked: tuple[int, ...] = ()  # Python threads in an untimed wait that only this process itself can end
    waits: tuple[LockWait, ...] = ()  # those of them that wait for a lock
    holdings: tuple[Holding, ...] = ()
