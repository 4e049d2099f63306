"""The collector's side: puts snapshots together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from sys import intern
from typing import Any

import msgspec

from hangdoc.evidence import (
    Environ,
    Frame,
    Groups,
    ProcessGroup,
    RankEvidence,
    Snapshot,
    Source,
    Stack,
    Stacks,
    Target,
    Variable,
)
from hangdoc.share import share
from hangdoc.wire import KEEP, Answer, Seen, parse
from hangdoc.wire.forms import SAME, Code, GroupsForm, StacksForm, ThreadForm, members

SOME = 1024  # frames that many ranks have alike; what only one has passes through


@dataclass(slots=True)
class _Part:
    """A part as the reader keeps it."""

    raw: bytes
    last: int  # the answer that named it last
    value: Any = None  # what was made of it when it was first needed
    within: tuple[int, ...] = ()  # parts that it names itself


class Reader:
    """Puts the snapshots of one agent together."""

    def __init__(self, kinds: Mapping[str, type], models: dict[str, Any] | None = None) -> None:
        """`kinds`: the record of each probe, by its name; `models`: one of each that was read, by this reader or by
        others that have the same `models`: what a record has in common with it is kept once."""
        self._kinds = kinds
        self._models = {} if models is None else models
        self._parts: dict[int, _Part] = {}
        self._answers = 0
        self._before: dict[int, Mapping[str, Any]] = {}  # by PID the records of the answer before

    def snapshot(self, host: str, answer: Answer) -> Snapshot:
        """The snapshot in an answer; raises ValueError where a part is missing or not what it should be."""
        self._answers += 1
        for number, raw in answer.parts.items():
            self._parts[number] = _Part(bytes(raw), self._answers)
        ranks = tuple(self._rank(rank) for rank in answer.ranks)
        self._before = {rank.target.pid: rank.records for rank in ranks}
        records = dict(self._records(answer.records, {}))
        for number in [number for number, part in self._parts.items() if part.last <= self._answers - KEEP]:
            del self._parts[number]
        return Snapshot(host, answer.at_s, answer.time, ranks, records, answer.unseen, answer.tier)

    def _rank(self, seen: Seen) -> RankEvidence:
        target: Target = self._made(seen.target, Target)
        before = self._before.get(target.pid, {})
        return RankEvidence(target, seen.alive, dict(self._records(seen.records, before)), seen.exit, seen.end)

    def _records(self, numbers: Mapping[str, int], before: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, number in numbers.items():
            if name in self._kinds:  # else a probe of a newer version
                record = self._made(number, self._kinds[name], before.get(name, self._models.get(name)))
                self._models.setdefault(name, record)
                yield intern(name), record

    def _made(self, number: int, kind: type, before: Any = None) -> Any:
        """What a part says; `before`: what equals it is made of this."""
        part = self._named(number)
        if part.value is None:
            made = self._stacks(part) if kind is Stacks else _MADE[kind](part.raw) if kind in _MADE else None
            part.value, part.raw = share(parse(part.raw, kind) if made is None else made, before), b""
        for code in part.within:
            self._named(code)
        return part.value

    def _stacks(self, part: _Part) -> Stacks:
        stacks = parse(part.raw, StacksForm)
        every = ((0, stacks.threads), *stacks.children)
        part.within = tuple({thread.code for _, some in every for thread in some})
        children = tuple((pid, tuple(map(self._stack, threads))) for pid, threads in stacks.children)
        threads = tuple(map(self._stack, stacks.threads))
        return Stacks(threads, stacks.native, stacks.python, stacks.globals, children)

    def _stack(self, thread: ThreadForm) -> Stack:
        part = self._named(thread.code)
        if part.value is None:
            part.value, part.raw = _frames(part.raw), b""
        code: _Frames = part.value
        frames = code.frames
        if told := thread.variables:
            frames = tuple(
                [_with(code, at, bytes(told[at])) if at in told else frame for at, frame in enumerate(frames)]
            )
        return Stack(thread.tid, thread.name, frames, thread.holds_gil, thread.active, thread.left_out)

    def _named(self, number: int) -> _Part:
        part = self._parts.get(number)
        if part is None:
            raise ValueError(f"part {number} was never sent")
        part.last = self._answers
        return part


@lru_cache(maxsize=SAME)  # equal parts of several hosts are one
def _source(raw: bytes) -> Source:
    return parse(raw, Source)


@lru_cache(maxsize=SOME)
def _with(code: _Frames, at: int, raw: bytes) -> Frame:
    """A frame with its variables: of ranks that have them alike it is one object."""
    frame = code.frames[at]
    variables = tuple([_variable(bytes(one)) for one in parse(raw, tuple[msgspec.Raw, ...])])
    return Frame(frame.function, frame.file, frame.line, frame.short, frame.native, variables)


@lru_cache(maxsize=4 * SOME)
def _variable(raw: bytes) -> Variable:
    v = parse(raw, Variable)
    name, kind = intern(v.name), v.kind and intern(v.kind)
    return Variable(name, v.text, v.argument, v.number, v.length, kind, v.address, v.tensor)


def _environ(raw: bytes) -> Environ:
    """Most ranks have most variables alike."""
    told = parse(raw, Environ)
    return replace(told, variables={intern(name): intern(value) for name, value in told.variables.items()})


def _groups(raw: bytes) -> Groups:
    form = parse(raw, GroupsForm)
    groups = tuple(ProcessGroup(g.address, g.name, members(g.ranks), g.default, g.backend) for g in form.groups)
    return Groups(groups, form.rank, form.world_size, form.local_rank, form.master)


@dataclass(frozen=True, slots=True, eq=False)
class _Frames:
    """The frames of a stack without their variables."""

    frames: tuple[Frame, ...]


@lru_cache(maxsize=SAME)
def _frames(raw: bytes) -> _Frames:
    return _Frames(tuple(Frame(c.function, c.file, c.line, c.short, c.native) for c in parse(raw, tuple[Code, ...])))


_MADE: Mapping[Any, Callable[[bytes], Any]] = {Source: _source, Groups: _groups, Environ: _environ}
