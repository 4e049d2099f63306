"""Objects of another process's CPython (3.10 to 3.14 with a GIL) and their references, read by address.

Layouts: Include/object.h, cpython/{longintrepr,unicodeobject,listobject,tupleobject,dictobject,object}.h of those
versions. Nothing is trusted: an object counts only if the type of its type is `type` or a subclass, and its type has a
printable name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hangdoc.introspect.memory import Memory

HEAD = 64  # bytes read of an object: head, size, and the start of its data
_TYPE_BYTES = 264  # PyTypeObject up to tp_base
_NAME_BYTES = 64
_TEXT_BYTES = 256  # of a string's data
_DEEPEST = 16  # bases followed of a type

# PyTypeObject.tp_flags: Py_TPFLAGS_*_SUBCLASS
_INT, _LIST, _TUPLE, _STR, DICT, _TYPE = (1 << bit for bit in (24, 25, 26, 28, 29, 31))
_INLINE_VALUES = 1 << 2
CONTAINER = DICT | _LIST | _TUPLE
HEAP_TYPE = 1 << 9  # a class written in Python
_NUMPY_NUMBERS = {
    "numpy.int8": "<b", "numpy.int16": "<h", "numpy.int32": "<i", "numpy.int64": "<q", "numpy.uint8": "<B",
    "numpy.uint16": "<H", "numpy.uint32": "<I", "numpy.uint64": "<Q", "numpy.float16": "<e", "numpy.float32": "<f",
    "numpy.float64": "<d", "numpy.bool": "<?", "numpy.bool_": "<?",
}  # fmt: skip

# References.
_BEFORE = 32  # bytes before an object with pointers to its attributes (3.11 and later)
_OWN = 48 * 8  # most bytes of an object: its slots, the address of its dict, or (3.13) its attributes
MANAGED_DICT = 1 << 4  # Py_TPFLAGS_MANAGED_DICT (3.11): pointers before the object
_VALUES = 96 * 8  # bytes read of an attribute table
_USER_SPACE = range(1 << 16, 1 << 47)
_MAX = 4096  # objects followed

_Raw = tuple[int, int, str, int, int | None]  # of a type: its type, flags, name, tp_base, extent


@dataclass(frozen=True, slots=True)
class Type:
    """A type object."""

    address: int
    name: str  # tp_name: "int", "torch._C.TensorBase", "Parameter"
    flags: int
    bases: tuple[str, ...]  # names of tp_base and its bases
    extent: int | None = None  # bytes of an instance; None: varies


@dataclass(frozen=True, slots=True)
class Seen:
    """A verified description of an object."""

    type: Type
    kind: str  # int float bool str none list tuple dict object
    number: float | None = None
    length: int | None = None
    text: str | None = None  # of None, bool, float, small int and ASCII string


class Objects:
    """Reads the objects of one process; caches types."""

    def __init__(self, memory: Memory, version: tuple[int, int] | None = None) -> None:
        """`version` of CPython; None: unknown, then ints and strings have a kind but no value."""
        self.memory = memory
        self._version = version
        self._types: dict[int, Type | None] = {}

    def heads(self, addresses: Iterable[int]) -> dict[int, tuple[Type, bytes]]:
        """Type and first HEAD bytes of each address that holds an object."""
        wanted = list(dict.fromkeys(addresses))
        read = self.memory.peek_many([(address, HEAD) for address in wanted])
        heads = {a: head.ljust(HEAD, b"\0") for a, head in zip(wanted, read, strict=True) if head and len(head) >= 16}
        pointers = {address: int.from_bytes(head[8:16], "little") for address, head in heads.items()}
        self._learn(set(pointers.values()))
        return {
            address: (found, heads[address])
            for address, pointer in pointers.items()
            if (found := self._types.get(pointer)) is not None
        }

    def describe(self, addresses: Iterable[int]) -> dict[int, Seen]:
        """Each address's object; addresses without an object are left out. Raises Unreadable."""
        heads = self.heads(addresses)
        seen = {address: self._seen(kind, head) for address, (kind, head) in heads.items()}
        self._read_strings(seen, heads)
        self._read_arrays(seen, heads)
        return seen

    def items(self, address: int, most: int) -> list[int]:
        """Addresses of the first items of a list or tuple; none of anything else. Raises Unreadable."""
        head = self.heads([address]).get(address)
        if head is None or head[0].name not in ("list", "tuple"):
            return []
        count = min(int.from_bytes(head[1][16:24], "little", signed=True), most)
        start = int.from_bytes(head[1][24:32], "little") if head[0].name == "list" else address + 24
        return list(self.memory.words(start, count)) if count > 0 else []

    def _learn(self, pointers: set[int]) -> None:
        """Read the type objects at `pointers` and, level by level, their metatypes and bases."""
        raw: dict[int, _Raw] = {}
        level = {pointer for pointer in pointers if pointer not in self._types}
        for _ in range(_DEEPEST):
            if not level:
                break
            order = list(level)
            bodies = self.memory.read_many([(pointer, _TYPE_BYTES) for pointer in order])
            names = self.memory.peek_many(
                [(int.from_bytes(body[24:32], "little"), _NAME_BYTES) if body else (0, 0) for body in bodies]
            )
            for pointer, body, name in zip(order, bodies, names, strict=True):
                if body is None:
                    continue
                raw[pointer] = (
                    int.from_bytes(body[8:16], "little"),
                    int.from_bytes(body[168:176], "little"),
                    _name(name or b""),
                    int.from_bytes(body[256:264], "little"),
                    _extent(body),
                )
            metas = {entry[0] for entry in raw.values()} | {entry[3] for entry in raw.values() if entry[3]}
            level = metas - raw.keys()
        for pointer in pointers - self._types.keys():
            self._types[pointer] = _verified(pointer, raw)

    def _seen(self, kind: Type, head: bytes) -> Seen:
        size = int.from_bytes(head[16:24], "little", signed=True)
        if kind.name == "NoneType":
            return Seen(kind, "none", text="None")
        if kind.flags & _INT:
            number = self._int(head)
            if kind.name == "bool":
                return Seen(kind, "bool", number, text=None if number is None else str(bool(number)))
            return Seen(kind, "int", number, text=None if number is None else str(int(number)))
        if kind.name == "float" or "float" in kind.bases:
            value: float = struct.unpack_from("<d", head, 16)[0]
            return Seen(kind, "float", value, text=repr(value))
        for flag, label in ((_LIST, "list"), (_TUPLE, "tuple"), (DICT, "dict"), (_STR, "str")):
            if kind.flags & flag:
                return Seen(kind, label, length=size if 0 <= size < 1 << 40 else None)
        layout = _NUMPY_NUMBERS.get(kind.name)
        if layout is not None:
            value = struct.unpack_from(layout, head, 16)[0]
            label = "float" if layout[1] in "efd" else "bool" if layout[1] == "?" else "int"
            return Seen(kind, label, float(value), text=str(value))
        return Seen(kind, "object")

    def _int(self, head: bytes) -> float | None:
        """Value of a PyLongObject of up to two 30-bit digits; None for larger ones or an unknown version."""
        if self._version is None:
            return None
        word = int.from_bytes(head[16:24], "little", signed=True)
        if self._version >= (3, 12):  # lv_tag: sign in the low two bits (0 plus, 1 zero, 2 minus), digits from bit 3
            sign, digits = {0: 1, 1: 0, 2: -1}.get(word & 3, 0), word >> 3
        else:  # ob_size: its sign is the number's
            sign, digits = (word > 0) - (word < 0), abs(word)
        if not 0 <= digits <= 2:
            return None
        low, high = struct.unpack_from("<II", head, 24)
        return float(sign * (low + (high << 30 if digits == 2 else 0))) if digits else 0.0

    def _read_strings(self, seen: dict[int, Seen], heads: dict[int, tuple[Type, bytes]]) -> None:
        """Text of the short compact ASCII strings."""
        if self._version is None:
            return
        start = 40 if self._version >= (3, 12) else 48  # PyASCIIObject lost wstr in 3.12
        wanted = {}
        for address, item in seen.items():
            state = heads[address][1][32]  # interned:2 kind:3 compact:1 ascii:1
            if item.kind == "str" and item.length is not None and state >> 5 & 3 == 3 and state >> 2 & 7 == 1:
                if item.length:
                    wanted[address] = (address + start, min(item.length, _TEXT_BYTES))
                else:
                    seen[address] = Seen(item.type, "str", length=0, text="")
        for address, data in zip(wanted, self.memory.read_many(list(wanted.values())), strict=True):
            if data is not None and data.isascii():
                item = seen[address]
                seen[address] = Seen(item.type, "str", length=item.length, text=data.decode("ascii"))

    def _read_arrays(self, seen: dict[int, Seen], heads: dict[int, tuple[Type, bytes]]) -> None:
        """Length of the first axis of numpy arrays: PyArrayObject has nd (int) at 24, its dimensions' address at 32."""
        wanted = {}
        for address, item in seen.items():
            if item.kind == "object" and "numpy.ndarray" in (item.type.name, *item.type.bases):
                axes, dimensions = struct.unpack_from("<i4xQ", heads[address][1], 24)
                if 0 < axes <= 64:
                    wanted[address] = (dimensions, 8)
        for address, data in zip(wanted, self.memory.read_many(list(wanted.values())), strict=True):
            length = int.from_bytes(data, "little", signed=True) if data is not None else -1
            if 0 <= length < 1 << 40:
                seen[address] = Seen(seen[address].type, "object", length=length)


