"""The agent's side: takes snapshots apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from hangdoc.evidence import Frame, Groups, RankEvidence, Snapshot, Stack, Stacks, Target, Variable
from hangdoc.wire import KEEP, Answer, Seen
from hangdoc.wire.forms import Code, GroupForm, GroupsForm, StacksForm, ThreadForm, runs

PLAIN = frozenset({"none", "bool", "int", "float", "str"})
CARRIERS = ("/torch/autograd/", "/torch/nn/modules/", "/torch/_tensor.py", "/torch/optim/")


class Writer:
    """Takes the snapshots of one agent apart; a part that was written before is only named."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, list[int]] = {}  # the part -> its number, the answer that named it last
        self._next = self._answers = 0
        self._new: dict[int, msgspec.Raw] = {}

    def answer(self, to: int, shot: Snapshot, about: Mapping[Target, tuple[str, int]]) -> Answer:
        """A snapshot as the answer to a command; `about`: what `Seen` says of each process."""
        self._answers += 1
        self._new = {}
        ranks = tuple(self._rank(rank, *about.get(rank.target, ("", 0))) for rank in shot.ranks)
        records = {name: self._part(record) for name, record in shot.records.items()}
        old = [part for part, (_, last) in self._numbers.items() if last <= self._answers - KEEP]
        for part in old:
            del self._numbers[part]
        return Answer(to, shot.at_s, shot.time, shot.tier, ranks, records, shot.unseen, self._new)

    def _rank(self, rank: RankEvidence, process: str, near: int) -> Seen:
        records = {name: self._part(self._form(record)) for name, record in rank.records.items()}
        return Seen(self._part(rank.target), rank.alive, records, rank.exit, rank.end, process, near)

    def _form(self, record: Any) -> Any:
        if isinstance(record, Stacks):
            return self._stacks(record)
        return _groups(record) if isinstance(record, Groups) else record

    def _stacks(self, stacks: Stacks) -> StacksForm:
        children = tuple((pid, tuple(map(self._thread, threads))) for pid, threads in stacks.children)
        threads = tuple(map(self._thread, stacks.threads))
        return StacksForm(threads, stacks.native, stacks.python, stacks.globals, children)

    def _thread(self, stack: Stack) -> ThreadForm:
        code = tuple(Code(f.function, f.file, f.line, f.short, f.native) for f in stack.frames)
        variables = {at: _told(f, f.variables) for at, f in enumerate(stack.frames) if f.variables is not None}
        return ThreadForm(stack.tid, stack.name, self._part(code), variables, stack.holds_gil, stack.active)

    def _part(self, value: Any) -> int:
        part = msgspec.json.encode(value)
        known = self._numbers.get(part)
        if known is None:
            self._next += 1
            known = self._numbers[part] = [self._next, 0]
            self._new[self._next] = msgspec.Raw(part)
        known[1] = self._answers
        return known[0]


def _told(frame: Frame, variables: tuple[Variable, ...]) -> tuple[msgspec.Raw, ...]:
    """What of a frame's variables may say something beyond its host.

    Where plain values lie in memory does not, and without it they are alike on many ranks. Of frames that only carry
    tensors from one place to another the tensors do.
    """
    carries = any(part in frame.file for part in CARRIERS)
    kept = (v for v in variables if not carries or v.tensor is not None)
    return tuple(_raw(replace(v, address=None) if v.kind in PLAIN else v) for v in kept)


def _raw(variable: Variable) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(variable))


def _groups(record: Groups) -> GroupsForm:
    groups = tuple(GroupForm(g.address, g.name, runs(g.ranks), g.default, g.backend) for g in record.groups)
    return GroupsForm(groups, record.rank, record.world_size, record.local_rank, record.master)
