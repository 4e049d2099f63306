"""Memory of another process by process_vm_readv(2), which neither pauses nor changes it."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

_BATCH = 512  # pieces per system call; the kernel accepts up to 1024
_PAGE = 4096  # the smallest page size
_TOP = 1 << 56  # above all user addresses
_LONGEST = 1 << 24  # bytes of one piece: a garbage length must not make us allocate gigabytes


class Unreadable(Exception):
    """The address is not mapped, the process has ended, or we may not read it."""


class Memory:
    """The address space of one process, at the moment of each read."""

    __slots__ = ("pid",)

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes at `address`; raises Unreadable."""
        (data,) = self.read_many([(address, size)])
        if data is None:
            raise Unreadable(f"{size} bytes at {address:#x} of PID {self.pid}")
        return data

    def word(self, address: int) -> int:
        """The unsigned 64-bit word at `address`; raises Unreadable."""
        return int.from_bytes(self.read(address, 8), "little")

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """`count` unsigned 64-bit words; raises Unreadable."""
        return struct.unpack(f"<{count}Q", self.read(address, 8 * count))

    def read_many(self, pieces: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """Each (address, size), or None if not entirely readable. Few system calls.

        Raises Unreadable if the process itself cannot be read.
        """
        found: list[bytes | None] = []
        while len(found) < len(pieces):
            if not _sane(*pieces[len(found)]):
                found.append(None)
                continue
            batch = []
            for piece in pieces[len(found) : len(found) + _BATCH]:
                if not _sane(*piece):
                    break
                batch.append(piece)
            found += self._read_batch(batch)
        return found

    def peek_many(self, pieces: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """As `read_many`, but cuts a piece that runs into unmapped memory at the end of its first page."""
        found = self.read_many(pieces)
        cut = [(i, min(pieces[i][1], -pieces[i][0] % _PAGE)) for i, data in enumerate(found) if data is None]
        for (i, _), data in zip(cut, self.read_many([(pieces[i][0], size) for i, size in cut]), strict=True):
            found[i] = data
        return found

    def _read_batch(self, pieces: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """The leading pieces that could be read, and None for the first that could not."""
        total = sum(size for _, size in pieces)
        buffer = ctypes.create_string_buffer(total)
        flat = [number for piece in pieces for number in piece]
        local = struct.pack("<2Q", ctypes.addressof(buffer), total)
        remote = struct.pack(f"<{len(flat)}Q", *flat)
        count: int = _readv()(self.pid, local, 1, remote, len(pieces), 0)
        if count < 0:
            error = ctypes.get_errno()
            if error != errno.EFAULT:
                raise Unreadable(f"PID {self.pid}: {os.strerror(error)}")
            return [None]
        data = buffer.raw
        found: list[bytes | None] = []
        start = 0
        for _, size in pieces:
            if start + size > count:
                found.append(None)
                break
            found.append(data[start : start + size])
            start += size
        return found


def _sane(address: int, size: int) -> bool:
    return 0 < address < _TOP and 0 < size <= _LONGEST


@cache
def _readv() -> Any:
    readv = ctypes.CDLL(None, use_errno=True).process_vm_readv
    readv.restype = ctypes.c_ssize_t
    # The two iovec arrays are passed as packed bytes: ten times cheaper than ctypes structures.
    readv.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong]
    return readv
