"""Deduplicates dumps: most ranks of a job make the same calls and differ only in times.

A pickle is not loaded again if its entries equal those of a loaded dump byte for byte, except times and thread ids
(which do not change how the rest is parsed), and if the memo values that the entries use are equal, except names of
process groups, which are mapped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hangdoc.evidence import FlightRecorder, RecordedCall

ENTRIES = b"X\x07\x00\x00\x00entries"  # torch writes them last
MOST_BYTES = 32 << 20  # of a dump kept as a model
MOST_MODELS = 64
MOST_UNUSED = 16  # models made without a single match, then no more are made
_TIMES = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
_PER_RANK = frozenset({*_TIMES, "duration_ms", "thread_id"})
_NO_ARGUMENT = b"]})(Nueat\x85\x86\x87\x88\x89"  # opcodes without an argument
_ARGUMENT = {**dict.fromkeys(_NO_ARGUMENT, 0), 0x4B: 1, 0x4D: 2, 0x4A: 4, 0x47: 8}  # opcode -> bytes of its argument
_PUT, _GET = {0x71: 1, 0x72: 4}, {0x68: 1, 0x6A: 4}
_TEXT, _LONG1, _FLOAT = 0x58, 0x8A, 0x47
_CREATED = "time_created_ns"

Memo = Mapping[int, Any]


@dataclass(frozen=True, slots=True)
class Model:
    """The entries of one dump."""

    memo: Memo  # values before the entries, by memo number
    body: int  # bytes of the entries, as an integer
    mask: int  # bits that must be equal
    used: frozenset[int]  # memo numbers that the entries use
    created: tuple[int, ...]  # offsets of the newest creation times in the body
    entries: tuple[RecordedCall, ...]
    groups: frozenset[str]
    labels: Mapping[str, str]
    missed: int


@dataclass(slots=True)
class DumpModels:
    """The models of a job."""

    models: dict[int, list[Model]] = field(default_factory=dict)  # by the length of the body
    hits: int = 0
    count: int = 0

    def find(self, memo: Memo, body: bytes) -> tuple[Model, Mapping[str, str]] | None:
        """The model with equal entries, and its group names mapped to the names in this dump."""
        models = self.models.get(len(body), ())
        number = int.from_bytes(body, "little") if models else 0
        for model in models:
            if not (number ^ model.body) & model.mask:
                names = _group_names(model, memo)
                if names is not None:
                    self.hits += 1
                    return model, names
        return None

    def add(self, memo: Memo, body: bytes, record: FlightRecorder, newest: int) -> None:
        """Keep a loaded dump as a model."""
        if len(body) > MOST_BYTES or self.count >= (MOST_MODELS if self.hits else MOST_UNUSED):
            return
        layout = _layout(body, memo)
        if layout is None:
            return
        own, used, created = layout
        mask = bytearray(b"\xff" * len(body))
        for start, end in own:
            mask[start:end] = bytes(end - start)
        model = Model(
            memo=memo,
            body=int.from_bytes(body, "little"),
            mask=int.from_bytes(mask, "little"),
            used=used,
            created=tuple(created[-newest:]),
            entries=record.entries,
            groups=frozenset(entry.group for entry in record.entries),
            labels=record.labels,
            missed=record.missed,
        )
        self.models.setdefault(len(body), []).append(model)
        self.count += 1


def _group_names(model: Model, memo: Memo) -> dict[str, str] | None:
    """Group name in the model -> name in this dump; None: the entries use other values that differ."""
    names: dict[str, str] = {}
    for number in model.used:
        there, here = model.memo.get(number), memo.get(number)
        if not isinstance(here, str) or not isinstance(there, str):
            return None
        if here != there:
            if there not in model.groups:
                return None
            names[there] = here
    kept = model.groups - names.keys()
    return names if len({*names.values(), *kept}) == len(names) + len(kept) else None


def _layout(body: bytes, memo: Memo) -> tuple[list[tuple[int, int]], frozenset[int], list[int]] | None:
    """Spans of per-rank values, used memo numbers, and offsets of creation times; None: an unknown opcode."""
    own: list[tuple[int, int]] = []
    used: set[int] = set()
    created: list[int] = []
    names: dict[int, Any] = {}
    last: Any = None  # last string: the key, if a value follows
    for op, start, end in _tokens(body):
        if op in _PUT:
            names[int.from_bytes(body[start:end], "little")] = last
            continue
        if op in _GET:
            number = int.from_bytes(body[start:end], "little")
            if number not in names:
                used.add(number)
            last = names.get(number, memo.get(number))
            continue
        if isinstance(last, str) and last in _PER_RANK and op in (_LONG1, _FLOAT, _TEXT):
            own.append((start, end))
            if last == _CREATED and op == _LONG1 and end - start == 8:
                created.append(start)
        last = body[start:end].decode("utf-8", "replace") if op == _TEXT else None
        if op < 0:
            return None
    return own, frozenset(used), created


def _tokens(body: bytes) -> Iterator[tuple[int, int, int]]:
    """(opcode, start, end) of each argument in the body; opcode -1: unknown."""
    at, size = 0, len(body)
    while at < size:
        op = body[at]
        at += 1
        length = _ARGUMENT.get(op)
        if length is None:
            if op == _TEXT:
                length = int.from_bytes(body[at : at + 4], "little")
                at += 4
            elif op == _LONG1:
                length = body[at] if at < size else 0
                at += 1
            elif op in _PUT or op in _GET:
                length = _PUT.get(op) or _GET[op]
            else:
                length, op = 0, -1 if op != 0x2E or at != size else 0x2E
        yield op, at, at + length
        at += length
