"""Dumps that hold what another dump holds: most ranks of a job make the same calls, at times of their own.

A pickle is not loaded again where all bytes of its entries are those of a dump that was loaded before, but for the
instants and the thread that it names (their bytes do not change how the rest is read), and where all that the entries
refer to before them is the same, but for the names of process groups, which are put in place of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hangdoc.evidence import FlightRecorder, RecordedCall

ENTRIES = b"X\x07\x00\x00\x00entries"  # torch writes them last
MOST_BYTES = 32 << 20  # of a dump that others are compared with
MOST_MODELS = 64
IN_VAIN = 16  # models without a single dump like one of them, after which no more are made
_TIMES = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
_OWN = frozenset({*_TIMES, "duration_ms", "thread_id"})
_BARE = b"]})(Nueat\x85\x86\x87\x88\x89"  # opcodes without an argument
_ARGUMENT = {**dict.fromkeys(_BARE, 0), 0x4B: 1, 0x4D: 2, 0x4A: 4, 0x47: 8}  # its bytes
_PUT, _GET = {0x71: 1, 0x72: 4}, {0x68: 1, 0x6A: 4}
_TEXT, _LONG1, _FLOAT = 0x58, 0x8A, 0x47
_CREATED = "time_created_ns"

Memo = Mapping[int, Any]


@dataclass(frozen=True, slots=True)
class Model:
    """The entries of one dump."""

    memo: Memo  # what stands before the entries, by its number
    body: int  # their bytes
    mask: int  # and which of them must be the same
    used: frozenset[int]  # what of the memo they refer to
    created: tuple[int, ...]  # where in the body the instants of the newest are
    entries: tuple[RecordedCall, ...]
    groups: frozenset[str]
    labels: Mapping[str, str]
    missed: int


@dataclass(slots=True)
class Alike:
    """The models of a job."""

    models: dict[int, list[Model]] = field(default_factory=dict)  # by the length of the body
    hits: int = 0
    count: int = 0

    def find(self, memo: Memo, body: bytes) -> tuple[Model, Mapping[str, str]] | None:
        """A dump that holds the same, and what its groups are called here."""
        models = self.models.get(len(body), ())
        number = int.from_bytes(body, "little") if models else 0
        for model in models:
            if not (number ^ model.body) & model.mask:
                names = _renamed(model, memo)
                if names is not None:
                    self.hits += 1
                    return model, names
        return None

    def add(self, memo: Memo, body: bytes, record: FlightRecorder, newest: int) -> None:
        """What was loaded as a model for others."""
        if len(body) > MOST_BYTES or self.count >= (MOST_MODELS if self.hits else IN_VAIN):
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


def _renamed(model: Model, memo: Memo) -> dict[str, str] | None:
    """By the name of a group there the one here; None where what the entries refer to differs in anything else."""
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
    """Where values are that are a rank's own, which of the memo is used, and where the instants of calls are.

    None where there is an opcode that torch does not write.
    """
    own: list[tuple[int, int]] = []
    used: set[int] = set()
    created: list[int] = []
    names: dict[int, Any] = {}
    last: Any = None  # the newest text: the key, where a value follows
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
        if isinstance(last, str) and last in _OWN and op in (_LONG1, _FLOAT, _TEXT):
            own.append((start, end))
            if last == _CREATED and op == _LONG1 and end - start == 8:
                created.append(start)
        last = body[start:end].decode("utf-8", "replace") if op == _TEXT else None
        if op < 0:
            return None
    return own, frozenset(used), created


def _tokens(body: bytes) -> Iterator[tuple[int, int, int]]:
    """Opcode, and where its argument begins and ends, of all in the body; -1 for what is not known here."""
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
