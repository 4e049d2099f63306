"""The files at which sleeping threads are: by their system call, or by the page of a mapped file they wait for.

A file's own filesystem is asked only where that cannot block.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator

from hangdoc.evidence import FileCall, Helper, Process
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.redaction.text import redact
from hangdoc.system import procfs
from hangdoc.system.mounts import LOCAL, Mount, mount_of, mounts
from hangdoc.system.target_files import TargetFiles
from probes import _syscalls

# Paths that are code, logs or the system's, and no data of a job.
NO_DATA = re.compile(
    r"^/(usr|lib|lib64|bin|sbin|proc|sys|dev|etc|run/shm|opt/(conda|venv))(/|$)|/(site|dist)-packages(/|$)|/lib/python3"
    r"|\.(py|pyc|pyd|so|egg|pth|log|out|err|lock)(\.\d+)*$|/(memfd|SYSV|\[)| \(deleted\)$|/torch_\w+$|^/$"
)
_PAGES_COME = LOCAL | {"hugetlbfs", "devpts", "proc", "sysfs", "mqueue"}
_PATH_MAX = 4096
_PAGE = 4096


def identity(call: FileCall) -> tuple[int, str, str]:
    return call.tid, call.call, call.path


def calls(process: Process, helpers: Iterable[Helper]) -> Iterator[FileCall]:
    """What sleeping threads of a rank, and the main threads of its helpers, do at files."""
    for thread in process.threads:
        if thread.state in "SD" and (thread.state == "D" or _syscalls.is_on_file(thread.syscall)):
            yield from _call(process.pid, thread.tid, thread.state, thread.wchan, thread.voluntary)
    for helper in helpers:
        if helper.state == "D" or helper.sleeps == "file":
            wchan = procfs.text(f"/proc/{helper.pid}/wchan")
            yield from _call(helper.pid, helper.pid, helper.state, wchan, helper.switches)


def _call(pid: int, tid: int, state: str, wchan: str | None, switches: int | None) -> Iterator[FileCall]:
    call = _syscalls.of(pid, tid)
    if call is None or not (call.names or call.kind == "fault"):
        return
    fd = call.arguments[0] & 0x7FFFFFFF if call.names == _syscalls.FD else None
    if call.kind == "fault":
        path, mount = _mapped(pid)
    else:
        path = procfs.link(f"/proc/{pid}/fd/{fd}") if fd is not None else _path(pid, call)
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


def _opens_to_write(call: _syscalls.Call) -> bool:
    flags = call.arguments[2 if call.names == _syscalls.PATH_AT else 1]
    return flags & os.O_ACCMODE == os.O_WRONLY


def _path(pid: int, call: _syscalls.Call) -> str | None:
    """The path a call was given, from the memory of the process."""
    at = call.names == _syscalls.PATH_AT
    address = call.arguments[1 if at else 0]
    try:
        # A string may end just before a page that is not mapped.
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
    if mount is None or mount.filesystem not in LOCAL:
        return "unknown" if fd is None else "device" if path.startswith("/dev/") else "file"
    try:
        mode = (os.stat(f"/proc/{pid}/fd/{fd}") if fd is not None else TargetFiles(pid).stat(path)).st_mode
    except OSError:
        return "unknown"
    tests = ((stat.S_ISREG, "file"), (stat.S_ISFIFO, "fifo"), (stat.S_ISDIR, "directory"), (stat.S_ISCHR, "device"))
    return next((kind for test, kind in tests if test(mode)), "other")


def _mapped(pid: int) -> tuple[str | None, Mount | None]:
    """The file a missing page must come from; its mount, where several files of one mount are mapped.

    The kernel does not tell the address. Files of this machine's own filesystems are left out: their pages come.
    """
    table = mounts(pid)
    lines = (
        fields for line in (procfs.text(f"/proc/{pid}/maps") or "").splitlines() if (fields := line.split(None, 5))
    )
    over = {fields[5]: mount_of(fields[5], table) for fields in lines if len(fields) > 5 and fields[5].startswith("/")}
    far = {path: mount for path, mount in over.items() if mount is not None and mount.filesystem not in _PAGES_COME}
    data = {path: mount for path, mount in far.items() if not NO_DATA.search(path)} or far
    points = {mount.point: mount for mount in data.values()}
    if len(points) != 1:
        return None, None
    (point, mount), files = points.popitem(), list(data)
    return files[0] if len(files) == 1 else point, mount
