"""The agent's side of the protocol: splits snapshots into parts.

Object addresses become small numbers, so that equal data of many ranks gives equal parts.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from hangdoc.evidence import Frame, ProcessGroups, RankEvidence, Snapshot, Stack, Stacks, Target, Variable
from hangdoc.evidence.parameters import Parameters
from hangdoc.fleet.protocol import (
    KEEP,
    Answer,
    FrameCode,
    GroupForm,
    GroupsForm,
    RankEntry,
    StacksForm,
    ThreadForm,
    to_ranges,
)

Value = TypeVar("Value", bound=Hashable)


@dataclass(slots=True)
class NumberTable(Generic[Value]):
    """Numbers of values, in the order of first use. No number is given twice."""

    _known: dict[Value, list[int]] = field(default_factory=dict)  # its number, and the last answer that used it
    _next: int = 0

    def __contains__(self, value: Value) -> bool:
        return value in self._known

    def __len__(self) -> int:
        return len(self._known)

    def of(self, value: Value, answer: int) -> int:
        """The number of a value that this answer uses."""
        known = self._known.get(value)
        if known is None:
            self._next += 1
            known = self._known[value] = [self._next, answer]
        known[1] = answer
        return known[0]

    def forget(self, answer: int) -> None:
        """Drop values that no answer since this one has used."""
        for value in [value for value, (_, last) in self._known.items() if last <= answer]:
            del self._known[value]


PLAIN_KINDS = frozenset({"none", "bool", "int", "float", "str"})  # the address of such a value means nothing
ADDRESS = re.compile(r"(?<= at 0x)[0-9a-f]{6,16}\b")  # in the repr of an object: `<AdamW at 0x7f5642032690>`

AddressNumbers = NumberTable[int]  # of one process, by address; a forgotten address may be reused for another object


def without_addresses(variable: Variable, objects: AddressNumbers, answer: int) -> Variable:
    """A variable with small numbers in place of addresses."""
    if variable.kind in PLAIN_KINDS:
        return replace(variable, address=None)
    address = None if variable.address is None else objects.of(variable.address, answer)
    text = ADDRESS.sub(lambda found: f"{objects.of(int(found[0], 16), answer):x}", variable.text)
    return replace(variable, text=text, address=address)


TENSOR_FORWARDERS = ("/torch/autograd/", "/torch/nn/modules/", "/torch/_tensor.py", "/torch/optim/")


class Encoder:
    """Splits the snapshots of one agent into parts; a part that was sent before is only referred to."""

    def __init__(self) -> None:
        self._numbers: NumberTable[tuple[type, bytes]] = NumberTable()  # of the parts: `{}` may be of many types
        self._answers = 0
        self._new: dict[int, msgspec.Raw] = {}
        self._objects: dict[tuple[int, int], AddressNumbers] = {}  # by PID and start time

    def answer(self, to: int, shot: Snapshot, about: Mapping[Target, tuple[str, int]]) -> Answer:
        """A snapshot as the answer to a command; `about`: process and nearness of each target, see `RankEntry`."""
        self._answers += 1
        self._new = {}
        ranks = tuple(self._rank(rank, *about.get(rank.target, ("", 0))) for rank in shot.ranks)
        records = {name: self._part(record) for name, record in shot.records.items()}
        self._objects = {_process(rank.target): self._of(rank.target) for rank in shot.ranks}
        self._numbers.forget(self._answers - KEEP)
        for objects in self._objects.values():
            objects.forget(self._answers - KEEP)
        return Answer(to, shot.at_s, shot.time, shot.tier, ranks, records, shot.unseen, self._new)

    def _rank(self, rank: RankEvidence, process: str, near: int) -> RankEntry:
        records = {name: self._part(self._form(record, rank.target)) for name, record in rank.records.items()}
        return RankEntry(self._part(rank.target), rank.alive, records, rank.exit, rank.end, process, near)

    def _form(self, record: Any, of: Target) -> Any:
        if isinstance(record, Stacks):
            return self._stacks(record, self._of(of))
        if isinstance(record, Parameters) and record.group is not None:
            return replace(record, group=self._of(of).of(record.group, self._answers))
        return self._groups(record, self._of(of)) if isinstance(record, ProcessGroups) else record

    def _of(self, rank: Target) -> AddressNumbers:
        return self._objects.setdefault(_process(rank), AddressNumbers())

    def _stacks(self, stacks: Stacks, objects: AddressNumbers) -> StacksForm:
        threads = tuple(self._thread(thread, objects) for thread in stacks.threads)
        module = (
            None
            if stacks.globals is None
            else tuple(without_addresses(v, objects, self._answers) for v in stacks.globals)
        )
        children = tuple((pid, tuple(self._thread(one, objects) for one in some)) for pid, some in stacks.children)
        return StacksForm(threads, stacks.native, stacks.python, module, children)

    def _thread(self, stack: Stack, objects: AddressNumbers) -> ThreadForm:
        code = tuple(FrameCode(f.function, f.file, f.line, f.short, f.native) for f in stack.frames)
        variables = {
            at: tuple(without_addresses(v, objects, self._answers) for v in _kept(frame))
            for at, frame in enumerate(stack.frames)
            if frame.variables is not None
        }
        part, raw = self._part(code), _raw(variables)
        return ThreadForm(stack.tid, stack.name, part, raw, stack.holds_gil, stack.active, stack.left_out)

    def _groups(self, record: ProcessGroups, objects: AddressNumbers) -> GroupsForm:
        groups = tuple(
            GroupForm(objects.of(g.address, self._answers), g.name, to_ranges(g.ranks), g.default, g.backend)
            for g in record.groups
        )
        return GroupsForm(groups, record.rank, record.world_size, record.local_rank, record.master, record.exists)

    def _part(self, value: Any) -> int:
        part = type(value), msgspec.json.encode(value)
        new = part not in self._numbers
        number = self._numbers.of(part, self._answers)
        if new:
            self._new[number] = msgspec.Raw(part[1])
        return number


def _process(target: Target) -> tuple[int, int]:
    return target.pid, target.start_ticks


def _kept(frame: Frame) -> tuple[Variable, ...]:
    """Variables worth sending: in frames that only pass tensors on, the tensors."""
    variables = frame.variables or ()
    if any(part in frame.file for part in TENSOR_FORWARDERS):
        return tuple(v for v in variables if v.tensor is not None)
    return variables


def _raw(variables: Mapping[int, tuple[Variable, ...]]) -> dict[int, msgspec.Raw]:
    return {at: msgspec.Raw(msgspec.json.encode(some)) for at, some in variables.items()}
