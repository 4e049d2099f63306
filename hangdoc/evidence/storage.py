"""Open files, file locks and I/O (probes `files`, `io`)."""

from __future__ import annotations

from hangdoc.evidence.record import Record


class OpenFile(Record, frozen=True):
    """An open file descriptor of a rank."""

    fd: int
    path: str
    kind: str  # file | fifo | directory | device | pipe | socket | other
    position: int | None = None  # file offset
    size: int | None = None  # bytes
    mode: str | None = None  # r | w | rw
    mount: str | None = None  # mount point
    filesystem: str | None = None  # ext4, nfs4, fuse.sshfs, ...


class FileLock(Record, frozen=True):
    """A lock on an open file of a rank, from /proc/locks."""

    path: str | None
    inode: int
    kind: str  # flock | posix | ofd
    holder_pid: int | None  # None: no living process
    waiting_pids: tuple[int, ...] = ()


class Files(Record, frozen=True):
    """Open files of a rank, and locks on them (record of probe `files`)."""

    open: tuple[OpenFile, ...]
    locks: tuple[FileLock, ...] = ()


class Peer(Record, frozen=True):
    """A process at the other end of a pipe or FIFO."""

    pid: int
    command: str  # shortened
    state: str
    own: bool  # a rank or a helper of one
    cpu_s: float
    moved: int | None = None  # bytes read and written since its start


class FileCall(Record, frozen=True):
    """A system call on a file that blocks a thread, or one that waits for a terminal alone."""

    pid: int  # a rank or a helper of it
    tid: int
    call: str  # read | write | open | stat | list | sync | close | change | poll | fault: a page of a mapped file
    path: str  # path in the process's mount namespace, or "pipe:[4711]"
    kind: str  # file | fifo | pipe | socket | directory | terminal | device | other | unknown
    state: str  # S: interruptible, D: uninterruptible sleep
    fd: int | None = None  # None: the call takes a path
    writes: bool = False  # a write, an open for writing, or a sync
    wchan: str | None = None  # kernel function it sleeps in
    switches: int | None = None  # context switches of the thread; unchanged: it has not run
    mount: str | None = None
    filesystem: str | None = None
    peers: tuple[Peer, ...] | None = None  # processes at the other end of a pipe or FIFO; None: not examined


class Helper(Record, frozen=True):
    """Activity of a helper process of a rank, in addition to `ChildProcess`."""

    pid: int
    comm: str
    state: str
    cpu_s: float
    moved: int | None = None  # bytes read and written since its start, caches and pipes included
    switches: int | None = None  # context switches of its main thread
    sleeps: str | None = None  # in what its main thread sleeps: lock | semaphore | time | poll | file | child | other
    locked: bool = False  # every thread waits without a timeout for a lock of this process


class Folder(Record, frozen=True):
    """A folder on a local filesystem from which a rank reads data."""

    path: str
    entries: int  # at most `probes.io.MAX_ENTRIES`


class Io(Record, frozen=True):
    """I/O of a rank and its helpers (record of probe `io`)."""

    read: int | None = None  # bytes read since its start, caches and pipes included (rchar)
    written: int | None = None  # bytes written since its start, caches and pipes included (wchar)
    fetched: int | None = None  # bytes read from storage (read_bytes); counted during a long call as well
    stored: int | None = None  # bytes written to storage (write_bytes)
    calls: tuple[FileCall, ...] = ()
    helpers: tuple[Helper, ...] = ()
    files: tuple[str, ...] = ()  # regular files open for reading, of helpers too; without code and system files
    folders: tuple[Folder, ...] = ()  # folders of these files, or named by variables
