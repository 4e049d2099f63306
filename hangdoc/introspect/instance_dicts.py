"""Dicts of another CPython (3.10 to 3.14), and the `__dict__` of its objects, many in a few system calls.

Layouts: Include/cpython/dictobject.h, Include/internal/pycore_dict.h, pycore_object.h of those versions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from hangdoc.introspect.objects import DICT, MANAGED_DICT, Objects, Type

_ENTRIES = 4096  # of a dict
_DICT_SLOT = -24  # of the pointer to `__dict__` before an object (from 3.11)
_DICT_OFFSET = 16  # of that pointer in an object (3.10)


def read_dicts(
    objects: Objects, version: tuple[int, int], addresses: Iterable[int]
) -> dict[int, list[tuple[int, int]]]:
    """Addresses of keys and values, in order of insertion, of the dicts among these objects. Raises Unreadable."""
    memory = objects.memory
    heads = {
        address: struct.unpack_from("<4Q", head, 16)  # used, version, keys, values
        for address, (kind, head) in objects.heads(addresses).items()
        if kind.flags & DICT
    }
    full = {address: head for address, head in heads.items() if 0 < head[0] <= _ENTRIES}
    tables: dict[int, tuple[int, int, int, int]] = {}  # start, stride and length of the entries; address of values
    for (address, (_, _, keys, values)), data in zip(
        full.items(), memory.read_many([(head[2], 40) for head in full.values()]), strict=True
    ):
        if data is not None and (table := _table(keys, data, version)) is not None:
            tables[address] = (*table, values + 8 if values and version >= (3, 13) else values)
    entries = memory.read_many([(start, stride * count) for start, stride, count, _ in tables.values()])
    split = {address: table for address, table in tables.items() if table[3]}
    shared = dict(zip(split, memory.read_many([(values, 8 * n) for _, _, n, values in split.values()]), strict=True))
    found: dict[int, list[tuple[int, int]]] = {address: [] for address in heads if not heads[address][0]}
    for (address, (_, stride, count, values)), data in zip(tables.items(), entries, strict=True):
        if data is None:
            continue
        pairs: Iterable[tuple[int, int]] = struct.iter_unpack("<8x2Q" if stride == 24 else "<2Q", data)
        if values:  # keys that instances of a class share, and values of this one
            own = shared[address]
            if own is None:
                continue
            pairs = zip((key for key, _ in pairs), struct.unpack(f"<{count}Q", own), strict=True)
        found[address] = [(key, value) for key, value in pairs if key and value]
    return found


def instance_dicts(objects: Objects, version: tuple[int, int], kinds: Mapping[int, Type]) -> dict[int, int]:
    """Addresses of `__dict__` by object; without those whose `__dict__` nobody has asked for. Raises Unreadable."""
    slots = {
        address: address + (_DICT_SLOT if kind.flags & MANAGED_DICT else _DICT_OFFSET)
        for address, kind in kinds.items()
        if kind.flags & MANAGED_DICT or version == (3, 10)
    }
    words = objects.memory.read_many([(slot, 8) for slot in slots.values()])
    found = {a: int.from_bytes(word, "little") for a, word in zip(slots, words, strict=True) if word is not None}
    return {address: table for address, table in found.items() if table and not table & 7}


def _table(keys: int, data: bytes, version: tuple[int, int]) -> tuple[int, int, int] | None:
    """Start, stride and length of a dict's entries, from the head of its keys; None: not plausible."""
    if version <= (3, 10):  # dk_refcnt dk_size dk_lookup dk_usable dk_nentries
        _, size, _, _, count = struct.unpack("<5Q", data)
        width = 1 if size <= 0xFF else 2 if size <= 0xFFFF else 4
        start, stride = keys + 40 + size * width, 24
    else:  # dk_refcnt, dk_log2_size:8 dk_log2_index_bytes:8 dk_kind:8, dk_version:32, dk_usable dk_nentries
        _, bits, _, count = struct.unpack_from("<4Q", data)
        if bits >> 8 & 255 > 43:
            return None
        start, stride = keys + 32 + (1 << (bits >> 8 & 255)), 24 if bits >> 16 & 255 == 0 else 16
    return (start, stride, count) if 0 < count <= _ENTRIES else None
