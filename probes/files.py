"""Probe `files`: the open files of each rank, their filesystems, and who holds locks on them.

Reads only /proc. stat(2) is limited to local filesystems: on a dead network mount it would block forever.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from hangdoc.evidence import FileLock, Files, OpenFile, Target, Unseen
from hangdoc.system import procfs
from hangdoc.system.mounts import LOCAL, Mount, mounts
from hangdoc.system.permissions import remedy
from probes import Observation, Request, Tier

_MAX = 1024  # open files of one rank
_MODES = {os.O_RDONLY: "r", os.O_WRONLY: "w", os.O_RDWR: "rw"}
_ANONYMOUS = {"pipe": "pipe", "socket": "socket"}
# "1: -> FLOCK  ADVISORY  WRITE 708 08:01:2621456 0 EOF"; also the form in fdinfo, after "lock:"
_LOCK = re.compile(r"\d+:\s+(->\s+)?(FLOCK|POSIX|OFDLCK)\s+\S+\s+\S+\s+(-?\d+)\s+([0-9a-f]+):([0-9a-f]+):(\d+)")
_KINDS = {"FLOCK": "flock", "POSIX": "posix", "OFDLCK": "ofd"}

FileId = tuple[int, int, int]  # major, minor, inode


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock on a file, or a wait for one."""

    kind: str
    file: FileId
    pid: int  # -1 or 0: unknown (open-file-description locks, other PID namespaces)
    waits: bool


class FilesProbe:
    name = "files"
    scope = "rank"
    tier = Tier.EXAMINE
    needs = "nothing"
    record = Files
    order = 20
    steady = False

    def observe(self, request: Request) -> Observation:
        opened: dict[int, tuple[OpenFile, ...]] = {}
        ids: dict[int, dict[FileId, str]] = {}  # rank -> file -> path
        holds: dict[FileId, int] = {}  # file -> a process with the lock on one of its descriptors
        unseen: list[Unseen] = []
        for target in request.targets:
            try:
                descriptors = sorted(int(name) for name in os.listdir(f"/proc/{target.pid}/fd"))
            except OSError as error:
                unseen.append(Unseen(self.name, _why(target, error), target.rank, target.pid, target.host))
                continue
            known = mounts(target.pid)
            looked = [_look(target.pid, fd, known, holds) for fd in descriptors[:_MAX]]
            opened[target.pid] = tuple(opened_file for opened_file, _ in looked if opened_file)
            ids[target.pid] = {file: opened_file.path for opened_file, file in looked if opened_file and file}
            _note_child_locks(target.pid, holds)
        locks = held_locks()
        records = {pid: Files(files, tuple(_file_locks(ids[pid], locks, holds))) for pid, files in opened.items()}
        return Observation(records, unseen=tuple(unseen))


def _why(target: Target, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"PID {target.pid} has ended"
    return f"no permission to read the open files of PID {target.pid}; {remedy(target.pid)}"


def _look(
    pid: int, fd: int, known: dict[int, Mount], holds: dict[FileId, int]
) -> tuple[OpenFile | None, FileId | None]:
    """One descriptor, and the identity of its file if known without asking the filesystem."""
    path = procfs.link(f"/proc/{pid}/fd/{fd}")
    info = procfs.text(f"/proc/{pid}/fdinfo/{fd}")
    if path is None or info is None:  # closed meanwhile
        return None, None
    _note_locks(pid, info, holds)
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    flags = int(fields.get("flags", "0"), 8)
    mode = _MODES.get(flags & os.O_ACCMODE)
    position = int(fields["pos"]) if "pos" in fields else None
    if not path.startswith("/"):
        kind = _ANONYMOUS.get(path.partition(":")[0], "other")
        return OpenFile(fd, path, kind, mode=mode), None
    mount = known.get(int(fields.get("mnt_id", "-1")))
    local = mount is not None and mount.filesystem in LOCAL
    found = _stat(f"/proc/{pid}/fd/{fd}") if local else None
    kind = _kind(path, flags, found)
    inode = int(fields["ino"]) if "ino" in fields else found.st_ino if found else None
    return OpenFile(
        fd,
        path,
        kind,
        position=position if kind == "file" else None,
        size=found.st_size if found and kind == "file" else None,
        mode=mode,
        mount=mount.point if mount else None,
        filesystem=mount.filesystem if mount else None,
    ), (*mount.device, inode) if mount and inode is not None else None


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _kind(path: str, flags: int, found: os.stat_result | None) -> str:
    if found is not None:
        for test, kind in ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISFIFO, "fifo")):
            if test(found.st_mode):
                return kind
        return "device" if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode) else "other"
    if flags & os.O_DIRECTORY:
        return "directory"
    return "device" if path.startswith("/dev/") else "file"


def held_locks() -> list[Lock]:
    """The lines of /proc/locks: proc_locks(5)."""
    return [lock for line in (procfs.text("/proc/locks") or "").splitlines() if (lock := _parse(line))]


def _parse(line: str) -> Lock | None:
    match = _LOCK.match(line)
    if match is None:
        return None
    return Lock(_KINDS[match[2]], (int(match[4], 16), int(match[5], 16), int(match[6])), int(match[3]), bool(match[1]))


def lock_holders(lock: Lock, opened: Iterable[int]) -> tuple[tuple[int, ...], bool]:
    """The living processes that have a lock, and whether they inherited it.

    A lock of flock(2) belongs to the open file, which forked processes share. /proc/locks names the process that took
    it, and which may have closed the file since. `opened`: the processes that have the file open.
    """
    holders: dict[FileId, int] = {}
    found = []
    for pid in (lock.pid, *(pid for pid in opened if pid != lock.pid)):
        holders.clear()
        for fd in procfs.numbers(f"/proc/{pid}/fdinfo")[:_MAX]:
            _note_locks(pid, procfs.text(f"/proc/{pid}/fdinfo/{fd}") or "", holders)
        if lock.file in holders:
            found.append(pid)
    if lock.pid in found or not found:  # it holds the lock itself, or its descriptors cannot be read
        return ((lock.pid,) if lock.pid > 0 and _is_alive(lock.pid) else ()), False
    return tuple(sorted(found)), True


def _note_locks(pid: int, info: str, holds: dict[FileId, int]) -> None:
    """Note locks held through this descriptor: the only trace of a holder that inherited it or has no PID here."""
    for line in info.splitlines():
        if line.startswith("lock:") and (lock := _parse(line[5:].strip())):
            holds.setdefault(lock.file, pid)


def _note_child_locks(pid: int, holds: dict[FileId, int]) -> None:
    """The same for child processes: a lock outlives its taker in a forked worker."""
    for child in procfs.children(pid):
        for fd in procfs.numbers(f"/proc/{child}/fdinfo")[:_MAX]:
            _note_locks(child, procfs.text(f"/proc/{child}/fdinfo/{fd}") or "", holds)


def _file_locks(paths: dict[FileId, str], locks: Iterable[Lock], holds: dict[FileId, int]) -> Iterable[FileLock]:
    """Locks on these files, one per holder."""
    own = [lock for lock in locks if lock.file in paths]
    for lock in own:
        if lock.waits:
            continue
        waiting = {other.pid for other in own if other.waits and other.file == lock.file and other.pid > 0}
        holder = lock.pid if lock.pid > 0 and _is_alive(lock.pid) else holds.get(lock.file)
        yield FileLock(paths[lock.file], lock.file[2], lock.kind, holder, tuple(sorted(waiting)))


def _is_alive(pid: int) -> bool:
    found = procfs.stat(pid)
    return found is not None and found.state not in "ZX"


PROBE = FilesProbe()
