"""Pending sends and receives in the gloo process groups of another process.

Each pair of ranks keeps two hash maps, first of sends and then of receives that it has started and that have not yet
moved any data; a context keeps one of receives from any rank. Their keys are the tags. Collectives use the same maps,
with keys beyond any tag. Every object is recognised by its class, every hash map by its load factor of 1, so that
offsets may differ between versions.
Source: gloo/transport/tcp/{context,pair,unbound_buffer}.h, gloo/common/memory.h; torch 2.13, ProcessGroupGloo.hpp;
libstdc++, bits/hashtable.h, bits/stl_deque.h.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hangdoc.introspect.cpp_objects import class_names, is_pointer, pointers
from hangdoc.introspect.memory import Memory

DEADLINE_S = 0.25  # of one process
_VALUE = 16  # offset of the C++ object's address in a pybind11 object
_GROUP, _BACKEND = "N4c10d12ProcessGroupE", "N4c10d16ProcessGroupGlooE"
_OUTER = ("IN4gloo10rendezvous7ContextE", "IN4gloo7ContextE")  # in the class of a control block
_CONTEXT, _PAIR = "N4gloo9transport3tcp7ContextE", "N4gloo9transport3tcp4PairE"
_BUFFER = "N4gloo9transport3tcp13UnboundBufferE"
_WORKS = ("N4c10d16ProcessGroupGloo8SendWorkE", "N4c10d16ProcessGroupGloo8RecvWorkE")
_WORDS, _MAP_WORDS = 192, 7  # searched of an object; of an unordered_map
_LARGEST = 1 << 16  # bytes of an object
_CONTEXTS = 16  # of a backend
_HEAD = 8  # words of a gloo context, up to its transport context
_PAIRS = 4096  # of a context
_KEYS, _ITEMS = 64, 64  # of a map; of a deque
_LOAD_FACTOR = 0x3F800000  # 1.0f
_TAGS = 1 << 31
_DEQUE_BYTES = 512  # of a node
_OF_PAIR = (32, 2)  # tuple(weak_ptr, offset, nbytes), stored from the last: its bytes, index of the buffer's address
_OF_ANYONE = (88, 9)  # tuple(weak_ptr, offset, nbytes, unordered_set)


@dataclass(frozen=True, slots=True)
class Pending:
    """A send or receive that waits for its counterpart."""

    sends: bool
    peer: int | None  # rank within the group; None: any
    tag: int
    buffer: int  # address of its buffer, which its Work holds


def pending_transfers(memory: Memory, group: int, rank: int, size: int) -> list[Pending] | None:
    """The pending transfers of a Python ProcessGroup; None: not gloo, or not as expected. Raises Unreadable.

    `rank` and `size`: of this process in the group, which the contexts must confirm.
    """
    until_s = time.monotonic() + DEADLINE_S
    found: list[Pending] = []
    contexts = _contexts(memory, memory.word(group + _VALUE), (rank, size))
    for context in contexts:
        words = pointers(memory, context, _WORDS)
        own = next((at for at in range(len(words) - _MAP_WORDS) if _is_map(words[at:], context + 8 * at)), None)
        pairs = _pairs(memory, words, size)
        if pairs is None:
            return None
        if own is not None:
            found += _of_map(memory, words[own : own + _MAP_WORDS], _OF_ANYONE, sends=False, peer=None)
        for peer, pair in pairs:
            if time.monotonic() > until_s:
                return None
            maps = _maps_of_pair(memory, pair)
            if maps is None:
                return None
            for sends, table in zip((True, False), maps, strict=True):
                found += _of_map(memory, table, _OF_PAIR, sends, peer)
    names = class_names(memory, [one.buffer for one in found])
    return [one for one in found if names.get(one.buffer) == _BUFFER] if contexts else None


def buffers_of_works(memory: Memory, works: Sequence[int]) -> dict[int, int]:
    """Address of the buffer of each Python Work that is a send or receive over gloo. Raises Unreadable."""
    values = [int.from_bytes(data or b"", "little") for data in memory.read_many([(w + _VALUE, 8) for w in works])]
    names = class_names(memory, values)
    found: dict[int, int] = {}
    for work, value in zip(works, values, strict=True):
        if names.get(value) in _WORKS:
            near = class_names(memory, _allocated(memory, value, _WORDS))
            buffer = next((address for address, name in near.items() if name == _BUFFER), None)
            if buffer is not None:
                found[work] = buffer
    return found


def _contexts(memory: Memory, group: int, place: tuple[int, int]) -> list[int]:
    """The transport contexts behind a c10d::ProcessGroup.

    A group refers to its backends in hash maps, a backend to its gloo contexts in a vector of shared pointers. A gloo
    context has no class to see, but the control block beside it has.
    """
    if class_names(memory, [group]).get(group) != _GROUP:
        return []
    _, names = _inside(memory, [group])
    tables, names = _inside(memory, [address for address, name in names.items() if name == _BACKEND])
    outer = [
        a for words in tables for a, block in pairwise(words) if any(kind in names.get(block, "") for kind in _OUTER)
    ]
    inner = class_names(memory, [word for o in dict.fromkeys(outer) for word in pointers(memory, o, _HEAD)])
    found = [address for address, name in inner.items() if name == _CONTEXT]
    words = memory.read_many([(context + 8, 8) for context in found])
    return [c for c, data in zip(found, words, strict=True) if data is not None and struct.unpack("<2i", data) == place]


def _inside(memory: Memory, addresses: Iterable[int]) -> tuple[list[tuple[int, ...]], dict[int, str]]:
    """The words in the containers that objects refer to, and the classes of all objects near by."""
    direct = [word for a in addresses for word in _allocated(memory, a, _WORDS) if is_pointer(word)]
    names = class_names(memory, direct)
    tables = [_allocated(memory, a, 2 * _CONTEXTS) for a in dict.fromkeys(direct) if a not in names]
    return tables, names | class_names(memory, [word for words in tables for word in words])


def _allocated(memory: Memory, address: int, most: int) -> tuple[int, ...]:
    """The words of what was allocated at `address`, without its neighbours; none if that is no allocation of glibc.

    glibc keeps the size of a chunk before it (malloc/malloc.c, struct malloc_chunk).
    """
    data = memory.read_many([(address - 8, 8)])[0]
    size = int.from_bytes(data or b"", "little") & ~7
    return pointers(memory, address, min(size // 8 - 1, most)) if 32 <= size <= _LARGEST and size % 16 == 0 else ()


def _pairs(memory: Memory, words: Sequence[int], size: int) -> list[tuple[int, int]] | None:
    """Rank and address of each pair in a context; the vector of pairs is the first of `size` words. None: not found."""
    for begin, end in pairwise(words):
        if is_pointer(begin) and end - begin == 8 * size and size <= _PAIRS:
            table = pointers(memory, begin, size)
            names = class_names(memory, table)
            if names and all(names.get(pair) == _PAIR for pair in table if pair):
                return [(rank, pair) for rank, pair in enumerate(table) if pair]
    return None


def _maps_of_pair(memory: Memory, pair: int) -> tuple[Sequence[int], Sequence[int]] | None:
    """The maps of sends and of receives: two maps side by side."""
    words = pointers(memory, pair, _WORDS)
    for at in range(len(words) - 2 * _MAP_WORDS):
        both = words[at : at + _MAP_WORDS], words[at + _MAP_WORDS : at + 2 * _MAP_WORDS]
        if all(_is_map(table, pair + 8 * (at + i * _MAP_WORDS)) for i, table in enumerate(both)):
            return both
    return None


def _is_map(words: Sequence[int], address: int) -> bool:
    """True for the words of an unordered_map: buckets, their number, first node, size, load factor, next, bucket."""
    buckets, count, first, size, factor = words[:5]
    if factor & 0xFFFFFFFF != _LOAD_FACTOR or not 0 < count < 1 << 32 or size > count or bool(size) != bool(first):
        return False
    return buckets == address + 48 if count == 1 else is_pointer(buckets)


def _of_map(
    memory: Memory, words: Sequence[int], element: tuple[int, int], sends: bool, peer: int | None
) -> Iterator[Pending]:
    """The transfers in a map from tags to deques."""
    node, left = words[2], min(words[3], _KEYS)
    while left and is_pointer(node):
        left -= 1
        following, tag, _, _, *deque = memory.words(node, 12)
        if tag < _TAGS:
            for buffer in _of_deque(memory, deque, element):
                yield Pending(sends, peer, tag, buffer)
        node = following


def _of_deque(memory: Memory, words: Sequence[int], element: tuple[int, int]) -> Iterator[int]:
    """Addresses of the buffers in a deque: its first and its last iterator, each current, first, last and node."""
    (size, index), (at, _, last, node), end = element, words[:4], words[4]
    for _ in range(_ITEMS):
        if at == end or not is_pointer(at):
            return
        yield memory.word(at + 8 * index)
        at += size
        if at == last:
            node += 8
            at = memory.word(node)
            last = at + _DEQUE_BYTES // size * size
