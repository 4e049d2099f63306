"""Converts a Flight Recorder trace into a record; ranks share equal frames, stacks and entries.

A trace is torch's dump as plain values, versions 2.0 to 2.10; fields of newer versions are ignored. Values are not
trusted: a malformed entry is dropped.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, TypeVar

from msgspec.structs import replace

from hangdoc.evidence import FlightRecorder, Frame, ProcessGroup, RecordedCall
from hangdoc.postmortem.readers._fr_worker import MAX_DIMS, MAX_ENTRIES, MAX_FRAMES, MAX_TENSORS, TIMED_ENTRIES
from hangdoc.redaction.text import redact

LONGEST = 300  # characters of a name or path
DEFAULT = ("0", "default_pg")  # torch's name and description of the default group
MALFORMED = (TypeError, ValueError, KeyError, AttributeError, OverflowError, IndexError)
_NO_SIZES = b""

T = TypeVar("T")


@dataclass(slots=True)
class SharedParts:
    """Values shared by the dumps of a job, by content."""

    frames: dict[tuple[str, str, int], Frame] = field(default_factory=dict)
    stacks: dict[tuple[Frame, ...], tuple[Frame, ...]] = field(default_factory=dict)
    calls: dict[tuple[Any, ...], RecordedCall] = field(default_factory=dict)  # without a group
    in_group: dict[str, dict[int, RecordedCall]] = field(default_factory=dict)  # by name of the group and id in `calls`
    closed: dict[int, RecordedCall] = field(default_factory=dict)  # parts of coalesced calls, by id of the open part
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    groups: dict[ProcessGroup, ProcessGroup] = field(default_factory=dict)
    texts: dict[Any, Any] = field(default_factory=dict)  # names, states, sizes and types of calls

    def one(self, value: T) -> T:
        """The first value equal to this text, bytes or tuple of texts: most calls have the same ones."""
        same: T = self.texts.setdefault(value, value)
        return same


def flight_recorder(trace: Mapping[str, Any], shared: SharedParts) -> tuple[FlightRecorder, int]:
    """The record of the newest MAX_ENTRIES entries, and the number of unreadable ones."""
    raw = trace.get("entries")
    raw = raw[-MAX_ENTRIES:] if isinstance(raw, list) else []
    reader = Entries(shared)
    entries = reader.read(raw)
    first = _int(raw[0].get("record_id")) if raw and isinstance(raw[0], dict) else None
    made = trace_header(trace, shared)
    return replace(
        made, entries=tuple(entries), labels=reader.labels, begun=_start_times(raw), missed=max(0, first or 0)
    ), len(raw) - len(entries)


def trace_header(trace: Mapping[str, Any], shared: SharedParts) -> FlightRecorder:
    """The record without entries."""
    status = trace.get("pg_status")
    status = status if isinstance(status, dict) else {}
    library = trace.get("comm_lib_version") or trace.get("nccl_version")
    return FlightRecorder(
        version=text(trace.get("version")) or "unknown",
        entries=(),
        enqueued=_counts(status, "last_enqueued_collective"),
        completed=_counts(status, "last_completed_collective"),
        final=True,
        groups=_groups(trace.get("pg_config"), shared),
        library=text(library) or None,
    )


def text(value: object) -> str:
    """A string of the trace, redacted and shortened; "" for other types."""
    return redact("", value[: 4 * LONGEST])[:LONGEST] if isinstance(value, str) else ""


# --- entries --------------------------------------------------------------------------------------


class Entries:
    """Converts the entries of one trace."""

    def __init__(self, shared: SharedParts) -> None:
        self.shared = shared
        self.labels: dict[str, str] = {}
        self._stacks: dict[tuple[int, ...], tuple[Frame, ...]] = {}  # by the ids of the trace's frame objects
        self._threads: dict[Any, int | None] = {None: None}  # thread id -> number

    def read(self, raw: Sequence[Any]) -> list[RecordedCall]:
        found: list[RecordedCall] = []
        for entry in raw:
            try:
                group = group_name(entry.get("process_group"), entry.get("pg_id"))
                one = self.in_group(self.call(entry, self._thread(entry.get("thread_id"))), group)
                if group not in self.labels:
                    self.labels[group] = label(entry.get("process_group"))
            except MALFORMED:
                continue
            found.append(one)
        return self.closed(found)

    def call(self, entry: Mapping[str, Any], thread: int | None) -> RecordedCall:
        """A call without its group. Raises one of MALFORMED."""
        key = self._key(entry, thread)
        one = self.shared.calls.get(key)
        if one is None:
            one = self._make(entry, key)
            key = tuple([self.shared.one(part) if type(part) in (str, bytes) else part for part in key])
            self.shared.calls[key] = one
        return one

    def in_group(self, call: RecordedCall, group: str) -> RecordedCall:
        """A call from `call` in the group of this name: ranks that share no group still make the same calls."""
        calls = self.shared.in_group.setdefault(group, {})
        one = calls.get(id(call))
        if one is None:
            one = calls[id(call)] = replace(call, group=self.shared.one(text(group)))
        return one

    def closed(self, calls: Sequence[RecordedCall]) -> list[RecordedCall]:
        """The calls; the parts of a coalesced call retire with it."""
        found: list[RecordedCall] = []
        for one in calls:
            if one.op.endswith("coalesced"):
                self._close(found, one)
            found.append(one)
        return found

    def _key(self, entry: Mapping[str, Any], thread: int | None) -> tuple[Any, ...]:
        """Hashable key of all fields of a call without its group: a flat tuple of plain values."""
        get = entry.get
        name = entry["profiling_name"]
        p2p = get("is_p2p")
        if p2p is None:
            p2p = ":send" in name or ":recv" in name
        sequence = get("p2p_seq_id") if p2p else get("collective_seq_id")
        if sequence is None:
            sequence = entry["seq_id"]
        state, timeout = get("state"), get("timeout_ms")
        if type(name) is not str or not (state is None or type(state) is str):
            raise TypeError
        return (
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
            thread,
        )

    def _thread(self, id: Any) -> int | None:
        """The number of a thread. Raises TypeError for other than plain ids: nested tuples take too long to hash."""
        if type(id) not in (int, str, NoneType):
            raise TypeError
        return self._threads.setdefault(id, len(self._threads) - 1)

    def _make(self, entry: Mapping[str, Any], key: tuple[Any, ...]) -> RecordedCall:
        sequence, name, p2p, state, retired, timeout, _, _, dtypes, output_dtypes, _, thread = key
        op, _, ends = text(name).partition(":")[2].partition(" ") if ":" in name else text(name).partition(" ")
        ranks = re.fullmatch(r"(\d{1,9})(->|<-)(\d{1,9})", ends.strip())
        sender, receiver = (int(ranks[1]), int(ranks[3])) if ranks else (None, None)
        if ranks and ranks[2] == "<-":
            sender, receiver = receiver, sender
        shared = self.shared.one
        return RecordedCall(
            group="",
            sequence=sequence,
            op=shared(op),
            sizes=shared(_sizes_text(entry.get("input_sizes"))),
            dtypes=shared(_types(dtypes)),
            retired=retired or state == "completed",
            p2p=p2p,
            state=shared(text(state)),
            outputs=shared(_sizes_text(entry.get("output_sizes"))),
            output_dtypes=shared(_types(output_dtypes)),
            frames=self._stack(entry.get("frames")),
            sender=sender,
            receiver=receiver,
            timeout_s=timeout / 1000 if timeout is not None else None,
            thread=thread,
        )

    def _stack(self, raw: Any) -> tuple[Frame, ...]:
        if not raw:
            return ()
        raw = raw[:MAX_FRAMES]
        at = tuple(map(id, raw))
        found = self._stacks.get(at)
        if found is None:
            made = tuple([self._frame(frame) for frame in raw])
            found = self._stacks[at] = self.shared.stacks.setdefault(made, made)
        return found

    def _frame(self, raw: Mapping[str, Any]) -> Frame:
        name, file, line = raw["name"], raw["filename"], raw["line"]
        if type(name) is not str or type(file) is not str:
            raise TypeError
        key = name, file, int(line)
        if key not in self.shared.frames:
            path = text(file)
            self.shared.frames[key] = Frame(text(name), path, key[2], path.rpartition("/")[2])
        return self.shared.frames[key]

    def _close(self, found: list[RecordedCall], end: RecordedCall) -> None:
        """Retire the parts of a coalesced call with the call: torch keeps no state for the parts."""
        i = len(found)
        while i and _same_call(found[i - 1], end):
            i -= 1
            if end.retired and not found[i].retired:
                part = found[i]
                found[i] = self.shared.closed.setdefault(id(part), replace(part, retired=True))


def _same_call(a: RecordedCall, b: RecordedCall) -> bool:
    return (a.group, a.sequence, a.p2p) == (b.group, b.sequence, b.p2p)


def _types(joined: str) -> tuple[str, ...]:
    return tuple(text(joined).split(",")) if joined else ()


def _sizes(raw: Any) -> Any:
    """Sizes as hashable bytes. Raises TypeError unless they are lists of integers."""
    if not raw:
        return _NO_SIZES
    if len(raw) == 1 and len(raw[0]) <= MAX_DIMS:
        return array("q", raw[0]).tobytes()
    return tuple([array("q", dims[:MAX_DIMS]).tobytes() for dims in raw[:MAX_TENSORS]])


def _sizes_text(raw: Any) -> str:
    """Sizes as text; `_sizes` has validated them."""
    return str([array("q", dims[:MAX_DIMS]).tolist() for dims in raw[:MAX_TENSORS]]) if raw else ""


def group_name(group: Any, number: Any) -> str:
    """The name of a group as the trace has it; without one, its number. Raises TypeError if the name is no text."""
    name = group[0] if group else str(_int(number))
    if type(name) is not str:
        raise TypeError
    return name


def label(group: Any) -> str:
    label = text(group[1]) if isinstance(group, (list, tuple)) and len(group) > 1 else ""
    return "" if label == "undefined" else label


def _start_times(raw: Sequence[Any]) -> tuple[float, ...]:
    times = [entry.get("time_created_ns") for entry in raw[-TIMED_ENTRIES:] if isinstance(entry, dict)]
    return tuple([time / 1e9 for time in times if type(time) is int and 0 < time < 2**63])


# --- groups ---------------------------------------------------------------------------------------


def _counts(status: Mapping[Any, Any], name: str) -> dict[str, int]:
    """One counter per group; gloo and JSON write some of them as text."""
    found = {}
    for group, counters in list(status.items())[:10_000]:
        number = _int(counters.get(name)) if isinstance(counters, dict) else None
        if isinstance(group, str) and number is not None:
            found[text(group)] = number
    return found


def _groups(config: Any, shared: SharedParts) -> tuple[ProcessGroup, ...]:
    """The process groups with known members; gloo lists only the last one, without a name."""
    found: list[ProcessGroup] = []
    for key, group in list(config.items())[:10_000] if isinstance(config, dict) else ():
        if not isinstance(group, dict):
            continue
        name, ranks = text(group.get("name")) or text(key), group.get("ranks")
        ranks = ranks if isinstance(ranks, str) else _ranks_text(ranks)
        if ranks not in shared.members:
            shared.members[ranks] = tuple(map(int, re.findall(r"\d{1,9}", ranks)))
        members = shared.members[ranks]
        if members:
            default = name == DEFAULT[0] or group.get("desc") == DEFAULT[1]
            made = ProcessGroup(len(found) + 1, name, members, default)
            found.append(shared.groups.setdefault(made, made))
    return tuple(found)


def _ranks_text(ranks: Any) -> str:
    """A list of ranks in torch's text form."""
    ranks = ranks[:1_000_000] if isinstance(ranks, (list, tuple)) else ()
    return str([rank for rank in ranks if type(rank) is int])


def _int(value: Any) -> int | None:
    if type(value) is int:
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value) else None
