"""What a Flight Recorder's trace holds, as evidence; what ranks have in common is kept once.

A trace is what torch dumps, as plain values: versions 2.0 to 2.10; what newer ones add is left alone. Of its values
nothing is believed: what is not as it should be is an entry less.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any

from hangdoc.evidence import FlightRecorder, Frame, ProcessGroup, RecordedCall
from hangdoc.postmortem.readers._fr_dedup import Alike
from hangdoc.redaction.text import redact

MOST_ENTRIES = 4_000_000
MOST_FRAMES = 64  # of one stack
MOST_TENSORS, MOST_DIMS = 512, 32  # of one operation
TIMED = 64  # newest entries whose time is kept
LONGEST = 300  # characters of a name or path
DEFAULT = ("0", "default_pg")  # how torch names the group of the whole job, and how it describes it
_BAD = (TypeError, ValueError, KeyError, AttributeError, OverflowError, IndexError)
_NO_SIZES = b""


@dataclass(slots=True)
class Kept:
    """What the dumps of a job have in common, by what it is made of."""

    frames: dict[tuple[str, str, int], Frame] = field(default_factory=dict)
    stacks: dict[tuple[Frame, ...], tuple[Frame, ...]] = field(default_factory=dict)
    entries: dict[tuple[Any, ...], RecordedCall] = field(default_factory=dict)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    groups: dict[ProcessGroup, ProcessGroup] = field(default_factory=dict)
    alike: Alike = field(default_factory=Alike)


def flight_recorder(trace: Mapping[str, Any], kept: Kept) -> tuple[FlightRecorder, int]:
    """The record, and how many of its entries were not readable."""
    raw = trace.get("entries")
    raw = raw[:MOST_ENTRIES] if isinstance(raw, list) else []
    reader = _Entries(kept)
    entries = reader.read(raw)
    first = _whole(raw[0].get("record_id")) if raw and isinstance(raw[0], dict) else None
    made = about(trace, kept)
    return replace(
        made, entries=tuple(entries), labels=reader.labels, begun=_begun(raw), missed=max(0, first or 0)
    ), len(raw) - len(entries)


def about(trace: Mapping[str, Any], kept: Kept) -> FlightRecorder:
    """All of a trace but its entries."""
    status = trace.get("pg_status")
    status = status if isinstance(status, dict) else {}
    library = trace.get("comm_lib_version") or trace.get("nccl_version")
    return FlightRecorder(
        version=text(trace.get("version")) or "unknown",
        entries=(),
        enqueued=_counts(status, "last_enqueued_collective"),
        completed=_counts(status, "last_completed_collective"),
        final=True,
        groups=_groups(trace.get("pg_config"), kept),
        library=text(library) or None,
    )


def text(value: object) -> str:
    """A text of the trace, without secrets and not too long; "" for anything else."""
    return redact("", value[: 4 * LONGEST])[:LONGEST] if isinstance(value, str) else ""


# --- entries --------------------------------------------------------------------------------------


class _Entries:
    """The entries of one trace."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        self.labels: dict[str, str] = {}
        self._stacks: dict[tuple[int, ...], tuple[Frame, ...]] = {}  # by the identities of the trace's own frames
        self._threads: dict[Any, int | None] = {None: None}  # number by id

    def read(self, raw: Sequence[Any]) -> list[RecordedCall]:
        found: list[RecordedCall] = []
        known, labels = self.kept.entries, self.labels
        for entry in raw:
            try:
                key = self._key(entry)
                one = known.get(key)
                if one is None:
                    one = known[key] = self._make(entry, key)
                if key[0] not in labels:
                    labels[key[0]] = _label(entry.get("process_group"))
            except _BAD:
                continue
            if one.op.endswith("coalesced"):
                self._close(found, one)
            found.append(one)
        return found

    def _key(self, entry: Mapping[str, Any]) -> tuple[Any, ...]:
        """All that a record is made of, hashable: nothing in it is deeper than a tuple of plain values."""
        get = entry.get
        name = entry["profiling_name"]
        p2p = get("is_p2p")
        if p2p is None:
            p2p = ":send" in name or ":recv" in name
        sequence = get("p2p_seq_id") if p2p else get("collective_seq_id")
        if sequence is None:
            sequence = entry["seq_id"]
        group = get("process_group")
        group = group[0] if group else str(_whole(get("pg_id")))
        state, timeout = get("state"), get("timeout_ms")
        if type(name) is not str or type(group) is not str or not (state is None or type(state) is str):
            raise TypeError
        return (
            group,
            int(sequence),
            name,
            bool(p2p),
            state,
            bool(get("retired")),
            timeout if type(timeout) is int else None,
            _sizes(get("input_sizes")),
            _sizes(get("output_sizes")),
            ",".join(get("input_dtypes") or ()),
            ",".join(get("output_dtypes") or ()),
            id(self._stack(get("frames"))),
            self._thread(get("thread_id")),
        )

    def _thread(self, id: Any) -> int | None:
        """The number of a thread; what is no plain id is not hashed: tuples within tuples take for ever."""
        if type(id) not in (int, str, NoneType):
            raise TypeError
        return self._threads.setdefault(id, len(self._threads) - 1)

    def _make(self, entry: Mapping[str, Any], key: tuple[Any, ...]) -> RecordedCall:
        group, sequence, name, p2p, state, retired, timeout, _, _, dtypes, output_dtypes, _, thread = key
        op, _, ends = text(name).partition(":")[2].partition(" ") if ":" in name else text(name).partition(" ")
        ranks = re.fullmatch(r"(\d{1,9})(->|<-)(\d{1,9})", ends.strip())
        sender, receiver = (int(ranks[1]), int(ranks[3])) if ranks else (None, None)
        if ranks and ranks[2] == "<-":
            sender, receiver = receiver, sender
        return RecordedCall(
            group=text(group),
            sequence=sequence,
            op=op,
            sizes=_written(entry.get("input_sizes")),
            dtypes=tuple(text(dtypes).split(",")) if dtypes else (),
            retired=retired or state == "completed",
            p2p=p2p,
            state=text(state),
            outputs=_written(entry.get("output_sizes")),
            output_dtypes=tuple(text(output_dtypes).split(",")) if output_dtypes else (),
            frames=self._stack(entry.get("frames")),
            sender=sender,
            receiver=receiver,
            timeout_s=timeout / 1000 if timeout is not None else None,
            thread=thread,
        )

    def _stack(self, raw: Any) -> tuple[Frame, ...]:
        if not raw:
            return ()
        raw = raw[:MOST_FRAMES]
        at = tuple(map(id, raw))
        found = self._stacks.get(at)
        if found is None:
            made = tuple([self._frame(frame) for frame in raw])
            found = self._stacks[at] = self.kept.stacks.setdefault(made, made)
        return found

    def _frame(self, raw: Mapping[str, Any]) -> Frame:
        name, file, line = raw["name"], raw["filename"], raw["line"]
        if type(name) is not str or type(file) is not str:
            raise TypeError
        key = name, file, int(line)
        if key not in self.kept.frames:
            path = text(file)
            self.kept.frames[key] = Frame(text(name), path, key[2], path.rpartition("/")[2])
        return self.kept.frames[key]

    def _close(self, found: list[RecordedCall], end: RecordedCall) -> None:
        """What was coalesced is over when the whole is: of its parts torch does not keep a state."""
        i = len(found)
        while i and _same_call(found[i - 1], end):
            i -= 1
            if end.retired and not found[i].retired:
                key = ("closed", id(found[i]))
                found[i] = self.kept.entries.setdefault(key, replace(found[i], retired=True))


