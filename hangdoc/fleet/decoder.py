"""The collector's side: puts snapshots together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec

from hangdoc.evidence import (
    AGENT,
    Environ,
    Frame,
    ProcessGroup,
    ProcessGroups,
    RankEvidence,
    Snapshot,
    Source,
    Stack,
    Stacks,
    Target,
    Unseen,
    Variable,
)
from hangdoc.evidence.limits import HOST_MOST, validated
from hangdoc.evidence.memory import share
from hangdoc.fleet.protocol import (
    KEEP,
    MOST,
    UNSEEN_MOST,
    WHY_MOST,
    Answer,
    Code,
    GroupsForm,
    Seen,
    StacksForm,
    ThreadForm,
    length,
    members,
    parse,
)

SOME = 1024  # frames that many ranks have alike; what only one has passes through
KEPT_MOST = 96 << 20  # bytes of JSON that a host's parts may have in all; 512 ranks have some 50 MB
PARTS_MOST = 1 << 19  # parts of a host
# Bytes of a part that is kept for all hosts; what is longer is kept for its own alone. No cache takes more than 32 MB.
FRAMES_MOST, SOURCE_MOST, VARIABLES_MOST, VARIABLE_MOST = 1 << 14, 1 << 17, 1 << 14, 1 << 12
LONGEST = 1000  # characters of a name of a job or of a place
MEMBER_BYTES = 8  # that a member of a process group counts, whose JSON may be shorter


@dataclass(slots=True)
class _Part:
    """A part as the reader keeps it."""

    raw: bytes
    last: int  # the answer that named it last
    value: Any = None  # what was made of it when it was first needed
    within: tuple[int, ...] = ()  # parts that it names itself
    size: int = 0  # bytes, as it came


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
        self._kept = 0  # bytes of all parts, as they came

    def snapshot(self, host: str, answer: Answer) -> Snapshot:
        """The snapshot in an answer; raises ValueError where a part is missing or not what it should be, or where there
        is more of anything than a host may have."""
        self._answers += 1
        if len(answer.ranks) > HOST_MOST or len(answer.unseen) > UNSEEN_MOST:
            raise ValueError("more ranks than a host may have" if len(answer.ranks) > HOST_MOST else "too much unseen")
        for number, raw in answer.parts.items():
            self._drop(number)
            part = self._parts[number] = _Part(bytes(raw), self._answers)
            self._charge(part, len(part.raw))
        ranks = tuple(self._rank(rank) for rank in answer.ranks)
        self._before = {rank.target.pid: rank.records for rank in ranks}
        records = dict(self._records(answer.records, {}))
        for number in [number for number, part in self._parts.items() if part.last <= self._answers - KEEP]:
            self._drop(number)
        unseen = tuple(_shortened(lack) for lack in answer.unseen if lack.probe != AGENT)  # that is ours to say
        return Snapshot(host, answer.at_s, answer.time[:40], ranks, records, unseen, answer.tier)

    def _charge(self, part: _Part, size: int) -> None:
        part.size += size
        self._kept += size
        if self._kept > KEPT_MOST or len(self._parts) > PARTS_MOST:
            raise ValueError("it sends more than a host's ranks may have")

    def _drop(self, number: int) -> None:
        part = self._parts.pop(number, None)
        self._kept -= part.size if part is not None else 0

    def _rank(self, seen: Seen) -> RankEvidence:
        target: Target = self._made(seen.target, Target)  # the same object while it stays the same
        before = self._before.get(target.pid, {})
        return RankEvidence(target, seen.alive, dict(self._records(seen.records, before)), seen.exit, seen.end)

    def _records(self, numbers: Mapping[str, int], before: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, number in numbers.items():
            if name in self._kinds:  # else a probe of a newer version
                record = self._made(number, self._kinds[name], before.get(name, self._models.get(name)))
                self._models.setdefault(name, record)
                yield one(name), record

    def _made(self, number: int, kind: type, before: Any = None) -> Any:
        """What a part says; `before`: what equals it is made of this."""
        part = self._named(number)
        if part.value is None:
            made = self._stacks(part) if kind is Stacks else _MADE[kind](part.raw) if kind in _MADE else None
            if isinstance(made, ProcessGroups):
                self._charge(part, MEMBER_BYTES * sum(len(group.ranks) for group in made.groups))
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


def _shortened(lack: Unseen) -> Unseen:
    if len(lack.why) <= WHY_MOST and len(lack.probe) <= WHY_MOST:
        return lack
    return replace(lack, why=lack.why[:WHY_MOST], probe=lack.probe[:WHY_MOST])


def _target(raw: bytes) -> Target:
    told = validated(parse(raw, Target))
    if max(len(told.job), len(told.master or ""), len(told.launcher or "")) > LONGEST:
        raise ValueError("a name of impossible length")
    return told


@lru_cache(maxsize=4 * SOME)
def one(text: str) -> str:
    """A word that most ranks have alike, as one object. `sys.intern` would keep it for ever (CPython 3.12)."""
    return text


def intern(text: str) -> str:
    return one(text) if len(text) <= WHY_MOST else text


def _source(raw: bytes) -> Source:
    return _shared_source(raw) if len(raw) <= SOURCE_MOST else parse(raw, Source)


@lru_cache(maxsize=256)  # equal parts of several hosts are one
def _shared_source(raw: bytes) -> Source:
    return parse(raw, Source)


def _with(code: _Frames, at: int, raw: bytes) -> Frame:
    return (_shared_frame if len(raw) <= VARIABLES_MOST else _shared_frame.__wrapped__)(code, at, raw)


@lru_cache(maxsize=SOME)
def _shared_frame(code: _Frames, at: int, raw: bytes) -> Frame:
    """A frame with its variables: of ranks that have them alike it is one object."""
    frame = code.frames[at]
    variables = tuple([_variable(bytes(one)) for one in parse(raw, tuple[msgspec.Raw, ...])])
    return Frame(frame.function, frame.file, frame.line, frame.short, frame.native, variables)


def _variable(raw: bytes) -> Variable:
    return (_shared_variable if len(raw) <= VARIABLE_MOST else _shared_variable.__wrapped__)(raw)


@lru_cache(maxsize=4 * SOME)
def _shared_variable(raw: bytes) -> Variable:
    v = parse(raw, Variable)
    name, kind = one(v.name), v.kind and one(v.kind)
    return Variable(name, v.text, v.argument, v.number, v.length, kind, v.address, v.tensor)


def _environ(raw: bytes) -> Environ:
    """Most ranks have most variables alike."""
    told = parse(raw, Environ)
    return replace(told, variables={one(name): one(value) for name, value in told.variables.items()})


def _groups(raw: bytes) -> ProcessGroups:
    form = parse(raw, GroupsForm)
    if sum(length(group.ranks) for group in form.groups) > 2 * MOST:
        raise ValueError("process groups of impossible size")
    groups = tuple(ProcessGroup(g.address, g.name, members(g.ranks), g.default, g.backend) for g in form.groups)
    return ProcessGroups(groups, form.rank, form.world_size, form.local_rank, form.master)


@dataclass(frozen=True, slots=True, eq=False)
class _Frames:
    """The frames of a stack without their variables."""

    frames: tuple[Frame, ...]


def _frames(raw: bytes) -> _Frames:
    return (_shared_frames if len(raw) <= FRAMES_MOST else _shared_frames.__wrapped__)(raw)


@lru_cache(maxsize=2048)
def _shared_frames(raw: bytes) -> _Frames:
    return _Frames(tuple(Frame(c.function, c.file, c.line, c.short, c.native) for c in parse(raw, tuple[Code, ...])))


_MADE: Mapping[Any, Callable[[bytes], Any]] = {
    Target: _target,
    Source: _source,
    ProcessGroups: _groups,
    Environ: _environ,
}
