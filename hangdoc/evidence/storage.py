"""Open files, and what is read, written and waited for (probes `files`, `io`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenFile:
    fd: int
    path: str
    kind: str  # file | fifo | directory | device | pipe | socket | other
    position: int | None = None
    size: int | None = None
    mode: str | None = None  # r | w | rw
    mount: str | None = None  # mount point
    filesystem: str | None = None  # ext4, nfs4, fuse.sshfs, ...


@dataclass(frozen=True, slots=True)
class FileLock:
    """A lock on a file one of the ranks has open, from /proc/locks."""

    path: str | None
    inode: int
    kind: str  # flock | posix | ofd
    holder_pid: int | None  # None: nobody living
    waiting_pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Files:
    open: tuple[OpenFile, ...]
    locks: tuple[FileLock, ...] = ()


@dataclass(frozen=True, slots=True)
class Peer:
    """A process that has the other end of a pipe or FIFO open."""

    pid: int
    command: str  # shortened
    state: str
    own: bool  # a rank, or a helper of one
    cpu_s: float
    moved: int | None = None  # bytes it has read and written since it started


@dataclass(frozen=True, slots=True)
class FileCall:
    """A system call on a file in which a thread sleeps."""

    pid: int  # a rank or a helper of it
    tid: int
    call: str  # read | write | open | stat | list | sync | close | change | fault: a page of a mapped file
    path: str  # as that process knows it; "pipe:[4711]"
    kind: str  # file | fifo | pipe | socket | directory | device | other | unknown
    state: str  # S, or D: not even a signal wakes it
    fd: int | None = None  # None: the call names the file by its path
    writes: bool = False  # bytes go out: a write, an open for writing, a sync
    wchan: str | None = None  # kernel function it sleeps in
    switches: int | None = None  # context switches of the thread: where they did not change it did not run
    mount: str | None = None
    filesystem: str | None = None
    peers: tuple[Peer, ...] | None = None  # who has the other end of a pipe or FIFO open; None: not looked for


@dataclass(frozen=True, slots=True)
class Helper:
    """A helper process of a rank, beyond what `ChildProcess` says of it."""

    pid: int
    comm: str
    state: str
    cpu_s: float
    moved: int | None = None  # bytes read and written since it started, caches and pipes included
    switches: int | None = None  # context switches of its main thread
    sleeps: str | None = None  # in what its main thread does: lock | semaphore | time | poll | file | child | other
    locked: bool = False  # every thread of it waits, without a limit of time, for a lock of this very process


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder on a local filesystem that a rank takes its data from."""

    path: str
    entries: int  # at most `probes.io.MOST_ENTRIES`


@dataclass(frozen=True, slots=True)
class Io:
    """What a rank and its helpers read, write and wait for (record of probe `io`)."""

    read: int | None = None  # bytes since its start, caches and pipes included (rchar)
    written: int | None = None  # wchar
    fetched: int | None = None  # bytes that came from storage (read_bytes): counted while a long call still runs
    stored: int | None = None  # bytes meant for storage (write_bytes)
    calls: tuple[FileCall, ...] = ()
    helpers: tuple[Helper, ...] = ()
    files: tuple[str, ...] = ()  # regular files open for reading, code and system files left out; helpers' too
    folders: tuple[Folder, ...] = ()  # that hold these files, or that variables name
