"""Names of the classes of C++ objects in another process, by their run-time type information.

An object with virtual functions begins with the address of its vtable; the word before that is the address of its
type_info, which holds the mangled name. No symbol table is needed. Source: Itanium C++ ABI, 2.5.2, 2.9.4.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

from hangdoc.introspect.memory import Memory

_USER_SPACE = range(1 << 16, 1 << 47)
_NAME_BYTES = 128
_MANGLED = re.compile(rb"\*?([\w]{1,127})\0")  # libstdc++ marks the name of a local type with "*"


def class_names(memory: Memory, addresses: Iterable[int]) -> dict[int, str]:
    """Mangled name of the class of each object; addresses without one are left out. Raises Unreadable."""
    order = [address for address in dict.fromkeys(addresses) if is_pointer(address)]
    tables = _follow(memory, order, 0)
    infos = _follow(memory, tables, -8)
    names = _follow(memory, infos, 8)
    texts = memory.peek_many([(name if is_pointer(name) else 0, _NAME_BYTES) for name in names])
    found = {address: _MANGLED.match(text or b"") for address, text in zip(order, texts, strict=True)}
    return {address: match[1].decode("ascii") for address, match in found.items() if match}


def pointers(memory: Memory, address: int, count: int) -> tuple[int, ...]:
    """Up to `count` words at `address`; fewer at the end of mapped memory. Raises Unreadable."""
    data = memory.peek_many([(address, 8 * count)])[0] or b""
    return struct.unpack_from(f"<{len(data) // 8}Q", data)


def is_pointer(word: int) -> bool:
    """True if an object may be at this address."""
    return not word & 7 and word in _USER_SPACE


def _follow(memory: Memory, addresses: Iterable[int], offset: int) -> list[int]:
    read = memory.read_many([(a + offset, 8) if a in _USER_SPACE else (0, 8) for a in addresses])
    return [int.from_bytes(word or b"", "little") for word in read]
