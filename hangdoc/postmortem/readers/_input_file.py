"""Input files: found in folders, decompressed on reading, identified by their first bytes."""

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
from hangdoc.system.zstd_reader import ZstdReader

HEAD_BYTES = 64 * 2**10  # bytes from which a reader recognises a file
MAX_FILES = 200_000
_CHUNK = 2**16  # bytes decompressed at a time; damage costs at most one chunk
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_RANK_IN_NAME = re.compile(
    r"(?:rank|worker|proc|task)[_.\-]?(\d{1,6})(?!\d)|(?:^|[_.\-])(\d{1,6})(?=(?:\.[a-z]+)*$)", re.I
)


@dataclass(frozen=True, slots=True)
class Node:
    """A host of a job that ran one torchrun per host."""

    name: str | None  # None: the only host of the job
    first_rank: int | None  # its lowest global rank; None: unknown
    run: int = 0  # number of the job's run among the given files


@dataclass(frozen=True)
class Source:
    """A regular file; `name` appears in messages."""

    path: Path
    name: str
    size: int  # bytes on disk when it was found
    node: Node | None = None  # None: a single torchrun, or not in a torchrun log folder
    earlier_segments: tuple[Source, ...] = ()  # of the same recording, to be read first
    skipped_segments: int = 0  # of the same recording, not read

    @cached_property
    def head(self) -> bytes:
        """The first decompressed bytes, up to any damage; empty if unreadable."""
        found = b""
        with suppress(OSError, EOFError, ValueError), self.open() as file:
            while len(found) < HEAD_BYTES and (data := file.read1(HEAD_BYTES - len(found))):  # type: ignore[attr-defined]
                found += data
        return found

    @property
    def head_text(self) -> str:
        return self.head.decode("utf-8", "replace")

    def drop_head(self) -> None:
        """Free the cached head: thousands of small files hold 64 KiB each."""
        self.__dict__.pop("head", None)

    @cached_property
    def rank_in_name(self) -> int | None:
        """The rank in the file's name."""
        return rank_in_name(self.path.name)

    def line_number(self, line: int) -> int:
        """The number in the file of a line of the text; both from 1."""
        return line

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The decompressed content (gzip, zstd). Raises OSError on damage."""
        with _opened(self.path) as file:
            magic = file.peek(4)[:4]  # type: ignore[attr-defined]
            if magic[:2] == _GZIP:
                import gzip

                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield _SalvagingReader(_DecompressedStream(unpacked, file), _CHUNK)
            elif magic == _ZSTD:
                yield _SalvagingReader(_DecompressedStream(ZstdReader(file), file), _CHUNK)
            else:
                yield file


def rank_in_name(name: str, worded: bool = False) -> int | None:
    """The rank in a file name; `worded`: only one that a word announces (`rank_3.log`)."""
    match = None
    for match in _RANK_IN_NAME.finditer(name):
        if match[1]:
            break
    return int(match[1] or match[2]) if match and (match[1] or not worded) else None


class _DecompressedStream(io.RawIOBase):
    """Decompressed data; turns the exceptions of gzip, zlib and zstd on damage into OSError."""

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
            raise OSError(f"it decompresses to more than {self._most >> 20} MiB, too much for its size")
        buffer[: len(data)] = data
        return len(data)


class _SalvagingReader(io.BufferedReader):
    """`read` returns the data before damage; the next `read` raises OSError."""

    _damage: str | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        if self._damage is not None:
            raise OSError(self._damage)
        parts: list[bytes] = []
        left = size if size is not None and size >= 0 else input_limits.MAX_STREAM
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
    """Open a regular file, without blocking if it has become a FIFO."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path} is not a regular file")
    return os.fdopen(fd, "rb")


def find_sources(paths: Sequence[Path], warn: Callable[[str], None]) -> tuple[Source, ...]:
    """The regular files in `paths` and their folders, each once; links to folders are not followed."""
    found: dict[tuple[int, int], Source] = {}
    for path in paths:
        for file in _files(path, warn):
            if len(found) >= MAX_FILES:
                warn(f"{path}: more than {MAX_FILES} files; the rest were not read")
                return tuple(found.values())
            try:
                status = file.stat()
            except OSError as error:
                warn(f"{file}: {error.strerror or error}")
                continue
            if stat.S_ISREG(status.st_mode):
                found.setdefault((status.st_dev, status.st_ino), Source(file, str(file), status.st_size))
            elif file == path:
                warn(f"{file}: neither a file nor a folder; not read")
    return tuple(found.values())


def _files(path: Path, warn: Callable[[str], None]) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path, onerror=lambda error: warn(f"{error.filename}: {error.strerror}")):
        folders.sort()
        yield from (Path(folder, name) for name in sorted(names))
