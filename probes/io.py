"""Probe `io`: bytes that each rank and its helpers read and write, and the files that their threads are blocked on.

Bytes come from /proc/PID/io, the file of a sleeping thread from its system call, or from the mapped file of a page
fault. The filesystem itself is asked only if it cannot block. A few small reads per process: cheap in every round.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from hangdoc.evidence import ChildProcess, FileCall, Folder, Helper, Io, Peer, Process, Stacks, ThreadCpu, Unseen
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.polled import polled, polls
from hangdoc.redaction.text import redact
from hangdoc.system import open_ends, procfs, syscalls
from hangdoc.system.mounts import LOCAL, Mount, mount_of, mounts
from hangdoc.system.permissions import remedy
from hangdoc.system.target_files import TargetFiles, names
from probes import Observation, Request, Tier

MAX_ENTRIES = 20_000  # counted in a folder
_MAX_FILES = 16  # open data files of a rank and its helpers
_MAX_FOLDERS = 12
_MAX_HELPERS = 64
_FOLDER_CACHE_S = 10.0
_PEERS_CACHE_S = 0.4  # finding them reads all descriptors of the host
# Paths of code, logs and the system: not a job's data.
NO_DATA = re.compile(
    r"^/(usr|lib|lib64|bin|sbin|proc|sys|dev|etc|run/shm|opt/(conda|venv))(/|$)|/(site|dist)-packages(/|$)|/lib/python3"
    r"|\.(py|pyc|pyd|so|egg|pth|log|out|err|lock)(\.\d+)*$|/(memfd|SYSV|\[)| \(deleted\)$|/torch_\w+$|^/$"
)
TERMINAL = re.compile(r"/dev/(pts/\d+|tty\w*|console|hvc\d+)$")  # of somebody who types; /dev/ptmx is a program's end
_WAKES = re.compile(r"(socket|pipe):|anon_inode:\[eventfd")  # with such a descriptor an event loop wakes itself
_NO_STALL = LOCAL | {"hugetlbfs", "devpts", "proc", "sysfs", "mqueue"}
_PATH_MAX = 4096
_PAGE = 4096
_TEXT_PATH = re.compile(r"[\"'](/[^\"'\n]{2,200})[\"']")


@dataclass(slots=True)
class IoProbe:
    """Caches what is costly to read: the number of entries in folders, the other ends of pipes."""

    name: str = "io"
    scope: str = "rank"
    tier: Tier = Tier.PULSE
    needs: str = "nothing"
    record: type = Io
    order: int = 10  # after `cpu`, before `stacks`
    steady: bool = False
    _folders: dict[tuple[int, str], tuple[float, Folder | None]] = field(default_factory=dict)
    _peers: dict[tuple[int, str], tuple[float, tuple[Peer, ...]]] = field(default_factory=dict)

    def observe(self, request: Request) -> Observation:
        before = {rank.target.pid: rank.records for rank in getattr(request.previous, "ranks", ())}
        watched, old_s = {target.pid for target in request.targets}, time.monotonic() - _FOLDER_CACHE_S
        self._folders = {key: kept for key, kept in self._folders.items() if key[0] in watched and kept[0] > old_s}
        records: dict[int, Io] = {}
        unseen: list[Unseen] = []
        for target in request.targets:
            process = (request.records or {}).get(target.pid, {}).get("cpu")
            if not isinstance(process, Process):
                continue
            old = before.get(target.pid, {})
            counted = procfs.io_counters(target.pid)
            if counted is None:
                why = f"no permission to read the I/O counters and files of PID {target.pid}; {remedy(target.pid)}"
                unseen.append(Unseen(self.name, why, target.rank, target.pid, target.host))
                continue
            known = old.get(self.name)
            helpers = tuple(_helpers(process.children, known if isinstance(known, Io) else None))
            calls = tuple(_file_calls(process, helpers))
            files = _files(target.pid, helpers) if request.tier >= Tier.LOOK else ()
            folders = (
                tuple(self._count_folders(target.pid, files, old.get("stacks"))) if request.tier >= Tier.LOOK else ()
            )
            records[target.pid] = Io(*counted, calls, helpers, files, folders)
        self._find_peers(records, before)
        return Observation(records, unseen=tuple(unseen))

    def _find_peers(self, records: dict[int, Io], before: Mapping[int, Mapping[str, object]]) -> None:
        """Add the other end to calls on pipes that have not returned since the previous round."""
        standing: dict[tuple[int, str], FileCall] = {}
        for pid, record in records.items():
            old = before.get(pid, {}).get(self.name)
            known = {_identity(call) for call in old.calls} if isinstance(old, Io) else set()
            for call in record.calls:
                if call.kind in ("fifo", "pipe") and _identity(call) in known and call.path != "pipe:[0]":
                    standing[call.tid, call.path] = call
        now = time.monotonic()
        stale = [key for key in standing if now - self._peers.get(key, (0.0, ()))[0] >= _PEERS_CACHE_S]
        own = {pid for record in records.values() for pid in (helper.pid for helper in record.helpers)} | set(records)
        found = open_ends.peers({path: "r" if standing[tid, path].writes else "w" for tid, path in stale}, own)
        self._peers = {key: known for key, known in self._peers.items() if key in standing}
        self._peers.update({(tid, path): (now, found[path]) for tid, path in stale})
        for pid, record in records.items():
            if any((call.tid, call.path) in standing for call in record.calls):
                calls = tuple(
                    replace(call, peers=self._peers[call.tid, call.path][1])
                    if (call.tid, call.path) in standing
                    else call
                    for call in record.calls
                )
                records[pid] = replace(record, calls=calls)

    def _count_folders(self, pid: int, files: Iterable[str], stacks: object) -> Iterator[Folder]:
        """Folders of open files and folders named by variables, with their number of entries."""
        named = _named(stacks) if isinstance(stacks, Stacks) else ()
        paths = dict.fromkeys([*(os.path.dirname(file) for file in files), *named])
        table: dict[int, Mount] | None = None
        for path in islice((path for path in paths if not NO_DATA.search(path)), _MAX_FOLDERS):
            at_s, folder = self._folders.get((pid, path), (-_FOLDER_CACHE_S, None))
            if time.monotonic() - at_s >= _FOLDER_CACHE_S:
                table = mounts(pid) if table is None else table
                folder = _count(pid, path, table)
                self._folders[pid, path] = (time.monotonic(), folder)
            if folder is not None:
                yield folder


# --- helpers --------------------------------------------------------------------------------------


def _helpers(children: Iterable[ChildProcess], before: Io | None) -> Iterator[Helper]:
    known = {helper.pid: helper for helper in before.helpers} if before else {}
    for child in islice(children, _MAX_HELPERS):
        call = syscalls.current_call(child.pid, child.pid) if child.state in "SD" else None
        switches = _switches(child.pid)
        moved = procfs.moved_bytes(child.pid)
        old = known.get(child.pid)
        # Costs a read per thread: only if the process has not run.
        quiet = old is not None and (old.cpu_s, old.moved) == (child.cpu_s, moved)
        sleeps = _sleeps(call)
        locked = quiet and sleeps == "lock" and is_deadlocked(child.pid)
        yield Helper(child.pid, child.comm, child.state, child.cpu_s, moved, switches, sleeps, locked)


def _sleeps(call: syscalls.Call | None) -> str | None:
    if call is None:
        return None
    if call.names or call.kind == "fault":
        return "file"
    if call.kind == "lock":
        return "lock" if call.private else "semaphore"
    return call.kind if call.kind in ("time", "poll", "child") else "other"


def is_deadlocked(pid: int) -> bool:
    """True if every thread waits, without timeout, for another thread of this process: a deadlock."""
    tids = procfs.threads(pid)
    calls = [syscalls.current_call(pid, tid) for tid in tids]
    return bool(calls) and all(call and call.kind == "lock" and call.private and not call.bounded for call in calls)


def _switches(pid: int) -> int | None:
    status = procfs.read(f"/proc/{pid}/status") or b""
    _, found, tail = status.partition(b"\nvoluntary_ctxt_switches:")
    return int(tail.split()[0]) if found else None


# --- data -----------------------------------------------------------------------------------------


def _files(pid: int, helpers: Iterable[Helper]) -> tuple[str, ...]:
    """Open data files of a rank and its helpers."""
    found: dict[str, None] = {}
    for process in (pid, *(helper.pid for helper in islice(helpers, 8))):
        for fd in procfs.descriptors(process)[:256]:
            path = procfs.link(f"/proc/{process}/fd/{fd}") or ""
            if fd > 2 and path.startswith("/") and not NO_DATA.search(path):
                found[path] = None
    return tuple(islice(found, _MAX_FILES))


def _named(stacks: Stacks) -> Iterator[str]:
    """Absolute paths among the variables of user frames and of the script's module."""
    frames = [f.variables or () for s in stacks.threads for f in s.frames if not NO_DATA.search(f.file + "/")]
    for variable in (v for variables in (*frames, stacks.globals or ()) for v in variables):
        match = _TEXT_PATH.match(variable.text)
        if match is not None and not match[1].endswith("..."):
            yield match[1].rstrip("/") or "/"


