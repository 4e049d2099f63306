"""What an object of another process refers to, by whatever name: its slots and the values of its attributes.

CPython keeps attributes in one of four ways (a dict at an offset, 3.10; values or a dict before the object, 3.11 and
3.12; values behind it, 3.13). All of them are read and none is trusted: whoever asks knows by what to tell the object
that is looked for (`hangdoc.introspect.objects.Objects` verifies that it is one).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from hangdoc.introspect.memory import Memory
from hangdoc.introspect.objects import Objects, Type

_BEFORE = 32  # bytes before an object where 3.11 and later keep what leads to its attributes
_OWN = 48 * 8  # bytes of the object at most: its slots, its dict's address, or (3.13) its attributes
_MANAGED_DICT = 1 << 4  # Py_TPFLAGS_MANAGED_DICT (3.11): there is something before it
_VALUES = 96 * 8  # bytes of a table of attributes
_USER_SPACE = range(1 << 16, 1 << 47)
_MOST = 4096  # objects that are followed


def references(memory: Memory, address: int, kind: Type) -> list[int]:
    """Addresses that the object at `address` may refer to, each once. Raises Unreadable where the process is gone.

    No further than the object goes, as far as its type tells: another may stand right beside it.
    """
    size = _OWN if kind.extent is None else max(16, min(kind.extent, _OWN))
    before, own = memory.peek_many([(address - _BEFORE, _BEFORE), (address, size)])
    if own is None:
        return []
    if not kind.flags & _MANAGED_DICT:
        before = None
    near = [word & ~1 for word in _words(before or b"")] + [(word + 1) & ~7 for word in _words(before or b"")]
    own_words = _pointers(_words(own))
    tables = [*_pointers(near), *_tables(memory, [address, *own_words, *_pointers(near)])]
    blocks = memory.peek_many([(table, _VALUES) for table in dict.fromkeys(tables)])
    found = [*own_words, *(word for block in blocks if block for word in _pointers(_words(block)))]
    return list(dict.fromkeys(found))[:_MOST]


def within(memory: Memory, address: int, hops: int) -> Iterator[list[int]]:
    """The objects no farther than `hops` attributes from `address`, the nearest first. Raises Unreadable."""
    level, known = [address], {address}
    yield level
    for _ in range(hops):
        objects = Objects(memory).heads(level)
        followed = list(objects.items())[: _MOST // 64]
        near = [other for one, (kind, _) in followed for other in references(memory, one, kind)]
        level = [one for one in dict.fromkeys(near) if one not in known]
        known.update(level)
        yield level


def _tables(memory: Memory, addresses: list[int]) -> list[int]:
    """Where dicts (ma_keys at 32, ma_values at 40) and lists (ob_item at 24) among these objects keep their items."""
    found: list[int] = []
    for kind, head in Objects(memory).heads(addresses).values():
        if kind.name in ("dict", "list"):
            items, keys, values = struct.unpack_from("<3Q", head, 24)
            found += [keys, values] if kind.name == "dict" else [items]
    return _pointers(found)


def _words(data: bytes) -> tuple[int, ...]:
    return struct.unpack_from(f"<{len(data) // 8}Q", data)


def _pointers(words: Iterable[int]) -> list[int]:
    return [word for word in words if not word & 7 and word in _USER_SPACE]