def _name(data: bytes) -> str:
    """A type name from a C string; "": not printable ASCII."""
    text, end, _ = data.partition(b"\0")
    return text.decode("ascii") if end and text.isascii() and text.decode("ascii").isprintable() else ""


def _extent(body: bytes) -> int | None:
    """tp_basicsize; None: items or inline attributes (3.13) make the object longer."""
    size, items = struct.unpack_from("<2q", body, 32)
    return size if not items and not int.from_bytes(body[168:176], "little") & _INLINE_VALUES else None


def _verified(pointer: int, raw: dict[int, _Raw]) -> Type | None:
    """The type at `pointer` if its metatype has the flag of a subclass of `type`."""
    entry = raw.get(pointer)
    if entry is None or not entry[2]:
        return None
    meta = raw.get(entry[0])
    if meta is None or not meta[1] & _TYPE:
        return None
    bases: list[str] = []
    base = entry[3]
    while base and base in raw and len(bases) < _DEEPEST:
        bases.append(raw[base][2])
        base = raw[base][3]
    return Type(pointer, entry[2], entry[1], tuple(bases), entry[4])


# --- references -----------------------------------------------------------------------------------
# CPython stores attributes in one of four ways: in a dict at an offset (3.10), in values or a dict before the object
# (3.11, 3.12), in values after it (from 3.13). All are read; the caller must recognise the object that it looks for.


