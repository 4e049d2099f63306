"""Flight Recorder dumps: what torch itself noted down of each rank's collectives, as a pickle or as JSON.

A dump gives `recorder` (all of it), `groups` (who belongs to which, where it says so) and `stacks`: the call that it
shows as begun and not ended is where the rank's main thread stands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hangdoc.evidence import FlightRecorder, Frame, ProcessGroups, RecordedCall, Stack, Stacks, Variable
from hangdoc.evidence.collectives import pending_call
from hangdoc.evidence.memory import gc_paused
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import EvidenceItem, ReadContext, Source
from hangdoc.postmortem.readers._fr_dedup import ENTRIES
from hangdoc.postmortem.readers._fr_trace import TIMED, Kept, about, flight_recorder, text
from hangdoc.postmortem.readers._safe_pickle import Refused, head, load
from hangdoc.system import input_limits

MOST_CUTS = 400  # ends of something in a torn pickle at which we try whether an entry ends there
MOST_AGAIN = 256 << 20  # bytes that are loaded for it, of a pickle of which even one try is not too much
_PICKLE = re.compile(rb"\x80[\x00-\x05]|\(dp|c[\w.]+\n\w+\n")
_NAMED = re.compile(r"(comm_lib|nccl|gloo|xccl|hccl|fr)[_-]?trace|flight[_-]?recorder", re.IGNORECASE)
_KEYS = (b'"profiling_name"', b'"pg_config"', b'"pg_status"')
_HOST = re.compile(
    r"^(?:(?:comm_lib|nccl|gloo|fr)?[_-]?trace[_.-]|(?:fr|dump)[_.-])?(?P<host>[A-Za-z][\w.-]*?)[_.-]?rank[_.-]?\d+"
)
_FOLDER = re.compile(r"rank[_.\-]?(\d{1,6})$", re.IGNORECASE)
_ENTRIES = re.compile(r'"entries"\s*:\s*\[\s*')
_C10D = "torch/distributed/distributed_c10d.py"


class FlightRecorderReader:
    name = "Flight Recorder dump"
    order = 10
    help = "TORCH_FR_BUFFER_SIZE=2000 in the job's environment: torch writes one a rank when a collective times out"

    def recognises(self, source: Source) -> bool:
        head = source.head
        if not head:
            return source.size == 0 and _NAMED.search(source.path.name) is not None
        if _PICKLE.match(head):
            return True
        return head.lstrip()[:1] == b"{" and any(key in head for key in _KEYS)

    def read(self, source: Source, context: ReadContext) -> Iterable[EvidenceItem]:
        most = input_limits.most_whole(source.size)
        with source.open() as file:
            data = file.read(most + 1)
        context.progress(source.size)
        if len(data) > most:
            context.warn(f"{source.name}: it unpacks to more than {most >> 20} MiB, too much for its size; not read")
            return
        with gc_paused():
            record = self._record(source, data, context)
        del data
        if record is not None:
            yield from _pieces(source, record, context)

    def _record(self, source: Source, data: bytes, context: ReadContext) -> FlightRecorder | None:
        kept = context.shared.setdefault(__name__, Kept())
        known = _alike(data, kept)
        if known is not None:
            return known
        trace, lack = _trace(data, source.size)
        if lack:
            context.warn(f"{source.name}: {lack}")
        if trace is None:
            return None
        record, bad = flight_recorder(trace, kept)
        if bad:
            context.warn(f"{source.name}: {bad} of its entries are not readable and were left out")
        if not re.match(r"2\.", record.version):
            context.warn(f"{source.name}: version {record.version} of the dump is not known; it was read as 2.10")
        if not lack and not bad:
            _remember(data, record, kept)
        return record


# --- from bytes to a trace ------------------------------------------------------------------------


def _trace(data: bytes, packed: int) -> tuple[Mapping[str, Any] | None, str]:
    """The trace, and what is wrong with it."""
    if not data:
        return None, "the dump is empty: its rank did not come to write it"
    trace, lack = _from_json(data, packed) if data.lstrip()[:1] == b"{" else _from_pickle(data, packed)
    if trace is None:
        return None, lack
    if not isinstance(trace, dict) or not isinstance(trace.get("entries"), list):
        return None, "it is no Flight Recorder dump: it has no list of entries"
    return trace, lack


def _from_pickle(data: bytes, packed: int) -> tuple[Any, str]:
    try:
        return load(data, packed), ""
    except Refused as refused:
        if "ends in the middle" not in str(refused):
            return None, f"not read: {refused}"
    for cut in _ends(data):  # torch writes the entries last: close the list, and what it is in, after a whole one
        try:
            trace = load(data[:cut] + b"eu.", packed)
        except Refused:
            continue
        if isinstance(trace, dict) and trace.get("entries"):
            return trace, f"it is cut off; the {len(trace['entries'])} entries before that are used"
    return None, "it is cut off before its first entry"


def _ends(data: bytes) -> Iterator[int]:
    """Where a dictionary may end, the last first."""
    at = len(data)
    for _ in range(max(1, min(MOST_CUTS, MOST_AGAIN // max(at, 1)))):
        at = data.rfind(b"u", 0, at)
        if at < 0:
            return
        yield at + 1


def _from_json(data: bytes, packed: int) -> tuple[Any, str]:
    try:
        return input_limits.parsed_json(data, packed), ""
    except input_limits.InputTooLarge as error:
        return None, f"not read: {error}"
    except ValueError:
        pass
    told = data.decode("utf-8", "replace")
    found = _ENTRIES.search(told)
    if found is None:
        return None, "not read: it is no sound JSON"
    entries, at, decoder = [], found.end(), json.JSONDecoder()
    try:
        with input_limits.limited_memory(input_limits.most_memory(packed, len(data))):
            while True:
                entry, at = decoder.raw_decode(told, at)
                entries.append(entry)
                at = re.compile(r"\s*,\s*").match(told, at).end()  # type: ignore[union-attr]
    except (ValueError, AttributeError, RecursionError, MemoryError):
        pass
    return {"entries": entries, "version": "2.x"}, f"it is cut off; the {len(entries)} entries before that are used"


# --- dumps like another one ----------------------------------------------------------------------


def _alike(data: bytes, kept: Kept) -> FlightRecorder | None:
    """The record of a dump that holds what another one does; None where it must be loaded."""
    before, body = _split(data)
    found = kept.alike.find(before[1], body) if before is not None else None
    if before is None or found is None:
        return None
    model, names = found
    called = {old: text(new) for old, new in names.items()}
    entries = tuple([_called(entry, called, kept) for entry in model.entries]) if called else model.entries
    begun = [int.from_bytes(body[at : at + 8], "little") / 1e9 for at in model.created]
    labels = {called.get(group, group): label for group, label in model.labels.items()}
    made = about(before[0], kept)
    return replace(made, entries=entries, labels=labels, begun=tuple(begun), missed=model.missed)


def _called(entry: RecordedCall, names: Mapping[str, str], kept: Kept) -> RecordedCall:
    """The same call in a group of another name."""
    name = names.get(entry.group)
    if name is None:
        return entry
    key = ("called", id(entry), name)
    if key not in kept.entries:
        kept.entries[key] = replace(entry, group=name)
    return kept.entries[key]


def _remember(data: bytes, record: FlightRecorder, kept: Kept) -> None:
    """Keep a dump that was loaded, so that others like it need not be."""
    before, body = _split(data)
    if before is not None:
        kept.alike.add(before[1], body, record, TIMED)


def _split(data: bytes) -> tuple[tuple[Mapping[str, Any], Mapping[int, Any]] | None, bytes]:
    """What stands before the entries, with its memo, and the bytes from there on."""
    at = data.find(ENTRIES)
    if at < 0:
        return None, b""
    found = head(data[:at] + b"u.")
    return (found, data[at:]) if found is not None and isinstance(found[0], dict) else (None, b"")


# --- from a record to pieces ----------------------------------------------------------------------


def _pieces(source: Source, record: FlightRecorder, context: ReadContext) -> Iterator[Piece]:
    rank = _rank(source, record)
    if rank is None:
        context.warn(f"{source.name}: neither its name nor what it holds says which rank it is of; not used")
        return
    process = ProcessRef(rank=rank, host=_host(source))
    size = next((len(group.ranks) for group in record.groups if group.default), None)
    at = record.begun[-1] if record.begun else None
    yield Piece(process, "recorder", replace(record, written=source.path.stat().st_mtime), at, size)
    named = tuple(group for group in record.groups if group.name)
    if named:
        yield Piece(process, "groups", ProcessGroups(named, rank, size), at, size)
    pending = pending_call(record)
    if pending is not None:
        yield Piece(process, "stacks", Stacks((_stack(pending, record),)), at, size)


def _rank(source: Source, record: FlightRecorder) -> int | None:
    """From the name of the file or its folder; else from a send or receive, which name the ranks in the group."""
    folder = _FOLDER.search(source.path.parent.name)
    if source.rank_in_name is not None or folder:
        return source.rank_in_name if source.rank_in_name is not None else int(folder[1]) if folder else None
    members = {group.name: group.ranks for group in record.groups}
    for entry in record.entries:
        mine = entry.sender if entry.op == "send" else entry.receiver if entry.op == "recv" else None
        if mine is not None and mine < len(members.get(entry.group, ())):
            return members[entry.group][mine]
    return None


def _host(source: Source) -> str | None:
    found = _HOST.match(source.path.name)
    host = found["host"] if found else ""
    return text(host) if re.search(r"[\d.-]", host) else None


def _stack(entry: RecordedCall, record: FlightRecorder) -> Stack:
    """Where it was called, with its group and peer as the arguments of torch's own function.

    Not with its tensor: ranks at one line may be at different calls, and only the numbers of these tell.

    A call from C++, as DDP's, has no frame of torch.distributed: it is given one, so that it is seen what it waits in.
    """
    frames = list(entry.frames)
    inner = next((i for i, frame in enumerate(frames) if frame.file.endswith(_C10D)), None)
    if inner is None:
        frames.insert(0, Frame(entry.op.lstrip("_"), f"/{_C10D}", None, "distributed_c10d.py"))
        inner = 0
    frames[inner] = replace(frames[inner], variables=tuple(_arguments(entry, record)))
    return Stack(0, "MainThread", tuple(frames))


def _arguments(entry: RecordedCall, record: FlightRecorder) -> Iterator[Variable]:
    group = next((group for group in record.groups if group.name == entry.group), None)
    if group is not None and not group.default:
        yield Variable("group", "ProcessGroup", kind="object", address=group.address)
    peer = entry.receiver if entry.op == "send" else entry.sender
    if entry.p2p and peer is not None:
        yield Variable(f"group_{'dst' if entry.op == 'send' else 'src'}", str(peer), kind="int", number=float(peer))


READER = FlightRecorderReader()