def _count(pid: int, path: str, table: Mapping[int, Mount]) -> Folder | None:
    """The folder, if on a local filesystem: others might block forever."""
    mount = mount_of(path, table)
    if mount is None or mount.filesystem not in LOCAL:
        return None
    # Follow no symbolic link: it may lead to a dead mount.
    found = TargetFiles(pid).each([path], lambda fd: len(names(fd, MAX_ENTRIES)), links=False)[path]
    return Folder(path, found) if isinstance(found, int) else None


# --- file calls -----------------------------------------------------------------------------------


def _identity(call: FileCall) -> tuple[int, str, str]:
    return call.tid, call.call, call.path


def _file_calls(process: Process, helpers: Iterable[Helper]) -> Iterator[FileCall]:
    """File calls of a rank's sleeping threads and of its helpers' main threads."""
    # A library that edits the line waits in select before it reads. Without a terminal, there is nothing to look for.
    typed = TERMINAL.match(procfs.link(f"/proc/{process.pid}/fd/0") or "")
    for thread in process.threads:
        if thread.state in "SD" and (thread.state == "D" or syscalls.is_on_file(thread.syscall)):
            yield from file_call(process.pid, thread.tid, thread.state, thread.wchan, thread.voluntary)
        elif typed and polls(thread.syscall):
            yield from _terminal_wait(process.pid, thread)
    for helper in helpers:
        if helper.state == "D" or helper.sleeps == "file":
            wchan = procfs.text(f"/proc/{helper.pid}/wchan")
            yield from file_call(helper.pid, helper.pid, helper.state, wchan, helper.switches)


