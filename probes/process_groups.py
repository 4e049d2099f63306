"""Probe `groups`: the process groups of a rank, and its own rank and world size, read from its memory.

torch keeps groups in dicts of the module `torch.distributed.distributed_c10d` (2.13: `_pg_names`, `_pg_group_ranks`,
`_pg_map`), found through `sys.modules`. Nothing runs in the process. Unverified values are None or left out.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hangdoc.evidence import ProcessGroup, ProcessGroups, Target, Unseen, limits
from hangdoc.introspect.interpreter import Interpreter, lookup, read_dict
from hangdoc.introspect.local_variables import shorten
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.module_globals import MODULE_DICT, Place, Places, Process, is_group
from hangdoc.introspect.objects import Objects, Seen, Type
from probes import Observation, Request, Tier

C10D = "torch.distributed.distributed_c10d"
NAMES, RANKS, BACKENDS = "_pg_names", "_pg_group_ranks", "_pg_map"
# The dict behind `os.environ`, as bytes: some launchers set variables only after the process has started.
POSIX, ENVIRON = "posix", "environ"
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

_ATTEMPTS = 3  # the process keeps running: read again what changed meanwhile
_MAX = 512  # groups of a rank
_VALUE = 16  # offset of the C++ object's address in a pybind11 object
_RANK_AND_SIZE = (24, 32)  # of rank_ and size_ in c10d::ProcessGroup, after store_; the second with older refcounts
_USED = 16  # offset of a dict's length
_BYTES, _BYTES_DATA, _ITEMS = 1 << 27, 32, 24  # flag of bytes, offset of their data; offset of a tuple's items

_Signature = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Known:
    """The record of one process, and the signatures that show whether it is still current."""

    modules: tuple[int, ...]  # signature of `sys.modules` when the dicts were found
    dicts: Mapping[str, int]  # address by name
    signature: _Signature  # of those dicts
    groups: ProcessGroups


class _Torn(Unreadable):
    """It changed while it was read."""


class GroupsProbe:
    """Reads the groups of a process again only if their dicts have changed."""

    name = "groups"
    scope = "rank"
    tier = Tier.LOOK
    needs = "ptrace"
    record = ProcessGroups
    order = 15
    steady = False

    def __init__(self) -> None:
        self._places = Places()
        self._known: dict[Process, _Known] = {}

    def observe(self, request: Request) -> Observation:
        by_pid: dict[int, ProcessGroups] = {}
        unseen: list[Unseen] = []
        watched = {(target.pid, target.start_ticks) for target in request.targets}
        self._known = {process: known for process, known in self._known.items() if process in watched}
        self._places.keep(watched)
        for target in request.targets:
            try:
                found = self._read((target.pid, target.start_ticks), Memory(target.pid))
            except (Unreadable, struct.error) as error:
                why = f"its process groups could not be read this time ({error})"
                unseen.append(_unseen(target, why))
                continue
            if found is None:
                why = (
                    "its process groups are unknown: it is not CPython 3.10 to 3.14, or its memory may not be read; "
                    "run hangdoc as that user or as root"
                )
                unseen.append(_unseen(target, why))
            else:
                by_pid[target.pid] = found
        return Observation(by_pid, unseen=tuple(unseen))

    def _read(self, process: Process, memory: Memory) -> ProcessGroups | None:
        """The record of one process; None: unknown interpreter. Raises Unreadable."""
        place = self._places.of(process, memory)
        if place is None:
            return None
        known = self._known.get(process)
        for _ in range(_ATTEMPTS):
            try:
                fresh = _look(memory, place, known)
            except _Torn:
                continue
            self._known[process] = fresh
            return fresh.groups
        if known is None:
            raise _Torn(f"PID {memory.pid} changed them meanwhile")
        return known.groups


def _unseen(target: Target, why: str) -> Unseen:
    return Unseen("groups", why, rank=target.rank, pid=target.pid, host=target.host)


def _look(memory: Memory, place: Place, known: _Known | None) -> _Known:
    """The current state. Raises Unreadable, and _Torn if it changed meanwhile."""
    interpreter = place.interpreter
    dicts, modules = (known.dicts, known.modules) if known is not None else ({}, ())
    if NAMES not in dicts:  # not imported in the previous round
        address = place.modules(memory)
        (now,) = _sign(memory, interpreter, [address])
        if now != modules:
            dicts, modules = _dicts(memory, interpreter, address), now
    addresses = list(dicts.values())
    signature = _sign(memory, interpreter, addresses)
    if known is not None and signature == known.signature and dicts == known.dicts:
        return known if modules == known.modules else _Known(modules, dicts, signature, known.groups)
    groups = _groups(memory, interpreter, dicts)
    if _sign(memory, interpreter, addresses) != signature:
        raise _Torn
    return _Known(modules, dicts, signature, groups)


def _sign(memory: Memory, interpreter: Interpreter, addresses: Sequence[int]) -> _Signature:
    """Length, version, table and free slots of each dict: they change with it. Raises Unreadable."""
    heads = [memory.words(address, 6)[1:] for address in addresses]
    if any(head[0] != interpreter.dict_type for head in heads):
        raise Unreadable(f"PID {memory.pid}: a dict is no dict any more")
    return tuple((*head, *memory.words(head[3], 5)[1:]) for head in heads)


def _entries(memory: Memory, interpreter: Interpreter, address: int) -> list[tuple[int, int]]:
    """All keys and values of a dict. Raises Unreadable, and _Torn while the dict is being rebuilt."""
    entries = read_dict(memory, interpreter, address)
    if entries is None or len(entries) != memory.word(address + _USED):
        raise _Torn
    return entries


def _dicts(memory: Memory, interpreter: Interpreter, modules: int) -> dict[str, int]:
    """Addresses of the dicts that we read, if their modules are imported. Raises Unreadable."""
    found: dict[str, int] = {}
    wanted = {C10D: (NAMES, RANKS, BACKENDS), POSIX: (ENVIRON,)}
    for name, module in lookup(memory, interpreter, modules, wanted).items():
        values = lookup(memory, interpreter, memory.word(module + MODULE_DICT), wanted[name])
        found |= {key: value for key, value in values.items() if read_dict(memory, interpreter, value) is not None}
    return found if {NAMES, RANKS} <= found.keys() else {k: v for k, v in found.items() if k == ENVIRON}


def _groups(memory: Memory, interpreter: Interpreter, dicts: Mapping[str, int]) -> ProcessGroups:
    environ = _environ(memory, interpreter, dicts[ENVIRON]) if ENVIRON in dicts else {}
    groups = _members(memory, interpreter, dicts) if NAMES in dicts else ()
    default = next((group for group in groups if group.default), None)
    rank = _own_rank(memory, groups)
    address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    return ProcessGroups(
        groups=groups,
        rank=rank if rank is not None else limits.parse_count(environ.get("RANK")),
        world_size=len(default.ranks) if default is not None else limits.parse_count(environ.get("WORLD_SIZE")),
        local_rank=limits.parse_count(environ.get("LOCAL_RANK")),
        master=f"{address}:{port}" if address and port else None,
        exists=memory.word(dicts[NAMES] + _USED) > 0 if NAMES in dicts else None,
    )


def _members(memory: Memory, interpreter: Interpreter, dicts: Mapping[str, int]) -> tuple[ProcessGroup, ...]:
    """Groups with known members, in order of creation. Raises Unreadable."""
    objects = Objects(memory, interpreter.version)
    names = _entries(memory, interpreter, dicts[NAMES])[:_MAX]
    ranks = dict(_entries(memory, interpreter, dicts[RANKS]))
    backends = dict(_entries(memory, interpreter, dicts[BACKENDS])) if BACKENDS in dicts else {}
    tables = {group: _entries(memory, interpreter, ranks[group]) for group, _ in names if group in ranks}
    pairs = [(group, backends[group] + _ITEMS) for group in tables if group in backends]
    items = memory.read_many([(address, 8) for _, address in pairs])
    backend = {group: int.from_bytes(item or b"", "little") for (group, _), item in zip(pairs, items, strict=True)}
    seen = objects.describe(
        [*tables, *(name for _, name in names), *backend.values()]
        + [address for table in tables.values() for entry in table for address in entry]
    )
    found: list[ProcessGroup] = []
    for place, (group, name) in enumerate(names):
        if group not in seen or not any(map(is_group, (seen[group].type.name, *seen[group].type.bases))):
            continue
        numbers = {k: seen[k].number if k in seen else None for entry in tables.get(group, ()) for k in entry}
        members = _by_group_rank([(numbers[key], numbers[value]) for key, value in tables.get(group, ())])
        text = _text(seen.get(name))
        if members and text:
            # init_process_group creates the default group, and fails if a group exists: the default is the first.
            default = place == 0 and members == tuple(range(len(members)))
            found.append(ProcessGroup(group, text, members, default, _text(seen.get(backend.get(group, 0)))))
    return tuple(found)


def _text(item: Seen | None) -> str | None:
    """A printable string, shortened."""
    if item is None or item.kind != "str" or item.text is None or not item.text.isprintable():
        return None
    return shorten(item.text)


def _by_group_rank(pairs: Sequence[tuple[float | None, float | None]]) -> tuple[int, ...] | None:
    """Global ranks in order of group rank; None: group ranks are not 0..n-1."""
    members = {int(inner): int(outer) for outer, inner in pairs if inner is not None and outer is not None}
    if len(members) != len(pairs) or len(set(members.values())) != len(pairs) or min(members.values(), default=0) < 0:
        return None
    return tuple(members[rank] for rank in sorted(members)) if members.keys() == set(range(len(pairs))) else None


def _own_rank(memory: Memory, groups: Sequence[ProcessGroup]) -> int | None:
    """This process's global rank, if all its groups agree. Raises Unreadable."""
    values = memory.read_many([(group.address + _VALUE, 8) for group in groups])
    bodies = memory.read_many([(int.from_bytes(value or b"", "little"), _RANK_AND_SIZE[-1] + 8) for value in values])
    agreed: set[int] = set()
    for offset in _RANK_AND_SIZE:
        ranks: set[int | None] = set()
        for group, body in zip(groups, bodies, strict=True):
            store, rank, size = struct.unpack_from("<Q2i", body, offset - 8) if body is not None else (0, -1, -1)
            sound = 1 << 16 <= store < 1 << 47 and not store & 7 and size == len(group.ranks) and 0 <= rank < size
            ranks.add(group.ranks[rank] if sound else None)
        if len(ranks) == 1 and (rank := next(iter(ranks))) is not None:
            agreed.add(rank)
    return agreed.pop() if len(agreed) == 1 else None


def _environ(memory: Memory, interpreter: Interpreter, address: int) -> dict[str, str]:
    """The VARIABLES in `os.environ`. Raises Unreadable."""
    entries = _entries(memory, interpreter, address)
    objects = Objects(memory)
    keys = {key: _short(*head) for key, head in objects.heads(key for key, _ in entries).items()}
    wanted = {name: value for key, value in entries if (name := keys.get(key)) in VARIABLES}
    values = objects.heads(wanted.values())
    found = {name: _short(*values[value]) for name, value in wanted.items() if value in values}
    return {name: text for name, text in found.items() if name is not None and text is not None}


def _short(kind: Type, head: bytes) -> str | None:
    """Text of a bytes object of up to 32 printable ASCII characters, which fit in the object's head."""
    size = int.from_bytes(head[16:24], "little")
    data = head[_BYTES_DATA : _BYTES_DATA + size]
    if not kind.flags & _BYTES or size > len(data) or not data.isascii():
        return None
    text = data.decode("ascii")
    return text if text.isprintable() else None


PROBE = GroupsProbe()