def _same_call(a: RecordedCall, b: RecordedCall) -> bool:
    return (a.group, a.sequence, a.p2p) == (b.group, b.sequence, b.p2p)


def _sizes(raw: Any) -> Any:
    """Hashable; raises TypeError where there is anything but lists of whole numbers."""
    if not raw:
        return _NO_SIZES
    if len(raw) == 1 and len(raw[0]) <= MOST_DIMS:
        return array("q", raw[0]).tobytes()
    return tuple([array("q", dims[:MOST_DIMS]).tobytes() for dims in raw[:MOST_TENSORS]])


def _written(raw: Any) -> str:
    """Sizes as text; they have been through `_sizes`."""
    return str([array("q", dims[:MOST_DIMS]).tolist() for dims in raw[:MOST_TENSORS]]) if raw else ""


def _label(group: Any) -> str:
    label = text(group[1]) if isinstance(group, (list, tuple)) and len(group) > 1 else ""
    return "" if label == "undefined" else label


def _begun(raw: Sequence[Any]) -> tuple[float, ...]:
    times = [entry.get("time_created_ns") for entry in raw[-TIMED:] if isinstance(entry, dict)]
    return tuple([time / 1e9 for time in times if type(time) is int and 0 < time < 2**63])


# --- groups ---------------------------------------------------------------------------------------


def _counts(status: Mapping[Any, Any], name: str) -> dict[str, int]:
    """By group a number of its collectives; gloo and JSON write some of these as text."""
    found = {}
    for group, told in list(status.items())[:10_000]:
        number = _whole(told.get(name)) if isinstance(told, dict) else None
        if isinstance(group, str) and number is not None:
            found[text(group)] = number
    return found


def _groups(config: Any, kept: Kept) -> tuple[ProcessGroup, ...]:
    """The process groups whose members are told; gloo tells of the last one, without its name."""
    found: list[ProcessGroup] = []
    for at, told in list(config.items())[:10_000] if isinstance(config, dict) else ():
        if not isinstance(told, dict):
            continue
        name, ranks = text(told.get("name")) or text(at), told.get("ranks")
        ranks = ranks if isinstance(ranks, str) else _flat(ranks)
        if ranks not in kept.members:
            kept.members[ranks] = tuple(map(int, re.findall(r"\d{1,9}", ranks)))
        members = kept.members[ranks]
        if members:
            default = name == DEFAULT[0] or told.get("desc") == DEFAULT[1]
            made = ProcessGroup(len(found) + 1, name, members, default)
            found.append(kept.groups.setdefault(made, made))
    return tuple(found)


def _flat(ranks: Any) -> str:
    """A list of ranks as torch writes it."""
    ranks = ranks[:1_000_000] if isinstance(ranks, (list, tuple)) else ()
    return str([rank for rank in ranks if type(rank) is int])


def _whole(value: Any) -> int | None:
    if type(value) is int:
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value) else None