def file_call(
    pid: int, tid: int, state: str, wchan: str | None = None, switches: int | None = None
) -> Iterator[FileCall]:
    """The file call that a sleeping thread is in."""
    call = syscalls.current_call(pid, tid)
    if call is None or not (call.names or call.kind == "fault"):
        return
    fd = call.arguments[0] & 0x7FFFFFFF if call.names == syscalls.FD else None
    if call.kind == "fault":
        path, mount = _faulting_file(pid)
    else:
        path = procfs.link(f"/proc/{pid}/fd/{fd}") if fd is not None else _path_argument(pid, call)
        mount = _mount(pid, fd, path) if path and path.startswith("/") else None
    if path is None:
        return
    writes = call.kind in ("write", "sync", "change") or (call.kind == "open" and _opens_to_write(call))
    yield FileCall(
        pid=pid,
        tid=tid,
        call=call.kind,
        path=redact("path", path)[:_PATH_MAX],
        kind=_kind(pid, fd, path, mount),
        state=state,
        fd=fd,
        writes=writes,
        wchan=wchan,
        switches=switches,
        mount=mount.point if mount else None,
        filesystem=mount.filesystem if mount else None,
    )


def _terminal_wait(pid: int, thread: ThreadCpu) -> Iterator[FileCall]:
    """The wait of a thread that only a terminal can end."""
    call = syscalls.current_call(pid, thread.tid)
    descriptors = polled(pid, call) if call else ()
    paths = {fd: procfs.link(f"/proc/{pid}/fd/{fd}") or "" for fd in descriptors}
    terminals = [fd for fd, path in paths.items() if TERMINAL.match(path)]
    others = [path for fd, path in paths.items() if fd not in terminals]
    if terminals and (not others or (len(others) == 1 and _WAKES.match(others[0]))):
        fd = terminals[0]
        yield FileCall(pid, thread.tid, "poll", paths[fd], "terminal", thread.state, fd, False, thread.wchan)


