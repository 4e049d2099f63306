"""Files named by another process, opened as that process would open them, and safely.

The target controls the names, links and mounts on a path, and the file: a FIFO without a writer, a device, /dev/stdin,
an absolute link out of a container, a file that its user may not read, a server that never answers. So every such file
is opened here:

* inside the target's root: openat2(2) with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS, relative to /proc/PID/root;
* with the permissions of the target's user, if we are root: setfsuid(2), which also drops CAP_DAC_*;
* with O_PATH first; only regular files and folders are then opened for reading;
* up to a number of bytes given by the caller, and at most the size from stat(2). Files of procfs have size 0 and read
  as empty, because /proc/self would be ours;
* in a separate thread with a deadline. A thread that hangs on a dead mount is abandoned, and further requests for that
  mount fail at once until the thread returns.

Linux credentials are per thread (NPTL, credentials(7)): other threads keep theirs.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import queue
import stat
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Generic, TypeVar

from hangdoc.system import procfs
from hangdoc.system.mounts import LOCAL, mount_of, mounts

T = TypeVar("T")
Name = TypeVar("Name", str, int)  # a path, or the number of an open descriptor of the process
Device = tuple[int, int]

DEADLINE_S = 2.0  # per file
MAX_STUCK = 64  # abandoned threads in total
MAX_STUCK_OF_USER = 4  # abandoned threads per user: one user must not use up the total
MAX_LINKS = 40  # symbolic links followed on one path, as in the kernel
MAX_DEPTH = 128  # folders on one path; without openat2 each takes a descriptor

_PLACE = os.O_PATH | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PIECE = 1 << 18  # bytes
_OPENAT2 = 437  # on every architecture; since Linux 5.6
_RESOLVE = 0x02 | 0x10  # RESOLVE_NO_MAGICLINKS, RESOLVE_IN_ROOT
_NO_LINKS = 0x04  # RESOLVE_NO_SYMLINKS
_RETRIES = 8  # of openat2 on EAGAIN: a folder was moved meanwhile
_SETGROUPS = {"x86_64": 116, "aarch64": 159, "riscv64": 159, "ppc64le": 81, "s390x": 206}.get(platform.machine())


@dataclass(frozen=True, slots=True)
class Content:
    """The first bytes of a regular file, and its status."""

    data: bytes
    status: os.stat_result


@dataclass(frozen=True, slots=True)
class TargetFiles:
    """The files of one process, by its own names for them; relative paths start in its working directory.

    All methods raise OSError: TimeoutError if the filesystem does not answer, PermissionError if the user of the
    process may not read the file.
    """

    pid: int

    def stat(self, path: str) -> os.stat_result:
        return _given(self.each([path], os.fstat)[path])

    def read(self, path: str, most: int) -> Content:
        """The content of a regular file, at most `most` bytes."""
        return _given(self.each([path], lambda fd: content(fd, most))[path])

    def names(self, path: str, most: int) -> list[str]:
        """At most `most` entries of a folder, unordered."""
        return _given(self.each([path], lambda fd: names(fd, most))[path])

    def each(self, names: Iterable[Name], look: Callable[[int], T], links: bool = True) -> dict[Name, T | OSError]:
        """The result of `look` for the descriptor (O_PATH) of each name, or its error.

        `links` False: follow no symbolic link.
        """
        found: dict[Name, T | OSError] = {}
        wanted = list(dict.fromkeys(names))
        while left := [name for name in wanted if name not in found]:
            if stuck := _abandoned():
                found |= {name: error for name in left if (error := _refusal(self.pid, name, stuck)) is not None}
                left = [name for name in left if name not in found]
            if left:
                found |= _asked(self.pid, left, look, links)
        return {name: found[name] for name in wanted}


def regular(fd: int) -> os.stat_result:
    """Status of an O_PATH descriptor, if it is a readable regular file. Raises OSError."""
    opened, status = _regular(fd)
    os.close(opened)
    return status


def content(fd: int, most: int) -> Content:
    """Content of an O_PATH descriptor, if it is a regular file. Raises OSError."""
    opened, status = _regular(fd)
    left = min(most, status.st_size)
    pieces: list[bytes] = []
    try:
        while left > 0 and (piece := os.read(opened, min(left, _PIECE))):
            pieces.append(piece)
            left -= len(piece)
    finally:
        os.close(opened)
    return Content(b"".join(pieces), status)


def names(fd: int, most: int) -> list[str]:
    """Entries of a folder given as O_PATH descriptor. Raises OSError."""
    opened = os.open(f"/proc/self/fd/{fd}", _READ | os.O_DIRECTORY)
    try:
        with os.scandir(opened) as entries:
            return [entry.name for entry in islice(entries, most)]
    finally:
        os.close(opened)


def read_failure(error: OSError) -> str:
    """Why a file could not be read, as the end of a sentence."""
    if error.errno == errno.EACCES and os.geteuid() == 0:
        return "its user may not read it"
    return error.strerror or str(error)


def _regular(fd: int) -> tuple[int, os.stat_result]:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, f"it is {_called(status.st_mode)}, not a regular file")
    return os.open(f"/proc/self/fd/{fd}", _READ), status


def _called(mode: int) -> str:
    kinds = ((stat.S_ISFIFO, "a FIFO"), (stat.S_ISDIR, "a folder"), (stat.S_ISSOCK, "a socket"))
    return next((name for test, name in kinds if test(mode)), "a device")


def _given(result: T | OSError) -> T:
    if isinstance(result, OSError):
        raise result
    return result


# --- threads that may be abandoned ------------------------------------------------------------------


class _FileThread(threading.Thread, Generic[T]):
    """Examines paths one after another; stops once it is abandoned.

    A daemon, never joined, because a thread stuck in the kernel must not keep hangdoc alive.
    """

    def __init__(self, pid: int, names: Sequence[str | int], look: Callable[[int], T], links: bool) -> None:
        super().__init__(name=f"files-of-{pid}", daemon=True)
        self.answers: queue.SimpleQueue[T | OSError] = queue.SimpleQueue()
        self.stuck: str | int | None = None  # the name at which it was abandoned; None: not abandoned
        self.device: Device | None = None  # of that name's mount, if it may depend on a server
        self.user: int | None = None
        self._process, self._names, self._look, self._links = pid, names, look, links

    def run(self) -> None:
        with ExitStack() as opened:
            try:
                process = _opened(f"/proc/{self._process}", os.O_DIRECTORY)
                opened.callback(os.close, process)
                rights = rights_of(process)
                self.user = rights.user
                root = _opened("root", os.O_DIRECTORY, process)
                opened.callback(os.close, root)
                base = _working_directory(process)
                # An open file needs no permission on its path; and /proc/PID/fd may belong to root.
                held = {name: _held(process, name) for name in self._names if isinstance(name, int)}
                assume(rights)
            except (OSError, ValueError) as error:
                for _ in self._names:
                    self.answers.put(_as_os_error(error))
                return
            for name in self._names:
                self.answers.put(self._at(root, base, held[name] if isinstance(name, int) else name))
                if self.stuck is not None:
                    break
            for descriptor in held.values():
                if isinstance(descriptor, int):
                    os.close(descriptor)

    def _at(self, root: int, base: str | None, name: str | int | OSError) -> T | OSError:
        try:
            if isinstance(name, OSError):
                return name
            if isinstance(name, int):
                return self._look(name)
            if base is None and not name.startswith("/"):
                raise FileNotFoundError(errno.ENOENT, "its working directory is not inside its root")
            fd = open_place(root, name if name.startswith("/") else f"{base}/{name}", self._links)
            try:
                return self._look(fd)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            return _as_os_error(error)


def _held(process: int, descriptor: int) -> int | OSError:
    try:
        return _opened(f"fd/{descriptor}", 0, process)
    except OSError as error:
        return error


def _asked(pid: int, names: Sequence[Name], look: Callable[[int], T], links: bool) -> dict[Name, T | OSError]:
    """The answers in order, up to and including the first timeout."""
    thread = _FileThread(pid, names, look, links)
    thread.start()
    found: dict[Name, T | OSError] = {}
    for name in names:
        try:
            found[name] = thread.answers.get(timeout=DEADLINE_S)
        except queue.Empty:
            thread.device = _server(pid, name)
            thread.stuck = name
            found[name] = TimeoutError(errno.ETIMEDOUT, f"its filesystem did not answer within {DEADLINE_S:g} s")
            break
    return found


def _abandoned() -> list[_FileThread[Any]]:
    """Abandoned threads that still hang."""
    return [t for t in threading.enumerate() if isinstance(t, _FileThread) and t.stuck is not None]


def _refusal(pid: int, name: str | int, abandoned: Sequence[_FileThread[Any]]) -> OSError | None:
    """Why a name is not examined now, while other threads hang; None: go ahead."""
    try:
        process = _opened(f"/proc/{pid}", os.O_DIRECTORY)
        try:
            user = rights_of(process).user
        finally:
            os.close(process)
    except (OSError, ValueError) as error:
        return _as_os_error(error)
    own = [thread for thread in abandoned if thread.user == user]
    device = _server(pid, name)
    if any(thread.stuck == name or (device is not None and thread.device == device) for thread in own):
        return TimeoutError(errno.ETIMEDOUT, "its filesystem does not answer")
    if len(own) >= MAX_STUCK_OF_USER or len(abandoned) >= MAX_STUCK:
        return TimeoutError(errno.ETIMEDOUT, "not asked for: too many other files do not answer")
    return None


def _server(pid: int, name: str | int) -> Device | None:
    """Device of the mount of a path, by its text; None: a local filesystem."""
    path = procfs.link(f"/proc/{pid}/fd/{name}") or "" if isinstance(name, int) else name
    mount = mount_of(path, mounts(pid))
    return mount.device if mount is not None and mount.filesystem not in LOCAL else None


def _as_os_error(error: OSError | ValueError) -> OSError:
    return error if isinstance(error, OSError) else OSError(errno.EINVAL, str(error))  # a NUL in a name


# --- path resolution ------------------------------------------------------------------------------


def open_place(root: int, path: str, links: bool = True) -> int:
    """A new O_PATH descriptor of `path` under the folder `root`. Raises OSError.

    No link leads out of `root`, and magic links of procfs are not followed.
    """
    for _ in range(_RETRIES):
        fd = _openat2(root, path, _RESOLVE if links else _RESOLVE | _NO_LINKS)
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code in (errno.ENOSYS, errno.EPERM):  # an older kernel, or a container's older seccomp filter
            return walk(root, path, links)
        if code != errno.EAGAIN:
            break
    raise OSError(code, os.strerror(code))


def _openat2(root: int, path: str, resolve: int) -> int:
    how = struct.pack("=3Q", _PLACE, 0, resolve)
    return int(_libc().syscall(_OPENAT2, root, ctypes.c_char_p(_encoded(path)), how, ctypes.c_size_t(len(how))))


def walk(root: int, path: str, links: bool = True) -> int:
    """`open_place` component by component, for kernels without openat2; `..` returns to the folder walked through."""
    left = path.split("/")[::-1]
    followed = 0
    with ExitStack() as opened:
        folders = [_duplicate(root, opened)]
        while left:
            name = left.pop()
            if name in ("", "."):
                continue
            if name == "..":
                if len(folders) > 1:
                    folders.pop()
                continue
            if len(folders) > MAX_DEPTH:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
            fd = _opened(name, os.O_NOFOLLOW, folders[-1])
            opened.callback(os.close, fd)
            if not stat.S_ISLNK(os.fstat(fd).st_mode):
                folders.append(fd)
                continue
            followed += 1
            if followed > MAX_LINKS * links:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = os.readlink("", dir_fd=fd)
            left += target.split("/")[::-1]
            if target.startswith("/"):
                del folders[1:]
        return os.dup(folders[-1])


def _duplicate(fd: int, opened: ExitStack) -> int:
    copy = os.dup(fd)
    opened.callback(os.close, copy)
    return copy


def _opened(path: str, flags: int, folder: int | None = None) -> int:
    return os.open(_encoded(path), _PLACE | flags, dir_fd=folder)


def _encoded(path: str) -> bytes:
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise ValueError("a name with a NUL in it")
    return encoded


def _working_directory(process: int) -> str | None:
    """Path of the working directory inside the root of the process; None: outside."""
    root, here = (os.readlink(name, dir_fd=process).rstrip("/") for name in ("root", "cwd"))
    return here[len(root) :] if here == root or here.startswith(root + "/") else None


# --- permissions ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rights:
    """The IDs that decide which files a process may read."""

    user: int
    group: int
    groups: tuple[int, ...]


def rights_of(process: int) -> Rights:
    """Rights of a process, given a descriptor of its folder in /proc. Raises OSError, ValueError.

    A process with the IDs of two users (setuid) gets those of the one that is not root.
    """
    fd = os.open("status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
    try:
        data = b""
        while piece := os.read(fd, 1 << 16):
            data += piece
    finally:
        os.close(fd)
    fields = dict(line.split(b":", 1) for line in data.splitlines() if b":" in line)
    if b"Uid" not in fields or b"Gid" not in fields:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    users, of_groups = ([int(word) for word in fields[name].split()] for name in (b"Uid", b"Gid"))
    return Rights(
        next((user for user in users[::-1] if user), 0),  # real, effective, saved, filesystem
        next((group for group in of_groups[::-1] if group), 0),
        tuple(int(word) for word in fields.get(b"Groups", b"").split()),
    )


def assume(rights: Rights) -> None:
    """If we are root, permanently give the calling thread these rights to files.

    Raises PermissionError if refused: we must not read a file for a user who may not read it.
    """
    if os.geteuid() != 0 or rights.user == 0:
        return
    libc = _libc()
    # glibc's setgroups() changes every thread; its setfsuid() and setfsgid() change only the calling one.
    groups = (ctypes.c_uint32 * len(rights.groups))(*rights.groups)
    refused = _SETGROUPS is None or libc.syscall(_SETGROUPS, ctypes.c_size_t(len(groups)), groups) != 0
    for change, wanted in ((libc.setfsgid, rights.group), (libc.setfsuid, rights.user)):
        change(ctypes.c_uint32(wanted))
        refused = refused or change(ctypes.c_uint32(0xFFFFFFFF)) != wanted  # returns the previous ID
    if refused:
        raise PermissionError(
            errno.EPERM, f"the rights of user {rights.user} could not be taken on; give hangdoc CAP_SETUID, CAP_SETGID"
        )


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)
