"""Writes files readable by their owner only, safe for root on a host with other users.

Reports and recordings contain stacks and variables of a job. Anyone with write permission to a folder on the path could
plant a symbolic link there and make root overwrite another file. So paths are walked component by component, and only
links owned by root or by us are followed (the rule of protected_symlinks, proc_sys_fs(5)).
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PRIVATE = 0o600  # mode of a file: only its owner reads and writes it
MAX_LINKS = 40  # symbolic links followed on one path, as in the kernel (path_resolution(7))
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}


def replace_file(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Write a file at `path`, atomically: an old file stays until the new one is complete on disk.

    The old file's mode, owner and hard links are not kept. Writes directly to `/dev/stdout`, `/dev/stderr` and
    `/dev/fd/N`. Raises OSError, also if `path` is a symbolic link, a folder or a device.
    """
    if (stream := _own_descriptor(path)) is not None:
        write_all(stream, content)
        return
    with open_folder(path.parent) as folder:
        _refuse_irregular(path, folder)
        temporary = f".{path.name[:100]}.{secrets.token_hex(8)}.tmp"
        descriptor = create(temporary, folder)
        try:
            try:
                write_all(descriptor, content)
                if mode != PRIVATE:
                    os.fchmod(descriptor, mode)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        sync_folder(folder)


def create(name: str, folder: int) -> int:
    """Create a file with mode 0600 in an open folder; its descriptor. Raises FileExistsError and other OSErrors."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, PRIVATE, dir_fd=folder)


def open_file(path: Path) -> int:
    """A descriptor of a regular file for reading, reached without links of other users. Raises OSError."""
    for _ in range(MAX_LINKS):
        with open_folder(path.parent) as folder:
            target = _link(path.name, folder, make=False)
            if target is None:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                descriptor = os.open(path.name, flags, dir_fd=folder)
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return descriptor
                os.close(descriptor)
                raise OSError(errno.EINVAL, "is not a regular file", str(path))
        path = path.parent / target
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def read_file(path: Path, most: int) -> bytes:
    """The content of a regular file, found as `open_file` does. Raises OSError if it has over `most` bytes."""
    with os.fdopen(open_file(path), "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"is larger than {most} bytes", str(path))
    return content


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte; a single write(2) may write only a part. Raises OSError."""
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def sync_folder(folder: int) -> None:
    """Make the names in an open folder survive a power failure, if its filesystem supports it and it is readable."""
    with suppress(OSError):
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def open_folder(path: Path, make: bool = False) -> Iterator[int]:
    """A descriptor of a folder, reached without links of other users. Raises OSError.

    With `make`, create missing folders with mode 0700.
    """
    descriptor = _walk(path, make)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _walk(path: Path, make: bool) -> int:
    parts, at, links = list(reversed(path.parts)), os.open(".", _FOLDER), 0
    try:
        while parts:
            name = parts.pop()
            target = _link(name, at, make)
            if target is None:
                at = _enter(name, at)
                continue
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            parts.extend(reversed(Path(target).parts))
    except OSError as error:
        os.close(at)
        raise OSError(error.errno, error.strerror, str(path)) from None
    return at


def _enter(name: str, at: int) -> int:
    """Open the folder `name` in `at` and close `at`."""
    inner = os.open(name, _FOLDER, dir_fd=at)
    os.close(at)
    return inner


def _link(name: str, at: int, make: bool) -> str | None:
    """Target of a symbolic link owned by root or us; None: not a link. With `make`, create a missing folder."""
    try:
        status = os.lstat(name, dir_fd=at)
    except FileNotFoundError:
        if not make:
            raise
        os.mkdir(name, 0o700, dir_fd=at)
        return None
    if not stat.S_ISLNK(status.st_mode):
        return None
    if status.st_uid not in (0, os.geteuid()):
        raise OSError(errno.ELOOP, f"{name} is a symbolic link of another user (uid {status.st_uid})")
    return os.readlink(name, dir_fd=at)


def _refuse_irregular(path: Path, folder: int) -> None:
    try:
        mode = os.lstat(path.name, dir_fd=folder).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, "is a symbolic link: name the file that it leads to", str(path))
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))


def _own_descriptor(path: Path) -> int | None:
    """The descriptor of our process that a path names, as in `--html /dev/stdout` or `>(command)`."""
    name = str(path)
    number = name.removeprefix("/dev/fd/")
    if number != name and number.isascii() and number.isdigit() and len(number) < 10:
        return int(number)
    return _STREAMS.get(name)
