"""Probe `transfers`: sends and receives that a rank has started and that still wait for their counterpart.

A rank in `Work.wait()` shows neither its peer nor its tag; gloo's own tables do. They are read from its memory, like
the schedule of a pipeline from the variables on its stacks. Nothing runs in the process, and nothing pauses. Only in an
EXAMINE: the transfers of a job that runs change all the time.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping

from hangdoc.evidence import ProcessGroup, ProcessGroups, Stacks, Target, Unseen, Variable
from hangdoc.evidence.transfers import Transfer, Transfers
from hangdoc.introspect.attributes import attributes
from hangdoc.introspect.gloo_transfers import buffers_of_works, pending_transfers
from hangdoc.introspect.instance_dicts import read_dicts
from hangdoc.introspect.interpreter import Interpreter
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.module_globals import Places
from hangdoc.introspect.objects import Objects
from hangdoc.introspect.pipeline_schedules import pipeline_schedules
from probes import Observation, Request, Tier

_GROUPS = 32  # of a rank
_INNERMOST = 3  # Python frames of a thread whose variables may hold a Work
_ITEMS = 64  # of a list
_NAMES = 4  # of a Work
_PENDING = 256  # transfers of a rank
_WORK = "Work"  # class; in torch._C._distributed_c10d


class TransfersProbe:
    name = "transfers"
    scope = "rank"
    tier = Tier.EXAMINE
    needs = "ptrace"
    record = Transfers
    order = 37
    steady = False

    def __init__(self) -> None:
        self._places = Places()

    def observe(self, request: Request) -> Observation:
        by_pid: dict[int, Transfers] = {}
        unseen: list[Unseen] = []
        self._places.keep({(target.pid, target.start_ticks) for target in request.targets})
        for target in request.targets:
            records = (request.records or {}).get(target.pid, {})
            stacks, groups = records.get("stacks"), records.get("groups")
            if not isinstance(stacks, Stacks) or not isinstance(groups, ProcessGroups):
                continue
            try:
                found = self._read(target, stacks, groups)
            except (Unreadable, struct.error) as error:
                why = f"its sends and receives could not be read this time ({error})"
                unseen.append(Unseen(self.name, why, rank=target.rank, pid=target.pid, host=target.host))
            else:
                if found is not None:
                    by_pid[target.pid] = found
        return Observation(by_pid, unseen=tuple(unseen))

    def _read(self, target: Target, stacks: Stacks, groups: ProcessGroups) -> Transfers | None:
        """The record of one process; None: unknown interpreter. Raises Unreadable."""
        memory = Memory(target.pid)
        place = self._places.of((target.pid, target.start_ticks), memory)
        if place is None:
            return None
        objects = Objects(memory, place.interpreter.version)
        named = _works(objects, place.interpreter, stacks)
        buffers = buffers_of_works(memory, list(named))
        names = {buffer: tuple(named[work][:_NAMES]) for work, buffer in buffers.items()}
        read: list[int] = []
        pending: list[Transfer] = []
        for group in groups.groups[:_GROUPS]:
            found = _pending(memory, group, groups.rank, names)
            if found is not None:
                read.append(group.address)
                pending += found
        variables = [v.address for v in _variables(stacks, None) if v.kind == "object" and v.address]
        schedules = pipeline_schedules(memory, place.interpreter, variables)
        return Transfers(tuple(read), tuple(list(dict.fromkeys(pending))[:_PENDING]), schedules)


def _pending(
    memory: Memory, group: ProcessGroup, rank: int | None, names: Mapping[int, tuple[str, ...]]
) -> list[Transfer] | None:
    """The pending transfers of a group; None: unknown, or they changed meanwhile. Raises Unreadable."""
    if rank not in group.ranks or "gloo" not in (group.backend or ""):
        return None
    own, size = group.ranks.index(rank), len(group.ranks)
    first, again = (pending_transfers(memory, group.address, own, size) for _ in range(2))
    if first is None or first != again:
        return None
    return [
        Transfer(
            one.sends,
            group.ranks[one.peer] if one.peer is not None else None,
            one.tag,
            group.address,
            names.get(one.buffer, ()),
        )
        for one in first
    ]


def _works(objects: Objects, interpreter: Interpreter, stacks: Stacks) -> dict[int, list[str]]:
    """The Work objects that the innermost frames hold, by address, and the names of the variables."""
    found: dict[int, list[str]] = defaultdict(list)
    variables = {(v.name, v.address) for v in _variables(stacks, _INNERMOST) if v.address}
    held = [(name, address) for name, address in variables if name != "self"]
    for own in (address for name, address in variables if name == "self"):
        held += attributes(objects.memory, interpreter, own).items()
    inside = [
        (f"{name}[{at}]", item) for name, address in held for at, item in enumerate(objects.items(address, _ITEMS))
    ]
    tables = read_dicts(objects, interpreter.version, [address for _, address in held])
    entries = [(name, *entry) for name, address in held for entry in tables.get(address, ())[:_ITEMS]]
    keys = objects.describe(key for _, key, _ in entries)
    inside += [(f"{name}[{keys[key].text}]", item) for name, key, item in entries if key in keys]
    pairs = sorted({(address, name) for name, address in (*held, *inside)})
    heads = objects.heads(address for address, _ in pairs)
    for address, name in pairs:
        if address in heads and heads[address][0].name.rpartition(".")[2] == _WORK:
            found[address].append(name)
    return found


def _variables(stacks: Stacks, frames: int | None) -> Iterator[Variable]:
    """The variables of the innermost Python frames of each thread, innermost first; None: of all frames."""
    for stack in stacks.threads:
        for frame in [frame for frame in stack.frames if not frame.native][:frames]:
            yield from frame.variables or (stacks.globals if frame.function == "<module>" else None) or ()


PROBE = TransfersProbe()
