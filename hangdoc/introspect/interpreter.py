"""The CPython interpreter of another process: its version, `sys.modules`, and its dicts.

`_PyRuntime` and `PyDict_Type` are exported symbols. One word of the runtime (before CPython 3.11, of the interpreter
state) points to the dict with `sys`, `builtins` and `__main__`: that is `sys.modules`. Its offset is the same in every
process of a build, so one search per build is enough.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath

from hangdoc.introspect.elf import Image, Symbols, images
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.objects import MANAGED_DICT, Objects, Type

OLDEST, NEWEST = (3, 10), (3, 14)  # tested versions

_RUNTIME_BYTES = 1 << 21  # _PyRuntime is 0.6 kB in 3.10, 460 kB in 3.12
_STATE_BYTES = 8192  # searched of a PyInterpreterState outside the runtime
_ENTRIES = 1 << 16  # of a dict
_EARLY = 128  # modules; `__main__` is among the first thirty
_USER_SPACE = range(1 << 16, 1 << 47)
_MANAGED = 24  # bytes before an object: the address of its dict, from 3.11


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An interpreter: version and addresses."""

    version: tuple[int, int]
    text: str  # "3.11.7", or "3.10" if the patch level is unknown
    build: tuple[str, int]  # device and inode of its file
    runtime: int  # address of _PyRuntime
    size: int
    dict_type: int  # address of PyDict_Type


def find(memory: Memory) -> Interpreter | None:
    """The interpreter of a process; None: none of a known version."""
    mapped = images(memory.pid)
    likely = [image for image in mapped if re.match(r"(?:lib)?python[\d.]*", PurePath(image.path).name)]
    for image in dict.fromkeys(
        (*likely, *mapped[:1])
    ):  # an embedding program's own file is mapped lowest or has a name of its own
        try:
            found = _interpreter(memory, image)
        except (Unreadable, struct.error):
            continue
        if found is not None:
            return found
    return None


def _interpreter(memory: Memory, image: Image) -> Interpreter | None:
    symbols = Symbols(memory, image.base)
    runtime, dict_type = symbols.find("_PyRuntime"), symbols.find("PyDict_Type")
    if runtime is None or dict_type is None:
        return None
    stamp = symbols.find("Py_Version")  # from 3.11: 0x030b07f0
    if stamp is not None:
        number = memory.word(stamp[0])
        version, text = (number >> 24, number >> 16 & 255), f"{number >> 24}.{number >> 16 & 255}.{number >> 8 & 255}"
    elif named := re.search(r"python3\.(\d+)", PurePath(image.path).name):
        version, text = (3, int(named[1])), f"3.{named[1]}"
    else:
        return None
    if not OLDEST <= version <= NEWEST:
        return None
    return Interpreter(version, text, image.key, runtime[0], min(runtime[1], _RUNTIME_BYTES), dict_type[0])


