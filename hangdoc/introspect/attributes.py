"""The named attributes of an instance of a Python class in another process, and the items of a dict.

CPython keeps attributes in one of four ways: in a dict at an offset (3.10), in values or a dict before the object
(3.11, 3.12), in values after it (from 3.13). Values have no names of their own: the type holds them.
Sources: Objects/dictobject.c, Include/internal/pycore_dict.h, Include/cpython/object.h of these versions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress

from hangdoc.introspect.interpreter import Interpreter, read_dict
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.objects import DICT, MANAGED_DICT, Objects, Type

MAX = 256  # attributes or items of an object
_FOLLOWED = 64  # objects of a level

_OBJECT = 16  # bytes of PyObject_HEAD
_BASIC_SIZE, _DICT_OFFSET = 32, 288  # in PyTypeObject: tp_basicsize, tp_dictoffset
_CACHED_KEYS = {(3, 11): 872}  # offset of ht_cached_keys in PyHeapTypeObject
_CACHED_KEYS_SINCE_312 = 880
_SPLIT = 2  # DICT_KEYS_SPLIT, dk_kind


def attributes(memory: Memory, interpreter: Interpreter, address: int) -> dict[str, int]:
    """Addresses of the attributes in an instance's `__dict__`, by name. Raises Unreadable, or struct.error."""
    head = Objects(memory).heads([address]).get(address)
    if head is None:
        return {}
    kind, version = head[0], interpreter.version
    if version <= (3, 10):
        offset = memory.word(kind.address + _DICT_OFFSET)
        table = memory.word(address + offset) if 0 < offset < 1 << 16 else 0
        return items(memory, interpreter, table) if table else {}
    if not kind.flags & MANAGED_DICT:
        return {}
    table = memory.word(address - 24)
    if version == (3, 11):
        values = 0 if table else memory.word(address - 32)
    elif version == (3, 12):
        values, table = (table + 1, 0) if table & 1 else (0, table)
    else:
        values = 0 if table else address + memory.word(kind.address + _BASIC_SIZE)
    if table:
        return items(memory, interpreter, table)
    keys = memory.word(kind.address + _CACHED_KEYS.get(version, _CACHED_KEYS_SINCE_312))
    return _named(memory, interpreter, _inline(memory, interpreter, keys, values)) if keys and values else {}


def items(memory: Memory, interpreter: Interpreter, address: int) -> dict[str, int]:
    """Addresses of a dict's values, by key, of those whose key is a short ASCII string. Raises as `attributes`."""
    return _named(memory, interpreter, read_dict(memory, interpreter, address) or [])


def levels(memory: Memory, interpreter: Interpreter, address: int, hops: int) -> Iterator[list[int]]:
    """Objects up to `hops` attributes or items from `address`, one list for each hop. Raises Unreadable.

    Unlike `objects.within`, it reads no table beyond its end, where other objects have theirs.
    """
    level, known = [address], {address}
    yield level
    for _ in range(hops):
        near: list[int] = []
        for source, (kind, _) in list(Objects(memory).heads(level).items())[:_FOLLOWED]:
            with suppress(Unreadable, struct.error):
                near += _members(memory, interpreter, source, kind)
        level = [target for target in dict.fromkeys(near) if target not in known]
        known.update(level)
        yield level


def _members(memory: Memory, interpreter: Interpreter, address: int, kind: Type) -> list[int]:
    """Addresses of an object's items, or else of its attributes and of what else its body points to."""
    if kind.name in ("list", "tuple"):
        return Objects(memory).items(address, MAX)
    if kind.flags & DICT:
        return [value for _, value in (read_dict(memory, interpreter, address) or [])[:MAX]]
    named = attributes(memory, interpreter, address).values()
    slots = min((kind.extent or 0) - _OBJECT, 8 * MAX) // 8
    return [*named, *(memory.words(address + _OBJECT, slots) if slots > 0 else ())]


def _inline(memory: Memory, interpreter: Interpreter, keys: int, values: int) -> list[tuple[int, int]]:
    """Names and values of an object without a dict (from 3.11): the type holds the keys. Raises Unreadable."""
    _, bits, _, count = memory.words(keys, 4)
    if bits >> 16 & 255 != _SPLIT or bits >> 8 & 255 > 16:
        raise Unreadable(f"PID {memory.pid}: no split table")
    if not 0 < count <= MAX:
        return []
    names = struct.iter_unpack("<Q8x", memory.read(keys + 32 + (1 << (bits >> 8 & 255)), count * 16))
    found = memory.words(values + (8 if interpreter.version >= (3, 13) else 0), count)
    return [(name, value) for (name,), value in zip(names, found, strict=True) if name and value]


def _named(memory: Memory, interpreter: Interpreter, entries: list[tuple[int, int]]) -> dict[str, int]:
    wanted = entries[:MAX]
    seen = Objects(memory, interpreter.version).describe(key for key, _ in wanted)
    return {
        text: value for key, value in wanted if key in seen and seen[key].kind == "str" and (text := seen[key].text)
    }
