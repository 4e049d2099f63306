"""Exported symbols of a program or library, read from another process's memory.

Not from the file, which may be deleted, replaced, or in another mount namespace.
Source: System V ABI, 64-bit little-endian ELF with DT_GNU_HASH.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from hangdoc.introspect.memory import Memory, Unreadable

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH = 5, 6, 0x6FFFFEF5
_MAX_CHAIN = 64  # symbols followed in a hash bucket
_DYNAMIC = 128  # entries read of the dynamic section
_MAX_MAPPINGS = 200_000  # read of a process; the kernel allows 65530 by default


@dataclass(frozen=True, slots=True)
class Image:
    """A file mapped from offset 0."""

    path: str
    base: int  # address of its first byte
    key: tuple[str, int]  # device and inode: one file for all processes of the host


def images(pid: int) -> list[Image]:
    """Files mapped into `pid`, lowest address first; none if they cannot be read."""
    found: dict[tuple[str, int], Image] = {}
    try:
        with Path(f"/proc/{pid}/maps").open(errors="replace") as lines:
            for line in islice(lines, _MAX_MAPPINGS):
                span, _, offset, device, inode, *path = line.rstrip("\n").split(None, 5)
                key = (device, int(inode))
                if path and key[1] and int(offset, 16) == 0 and key not in found:
                    found[key] = Image(path[0].removesuffix(" (deleted)"), int(span.partition("-")[0], 16), key)
    except OSError:
        return []
    return list(found.values())


class Symbols:
    """The dynamic symbol table of one image."""

    def __init__(self, memory: Memory, base: int) -> None:
        """Raises Unreadable if the image is not 64-bit little-endian ELF with a GNU hash table."""
        self._memory = memory
        header = memory.read(base, 64)
        if header[:6] != b"\x7fELF\x02\x01":
            raise Unreadable("not a 64-bit little-endian ELF image")
        (table,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<2H", header, 54)
        segments = [
            struct.unpack_from("<2I4Q", memory.read(base + table + index * size, 56)) for index in range(min(count, 64))
        ]
        first = min((address for kind, _, _, address, *_ in segments if kind == _PT_LOAD), default=0)
        self._bias = base - (first & ~0xFFF)
        dynamic = next((address for kind, _, _, address, *_ in segments if kind == _PT_DYNAMIC), None)
        if dynamic is None:
            raise Unreadable("no dynamic section")
        self._tables = self._dynamic(self._bias + dynamic, base)

    def _dynamic(self, address: int, base: int) -> dict[int, int]:
        found: dict[int, int] = {}
        data = self._memory.peek_many([(address, 16 * _DYNAMIC)])[0] or b""
        for tag, value in struct.iter_unpack("<2Q", data[: len(data) & ~15]):
            if tag == 0:
                break
            # glibc relocates these to addresses, other loaders leave them relative.
            found[tag] = value if value >= base else self._bias + value
        if not {_DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH} <= found.keys():
            raise Unreadable("no symbol table")
        return found

    def find(self, name: str) -> tuple[int, int] | None:
        """Address and size of a defined symbol, or None. Raises Unreadable."""
        table = self._tables[_DT_GNU_HASH]
        buckets, skipped, bloom, _ = struct.unpack("<4I", self._memory.read(table, 16))
        if not buckets:
            return None
        hashed = 5381
        for letter in name.encode():
            hashed = (hashed * 33 + letter) & 0xFFFFFFFF
        start = table + 16 + 8 * bloom
        index = self._int(start + 4 * (hashed % buckets))
        if index < skipped:
            return None
        for _ in range(_MAX_CHAIN):
            chained = self._int(start + 4 * buckets + 4 * (index - skipped))
            if chained | 1 == hashed | 1 and (symbol := self._symbol(index, name)) is not None:
                return symbol
            if chained & 1:
                return None
            index += 1
        return None

    def _int(self, address: int) -> int:
        return int.from_bytes(self._memory.read(address, 4), "little")

    def _symbol(self, index: int, name: str) -> tuple[int, int] | None:
        """Symbol number `index` if it has that name and is defined here."""
        raw = self._memory.read(self._tables[_DT_SYMTAB] + 24 * index, 24)
        string, _, _, section, value, size = struct.unpack("<I2BH2Q", raw)
        wanted = name.encode() + b"\0"
        if section == 0 or self._memory.read(self._tables[_DT_STRTAB] + string, len(wanted)) != wanted:
            return None
        return self._bias + value, size