def modules_path(memory: Memory, interpreter: Interpreter) -> tuple[int, ...] | None:
    """Offsets from `_PyRuntime` to the address of `sys.modules`. The search takes some ten milliseconds."""
    runtime = memory.words(interpreter.runtime, interpreter.size // 8)
    for index in _dicts(memory, interpreter, runtime):
        if main_entry(memory, interpreter, runtime[index]) is not None:
            return (8 * index,)
    for outer, pointer in enumerate(runtime[:128]):
        data = memory.peek_many([(pointer, _STATE_BYTES)])[0] or b""
        state = struct.unpack_from(f"<{len(data) // 8}Q", data)
        for inner in _dicts(memory, interpreter, state):
            if main_entry(memory, interpreter, state[inner]) is not None:
                return (8 * outer, 8 * inner)
    return None


def _dicts(memory: Memory, interpreter: Interpreter, words: tuple[int, ...]) -> Iterable[int]:
    """Indexes of words that point to a dict of plausible size."""
    inside = range(interpreter.runtime, interpreter.runtime + interpreter.size)
    places = {
        word: index for index, word in enumerate(words) if not word & 7 and word in _USER_SPACE and word not in inside
    }
    heads = memory.read_many([(word, 24) for word in places])
    for index, head in zip(places.values(), heads, strict=True):
        if head is not None:
            _, kind, used = struct.unpack("<3Q", head)
            if kind == interpreter.dict_type and 3 <= used < _ENTRIES:
                yield index


def read_dict(memory: Memory, interpreter: Interpreter, address: int) -> list[tuple[int, int]] | None:
    """Addresses of keys and values of a dict; in order of insertion, unless it shares its keys with other dicts.

    None: not a dict. Raises Unreadable.
    """
    _, kind, used, _, keys, values = memory.words(address, 6)
    if kind != interpreter.dict_type or not 0 <= used <= _ENTRIES:
        return None
    if interpreter.version <= (3, 10):  # dk_refcnt dk_size dk_lookup dk_usable dk_nentries
        _, size, _, _, count = memory.words(keys, 5)
        start, stride = keys + 40 + size * _index_bytes(size), 24
    else:  # dk_refcnt, dk_log2_size:8 dk_log2_index_bytes:8 dk_kind:8, dk_version:32, dk_usable dk_nentries
        _, bits, _, count = memory.words(keys, 4)
        if bits & 255 > 40 or bits >> 8 & 255 > 43:
            return None
        start, stride = keys + 32 + (1 << (bits >> 8 & 255)), 24 if bits >> 16 & 255 == 0 else 16
    if not used <= count <= _ENTRIES:
        return None
    pairs = struct.Struct("<8x2Q" if stride == 24 else "<2Q")  # a general table has the hash first
    data = memory.read(start, count * stride) if count else b""
    found = list(pairs.iter_unpack(data))
    if values and count:  # the table has the keys alone; from 3.13, the values have a header
        own = memory.words(values + (8 if interpreter.version >= (3, 13) else 0), count)
        found = [(key, value) for (key, _), value in zip(found, own, strict=True)]
    return [(key, value) for key, value in found if key and value]


def read_attributes(memory: Memory, interpreter: Interpreter, address: int, kind: Type) -> list[tuple[int, int]] | None:
    """Addresses of the names and values in the `__dict__` of an object; None: it has none yet. Raises Unreadable."""
    if kind.flags & MANAGED_DICT:
        near: tuple[int, ...] = (memory.word(address - _MANAGED),)
    else:
        near = memory.words(address + 16, max(0, (kind.extent or 0) - 16) // 8)
    for word in near:
        if not word & 7 and word in _USER_SPACE:
            with suppress(Unreadable):
                if memory.word(word + 8) == interpreter.dict_type:
                    return read_dict(memory, interpreter, word)
    return None


def lookup(memory: Memory, interpreter: Interpreter, address: int, names: Collection[str]) -> dict[str, int]:
    """Addresses of the values of these ASCII names in a dict; missing names are left out. Raises Unreadable."""
    entries = read_dict(memory, interpreter, address) or []
    lengths = {len(name) for name in names}
    heads = memory.read_many([(key, 24) for key, _ in entries])
    likely = {  # a dict may have thousands of keys: read only those of the right length
        key: value
        for (key, value), head in zip(entries, heads, strict=True)
        if head is not None and int.from_bytes(head[16:24], "little") in lengths
    }
    seen = Objects(memory, interpreter.version).describe(likely)
    return {
        item.text: likely[key]
        for key, item in seen.items()
        if item.kind == "str" and item.text is not None and item.text in names
    }


def _index_bytes(size: int) -> int:
    return 1 if size <= 0xFF else 2 if size <= 0xFFFF else 4 if size <= 0xFFFFFFFF else 8


def main_entry(memory: Memory, interpreter: Interpreter, modules: int) -> tuple[int, int] | None:
    """Key and value of `__main__` if `modules` is `sys.modules`, else None. Raises Unreadable."""
    objects = Objects(memory, interpreter.version)
    entries = read_dict(memory, interpreter, modules)
    if not entries:
        return None
    found: dict[str | None, tuple[int, int]] = {}
    for part in (entries[:_EARLY], entries[_EARLY:]):
        names = objects.describe(key for key, _ in part)
        found |= {names[key].text: (key, value) for key, value in part if key in names and names[key].kind == "str"}
        if {"sys", "builtins", "__main__"} <= found.keys():
            return found["__main__"]
    return None