def _opens_to_write(call: syscalls.Call) -> bool:
    flags = call.arguments[2 if call.names == syscalls.PATH_AT else 1]
    return flags & os.O_ACCMODE == os.O_WRONLY


def _path_argument(pid: int, call: syscalls.Call) -> str | None:
    """The path argument of a call, from the memory of the process."""
    at = call.names == syscalls.PATH_AT
    address = call.arguments[1 if at else 0]
    try:
        # The page after the string may be unmapped.
        size = min(_PATH_MAX, _PAGE - address % _PAGE)
        data = Memory(pid).read(address, size)
        if b"\0" not in data:
            data += Memory(pid).read(address + size, _PATH_MAX - size)
    except Unreadable:
        return None
    path = os.fsdecode(data.partition(b"\0")[0])
    if path.startswith("/"):
        return path
    folder = call.arguments[0] & 0xFFFFFFFF if at else 0xFFFFFF9C  # AT_FDCWD
    base = procfs.link(f"/proc/{pid}/cwd" if folder == 0xFFFFFF9C else f"/proc/{pid}/fd/{folder}")
    return os.path.normpath(os.path.join(base, path)) if base else None


def _mount(pid: int, fd: int | None, path: str) -> Mount | None:
    table = mounts(pid)
    if fd is not None:
        info = procfs.text(f"/proc/{pid}/fdinfo/{fd}") or ""
        number = next((line.split()[1] for line in info.splitlines() if line.startswith("mnt_id:")), "-1")
        if int(number) in table:
            return table[int(number)]
    return mount_of(path, table)


def _kind(pid: int, fd: int | None, path: str, mount: Mount | None) -> str:
    if not path.startswith("/"):
        prefix = path.partition(":")[0]
        return prefix if prefix in ("pipe", "socket") else "other"
    if TERMINAL.match(path):
        return "terminal"
    if mount is None or mount.filesystem not in LOCAL:
        return "unknown" if fd is None else "device" if path.startswith("/dev/") else "file"
    try:
        mode = (os.stat(f"/proc/{pid}/fd/{fd}") if fd is not None else TargetFiles(pid).stat(path)).st_mode
    except OSError:
        return "unknown"
    tests = ((stat.S_ISREG, "file"), (stat.S_ISFIFO, "fifo"), (stat.S_ISDIR, "directory"), (stat.S_ISCHR, "device"))
    return next((kind for test, kind in tests if test(mode)), "other")


def _faulting_file(pid: int) -> tuple[str | None, Mount | None]:
    """The file behind a page fault, or the mount point if several mapped files are candidates.

    The kernel does not show the faulting address. Local files are left out, because reading their pages succeeds.
    """
    table = mounts(pid)
    lines = (
        fields for line in (procfs.text(f"/proc/{pid}/maps") or "").splitlines() if (fields := line.split(None, 5))
    )
    paths = (fields[5] for fields in lines if len(fields) > 5 and fields[5].startswith("/"))
    mapped = {path: mount_of(path, table) for path in paths}
    remote = {path: mount for path, mount in mapped.items() if mount is not None and mount.filesystem not in _NO_STALL}
    data = {path: mount for path, mount in remote.items() if not NO_DATA.search(path)} or remote
    points = {mount.point: mount for mount in data.values()}
    if len(points) != 1:
        return None, None
    (point, mount), files = points.popitem(), list(data)
    return files[0] if len(files) == 1 else point, mount


PROBE = IoProbe()
