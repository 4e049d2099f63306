"""The collector's side of the protocol: puts snapshots together from parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

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
from hangdoc.evidence.limits import MAX_RANKS_PER_HOST, validated
from hangdoc.evidence.memory import share
from hangdoc.fleet.protocol import (
    KEEP,
    MAX_MEMBERS,
    MAX_UNSEEN,
    MAX_WHY,
    Answer,
    FrameCode,
    GroupsForm,
    RankEntry,
    StacksForm,
    ThreadForm,
    from_ranges,
    parse,
    range_length,
)

SOME = 1024  # cached frames; a frame of one rank passes through
MAX_KEPT = 96 << 20  # bytes of JSON in a host's parts; 512 ranks take 50 MB
MAX_PARTS = 1 << 19  # parts of a host
# Bytes of a part that is cached for all hosts; a larger part is kept for its own host. No cache exceeds 32 MB.
MAX_FRAMES, MAX_SOURCE, MAX_VARIABLES, MAX_VARIABLE = 1 << 14, 1 << 17, 1 << 14, 1 << 12
LONGEST = 1000  # characters of a job name or an address
MEMBER_BYTES = 8  # charged per group member: its JSON may be shorter than its memory


@dataclass(slots=True)
class _Part:
    """A part as the decoder keeps it."""

    raw: bytes
    last: int  # the last answer that used it
    value: Any = None  # decoded when first needed
    within: tuple[int, ...] = ()  # parts that it refers to
    size: int = 0  # bytes as received


class Decoder:
    """Puts the snapshots of one agent together."""

    def __init__(self, kinds: Mapping[str, type], models: dict[str, Any] | None = None) -> None:
        """`kinds`: record type of each probe; `models`: one record of each type, shared by the decoders of all hosts: a
        new record shares equal data with it.
        """
        self._kinds = kinds
        self._models = {} if models is None else models
        self._parts: dict[int, _Part] = {}
        self._answers = 0
        self._before: dict[int, Mapping[str, Any]] = {}  # records of the previous answer, by PID
        self._kept = 0  # bytes of all parts, as received

    def snapshot(self, host: str, answer: Answer) -> Snapshot:
        """The snapshot in an answer. Raises ValueError if a part is missing or invalid, or a limit is exceeded."""
        self._answers += 1
        if len(answer.ranks) > MAX_RANKS_PER_HOST or len(answer.unseen) > MAX_UNSEEN:
            raise ValueError(
                "more ranks than a host can have"
                if len(answer.ranks) > MAX_RANKS_PER_HOST
                else "too many reasons for unseen data"
            )
        for number, raw in answer.parts.items():
            self._drop(number)
            part = self._parts[number] = _Part(bytes(raw), self._answers)
            self._charge(part, len(part.raw))
        ranks = tuple(self._rank(rank) for rank in answer.ranks)
        self._before = {rank.target.pid: rank.records for rank in ranks}
        records = dict(self._records(answer.records, {}))
        for number in [number for number, part in self._parts.items() if part.last <= self._answers - KEEP]:
            self._drop(number)
        unseen = tuple(
            _shortened(lack) for lack in answer.unseen if lack.probe != AGENT
        )  # only the collector reports lost agents
        return Snapshot(host, answer.at_s, answer.time[:40], ranks, records, unseen, answer.tier)

    def _charge(self, part: _Part, size: int) -> None:
        part.size += size
        self._kept += size
        if self._kept > MAX_KEPT or len(self._parts) > MAX_PARTS:
            raise ValueError("more data than the ranks of a host can have")

    def _drop(self, number: int) -> None:
        part = self._parts.pop(number, None)
        self._kept -= part.size if part is not None else 0

    def _rank(self, seen: RankEntry) -> RankEvidence:
        target: Target = self._made(seen.target, Target)  # the same object while it is unchanged
        before = self._before.get(target.pid, {})
        return RankEvidence(target, seen.alive, dict(self._records(seen.records, before)), seen.exit, seen.end)

    def _records(self, numbers: Mapping[str, int], before: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, number in numbers.items():
            if name in self._kinds:  # else a probe of a newer version
                record = self._made(number, self._kinds[name], before.get(name, self._models.get(name)))
                self._models.setdefault(name, record)
                yield shared_text(name), record

    def _made(self, number: int, kind: type, before: Any = None) -> Any:
        """The value of a part; it shares equal data with `before`."""
        part = self._named(number)
        if part.value is None:
            made = self._stacks(part) if kind is Stacks else _MADE[kind](part.raw) if kind in _MADE else None
            if isinstance(made, ProcessGroups):
                self._charge(part, MEMBER_BYTES * sum(len(group.ranks) for group in made.groups))
            part.value, part.raw = share(parse(part.raw, kind) if made is None else made, before), b""
        for code in part.within:
            self._named(code)
        if not isinstance(part.value, kind):
            raise ValueError(f"part {number} is a {type(part.value).__name__}, not a {kind.__name__}")
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
        if decoded := thread.variables:
            frames = tuple(
                [_with(code, at, bytes(decoded[at])) if at in decoded else frame for at, frame in enumerate(frames)]
            )
        return Stack(thread.tid, thread.name, frames, thread.holds_gil, thread.active, thread.left_out)

    def _named(self, number: int) -> _Part:
        part = self._parts.get(number)
        if part is None:
            raise ValueError(f"part {number} was never sent")
        part.last = self._answers
        return part


def _shortened(lack: Unseen) -> Unseen:
    if len(lack.why) <= MAX_WHY and len(lack.probe) <= MAX_WHY:
        return lack
    return replace(lack, why=lack.why[:MAX_WHY], probe=lack.probe[:MAX_WHY])


def _target(raw: bytes) -> Target:
    decoded = validated(parse(raw, Target))
    if max(len(decoded.job), len(decoded.master or ""), len(decoded.launcher or "")) > LONGEST:
        raise ValueError("a name that is too long")
    return decoded


@lru_cache(maxsize=4 * SOME)
def shared_text(text: str) -> str:
    """One object for equal words of many ranks. `sys.intern` would keep them for ever (CPython 3.12)."""
    return text


def _source(raw: bytes) -> Source:
    return _shared_source(raw) if len(raw) <= MAX_SOURCE else parse(raw, Source)


@lru_cache(maxsize=256)  # equal parts of several hosts are one object
def _shared_source(raw: bytes) -> Source:
    return parse(raw, Source)


def _with(code: _Frames, at: int, raw: bytes) -> Frame:
    return (_shared_frame if len(raw) <= MAX_VARIABLES else _shared_frame.__wrapped__)(code, at, raw)


@lru_cache(maxsize=SOME)
def _shared_frame(code: _Frames, at: int, raw: bytes) -> Frame:
    """A frame with its variables; ranks with equal variables share one object."""
    frame = code.frames[at]
    variables = tuple([_variable(bytes(one)) for one in parse(raw, tuple[msgspec.Raw, ...])])
    return Frame(frame.function, frame.file, frame.line, frame.short, frame.native, variables)


def _variable(raw: bytes) -> Variable:
    return (_shared_variable if len(raw) <= MAX_VARIABLE else _shared_variable.__wrapped__)(raw)


@lru_cache(maxsize=4 * SOME)
def _shared_variable(raw: bytes) -> Variable:
    v = parse(raw, Variable)
    name, kind = shared_text(v.name), v.kind and shared_text(v.kind)
    return Variable(name, v.text, v.argument, v.number, v.length, kind, v.address, v.tensor)


def _environ(raw: bytes) -> Environ:
    """Most ranks have most variables in common."""
    decoded = parse(raw, Environ)
    return replace(
        decoded, variables={shared_text(name): shared_text(value) for name, value in decoded.variables.items()}
    )


def _groups(raw: bytes) -> ProcessGroups:
    form = parse(raw, GroupsForm)
    if sum(range_length(group.ranks) for group in form.groups) > 2 * MAX_MEMBERS:
        raise ValueError("process groups that are too large")
    groups = tuple(ProcessGroup(g.address, g.name, from_ranges(g.ranks), g.default, g.backend) for g in form.groups)
    return ProcessGroups(groups, form.rank, form.world_size, form.local_rank, form.master, form.exists)


@dataclass(frozen=True, slots=True, eq=False)
class _Frames:
    """The frames of a stack without their variables."""

    frames: tuple[Frame, ...]


def _frames(raw: bytes) -> _Frames:
    return (_shared_frames if len(raw) <= MAX_FRAMES else _shared_frames.__wrapped__)(raw)


@lru_cache(maxsize=2048)
def _shared_frames(raw: bytes) -> _Frames:
    return _Frames(
        tuple(Frame(c.function, c.file, c.line, c.short, c.native) for c in parse(raw, tuple[FrameCode, ...]))
    )


_MADE: Mapping[Any, Callable[[bytes], Any]] = {
    Target: _target,
    Source: _source,
    ProcessGroups: _groups,
    Environ: _environ,
}