def references(memory: Memory, address: int, kind: Type) -> list[int]:
    """Addresses that the object at `address` may refer to, each once. Raises Unreadable if the process has ended.

    Stops at the end of the object, if its type shows it: the next bytes may be another object.
    """
    return references_of(memory, {address: kind}).get(address, [])


def references_of(memory: Memory, kinds: Mapping[int, Type]) -> dict[int, list[int]]:
    """`references` of many objects, in the system calls of one; unreadable objects are left out."""
    pieces = [(address - _BEFORE, _BEFORE) for address in kinds]
    pieces += [(address, _size(kind)) for address, kind in kinds.items()]
    read = memory.peek_many(pieces)
    words: dict[int, tuple[list[int], list[int]]] = {}  # pointers before the object, and in it
    for (address, kind), before, own in zip(kinds.items(), read, read[len(kinds) :], strict=False):
        if own is not None:
            ahead = _words(before or b"") if kind.flags & MANAGED_DICT else ()
            near = [word & ~1 for word in ahead] + [(word + 1) & ~7 for word in ahead]
            words[address] = _pointers(near), _pointers(_words(own))
    tables = _tables(memory, (word for address, (near, own) in words.items() for word in (address, *own, *near)))
    wanted = {
        address: list(dict.fromkeys([*near, *(t for word in (address, *own, *near) for t in tables.get(word, ()))]))
        for address, (near, own) in words.items()
    }
    order = list(dict.fromkeys(table for some in wanted.values() for table in some))
    blocks = {
        table: _pointers(_words(block))
        for table, block in zip(order, memory.peek_many([(table, _VALUES) for table in order]), strict=True)
        if block
    }
    return {
        address: list(dict.fromkeys([*own, *(word for table in wanted[address] for word in blocks.get(table, ()))]))[
            :_MAX
        ]
        for address, (_, own) in words.items()
    }


def _size(kind: Type) -> int:
    """Bytes to read of an instance."""
    return _OWN if kind.extent is None else max(16, min(kind.extent, _OWN))


def within(memory: Memory, address: int, hops: int) -> Iterator[list[int]]:
    """Objects up to `hops` references from `address`, one list per level. Raises Unreadable."""
    level, known = [address], {address}
    yield level
    for _ in range(hops):
        objects = Objects(memory).heads(level)
        followed = list(objects.items())[: _MAX // 64]
        near = [near for source, (kind, _) in followed for near in references(memory, source, kind)]
        level = [target for target in dict.fromkeys(near) if target not in known]
        known.update(level)
        yield level


def _tables(memory: Memory, addresses: Iterable[int]) -> dict[int, list[int]]:
    """Item tables of the dicts (ma_keys at 32, ma_values at 40) and lists (ob_item at 24) among these objects."""
    found: dict[int, list[int]] = {}
    for address, (kind, head) in Objects(memory).heads(addresses).items():
        if kind.name in ("dict", "list"):
            items, keys, values = struct.unpack_from("<3Q", head, 24)
            found[address] = _pointers([keys, values] if kind.name == "dict" else [items])
    return found


def _words(data: bytes) -> tuple[int, ...]:
    return struct.unpack_from(f"<{len(data) // 8}Q", data)


def _pointers(words: Iterable[int]) -> list[int]:
    return [word for word in words if not word & 7 and word in _USER_SPACE]
