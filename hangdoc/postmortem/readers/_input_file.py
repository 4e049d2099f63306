"""A file to be read: found in a folder, unpacked where it is packed, known by its head."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from hangdoc.system import input_limits

HEAD = 64 * 2**10  # bytes by which a source is known
MOST_FILES = 200_000
_CHUNK = 2**16  # bytes unpacked at a time: what stands before a damage in one is lost
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_RANK_IN_NAME = re.compile(
    r"(?:rank|worker|proc|task)[_.\-]?(\d{1,6})(?!\d)|(?:^|[_.\-])(\d{1,6})(?=(?:\.[a-z]+)*$)", re.I
)


@dataclass(frozen=True, slots=True)
class Node:
    """One of the hosts of a job, each with a torchrun of its own."""

    name: str | None  # None: the job has no other
    first: int | None  # the lowest of its ranks; None: not known
    run: int = 0  # number of the job's run, of those whose files are there


@dataclass(frozen=True)
class Source:
    """A regular file; `name` is what the user is told."""

    path: Path
    name: str
    size: int  # bytes on disk when it was found
    node: Node | None = None  # whose torchrun wrote it; None: there is one torchrun only, or it did not
    before: tuple[Source, ...] = ()  # earlier segments of the same recording, to be read with it
    skipped: int = 0  # segments of it that need not be read

    @cached_property
    def head(self) -> bytes:
        """The first bytes, unpacked; those before a damage; empty where they cannot be read."""
        found = b""
        with suppress(OSError, EOFError, ValueError), self.open() as file:
            while len(found) < HEAD and (data := file.read1(HEAD - len(found))):  # type: ignore[attr-defined]
                found += data
        return found

    def forget_head(self) -> None:
        """Give its memory back once the file has been read: thousands of small files unpack to as much each."""
        self.__dict__.pop("head", None)

    @cached_property
    def rank_in_name(self) -> int | None:
        """The rank that the file's name says it is of."""
        match = None
        for match in _RANK_IN_NAME.finditer(self.path.name):
            if match[1]:
                break
        return int(match[1] or match[2]) if match else None

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Its bytes, unpacked (gzip, zstd). What damage raises is an OSError."""
        with _opened(self.path) as file:
            magic = file.peek(4)[:4]  # type: ignore[attr-defined]
            if magic[:2] == _GZIP:
                import gzip

                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield _Buffered(_Unpacked(unpacked, file), _CHUNK)
            elif magic == _ZSTD:
                from zstandard import ZstdDecompressor

                with ZstdDecompressor(max_window_size=2**27).stream_reader(file, read_across_frames=True) as packed:
                    yield _Buffered(_Unpacked(packed, file), _CHUNK)
            else:
                yield file


class _Unpacked(io.RawIOBase):
    """What an archive holds; damage, which gzip, zlib and zstd each have an exception for, is an OSError here."""

    def __init__(self, stream: Any, packed: IO[bytes]) -> None:
        self._stream = stream
        self._size = 0
        self._most = input_limits.most_streamed(os.fstat(packed.fileno()).st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data: bytes = self._stream.read1(len(buffer))
        except MemoryError:
            raise
        except Exception as error:
            raise OSError(f"damaged archive ({error})") from error
        self._size += len(data)
        if self._size > self._most:
            raise OSError(f"it unpacks to more than {self._most >> 20} MiB, too much for its size")
        buffer[: len(data)] = data
        return len(data)


class _Buffered(io.BufferedReader):
    """`read` gives what comes before a damage; whoever reads on is told."""

    _damage: str | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        if self._damage is not None:
            raise OSError(self._damage)
        parts: list[bytes] = []
        left = size if size is not None and size >= 0 else input_limits.STREAM_MOST
        while left > 0:
            try:
                data = self.read1(min(left, _CHUNK))
            except OSError as error:
                if not parts:
                    raise
                self._damage = str(error)
                break
            if not data:
                break
            parts.append(data)
            left -= len(data)
        return b"".join(parts)


def _opened(path: Path) -> IO[bytes]:
    """A regular file; one that has become a FIFO since must not hold us up."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path} is not a regular file")
    return os.fdopen(fd, "rb")


def gather(paths: Sequence[Path], problem: Callable[[str], None]) -> tuple[Source, ...]:
    """The regular files among `paths` and in the folders among them, each once; links to folders are not followed."""
    found: dict[tuple[int, int], Source] = {}
    for path in paths:
        for file in _files(path, problem):
            if len(found) >= MOST_FILES:
                problem(f"{path}: more than {MOST_FILES} files; the rest is not read")
                return tuple(found.values())
            try:
                status = file.stat()
            except OSError as error:
                problem(f"{file}: {error.strerror or error}")
                continue
            if stat.S_ISREG(status.st_mode):
                found.setdefault((status.st_dev, status.st_ino), Source(file, str(file), status.st_size))
            elif file == path:
                problem(f"{file}: neither a file nor a folder; not read")
    return tuple(found.values())


def _files(path: Path, problem: Callable[[str], None]) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path, onerror=lambda error: problem(f"{error.filename}: {error.strerror}")):
        folders.sort()
        yield from (Path(folder, name) for name in sorted(names))
