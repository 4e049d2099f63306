"""Mutexes and lock files (probes `locks`, `lockfile`)."""

from __future__ import annotations

from hangdoc.evidence.record import Record


class LockFileHolder(Record, frozen=True):
    """A living process that holds a lock file."""

    pid: int
    command: str  # shortened
    cpu_s: float  # CPU time so far, children included


class LockFile(Record, frozen=True):
    """A lock file that a rank waits for (record of probe `lockfile`)."""

    path: str | None = None  # None: the rank waits for no lock file
    kind: str = ""  # baton | filelock | kernel | loop | database (SQLite): the waiting code
    inode: int = 0
    age_s: float = 0.0  # since the file was created or last written, on this host's wall clock
    before_s: float = 0.0  # file time to start of the rank's process; negative: the file is newer
    local: bool = False  # on a filesystem of this host only
    holders: tuple[
        LockFileHolder, ...
    ] = ()  # who has it open (kernel: who has the lock), other than those that wait for it
    hidden: int = 0  # processes of the file's owner with unreadable descriptors
    named_pid: int | None = None  # PID written in the file
    named_host: str | None = None  # host written in the file
    named_alive: bool | None = None  # that process is alive on this host; None: unknown


class LockWait(Record, frozen=True):
    """A thread that waits for a lock without a timeout."""

    tid: int
    semaphore: int  # address in the process
    name: str  # in the source: "self.lock"
    found: bool = False  # the lock object was found in memory under this name
    reentrant: bool | None = None  # an RLock; None: the object was not found
    owner: int | None = None  # thread ID; 0: an ended thread; None: unknown (a plain lock records no owner)


class Holding(Record, frozen=True):
    """A thread that, by its source, holds a lock that some thread waits for."""

    tid: int
    semaphore: int
    name: str
    function: str
    file: str
    line: int
    found: bool  # the lock object was found in memory under this name; else only the names match


class Locks(Record, frozen=True):
    """The locks of one rank (record of probe `locks`)."""

    parked: tuple[int, ...] = ()  # TIDs of Python threads in an untimed wait that only their own process can end
    waits: tuple[LockWait, ...] = ()  # parked threads that wait for a lock
    holdings: tuple[Holding, ...] = ()
