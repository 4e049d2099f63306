"""Flight Recorder dumps: torch's own record of each rank's collectives, as a pickle or JSON.

A dump yields the records `recorder` (the entries), `groups` (members of process groups, if listed) and `stacks`: the
pending call is taken as the stack of the rank's main thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from hangdoc.evidence import FlightRecorder, Frame, ProcessGroups, RecordedCall, Stack, Stacks, Variable
from hangdoc.evidence.collectives import pending_call
from hangdoc.evidence.memory import gc_paused
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import EvidenceItem, ReadContext, Source
from hangdoc.postmortem.readers._fr_pool import PROTOCOL, DumpPool
from hangdoc.postmortem.readers._fr_trace import SharedParts, flight_recorder, text
from hangdoc.postmortem.readers._fr_worker import MAX_ENTRIES
from hangdoc.postmortem.readers._safe_pickle import PickleRefused, load_plain
from hangdoc.system import input_limits

MAX_CUTS = 400  # cut positions tried in a truncated pickle
MAX_RELOADED = 256 << 20  # bytes loaded in these tries together; at least one try
_PICKLE = re.compile(rb"\x80[\x00-\x05]|\(dp|c[\w.]+\n\w+\n")
_FILE_NAME = re.compile(r"(comm_lib|nccl|gloo|xccl|hccl|fr)[_-]?trace|flight[_-]?recorder", re.IGNORECASE)
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
    exclusive = True
    help = "TORCH_FR_BUFFER_SIZE=2000 in the job's environment: each rank writes a dump when a collective times out"

    def recognises(self, source: Source) -> bool:
        load_head = source.head
        if not load_head:
            return source.size == 0 and _FILE_NAME.search(source.path.name) is not None
        if _PICKLE.match(load_head):
            return True
        return load_head.lstrip()[:1] == b"{" and any(key in load_head for key in _KEYS)

    def read(self, source: Source, context: ReadContext) -> Iterable[EvidenceItem]:
        pool = context.shared.get(__name__)
        if pool is None:
            pool = context.shared[__name__] = DumpPool(SharedParts())
        record = None
        if source.head[:1] == PROTOCOL:
            pool.look_ahead(source, context.following)
            digested = pool.digested(source)
            if digested is not None:
                record = digested.record
                _warn_of_limits(source, record, digested.left_out, context)
                context.progress(source.size)
        if record is None:
            record = _read_carefully(source, context, pool.shared)
        if record is not None:
            yield from _pieces(source, record, context)


def _read_carefully(source: Source, context: ReadContext, shared: SharedParts) -> FlightRecorder | None:
    """The record of a dump of any form, as far as it is intact."""
    most = input_limits.most_whole(source.size)
    with source.open() as file:
        data = file.read(most + 1)
    context.progress(source.size)
    if len(data) > most:
        context.warn(f"{source.name}: not read: it decompresses to more than {most >> 20} MiB, too much for its size")
        return None
    with gc_paused():
        trace, defect = _trace(data, source.size)
        del data
        if defect:
            context.warn(f"{source.name}: {defect}")
        if trace is None:
            return None
        record, bad = flight_recorder(trace, shared)
    if bad:
        context.warn(f"{source.name}: {bad} unreadable entries were ignored")
    _warn_of_limits(source, record, len(trace["entries"]) - MAX_ENTRIES, context)
    return record


def _warn_of_limits(source: Source, record: FlightRecorder, left_out: int, context: ReadContext) -> None:
    if left_out > 0:
        context.warn(f"{source.name}: only the newest {MAX_ENTRIES:,} entries were read, {left_out:,} were left out")
    if not re.match(r"2\.", record.version):
        context.warn(f"{source.name}: unknown dump version {record.version}; read as 2.10")


# --- from bytes to a trace ------------------------------------------------------------------------


def _trace(data: bytes, packed: int) -> tuple[Mapping[str, Any] | None, str]:
    """The trace, and a message about any defect."""
    if not data:
        return None, "the dump is empty: its rank did not write it"
    trace, defect = _from_json(data, packed) if data.lstrip()[:1] == b"{" else _from_pickle(data, packed)
    if trace is None:
        return None, defect
    if not isinstance(trace, dict) or not isinstance(trace.get("entries"), list):
        return None, "not a Flight Recorder dump: it has no list of entries"
    return trace, defect


def _from_pickle(data: bytes, packed: int) -> tuple[Any, str]:
    try:
        return load_plain(data, packed), ""
    except PickleRefused as refused:
        if "is truncated" not in str(refused):
            return None, f"not read: {refused}"
    for cut in _dict_ends(data):  # entries come last: close list and dict after a complete entry
        try:
            trace = load_plain(data[:cut] + b"eu.", packed)
        except PickleRefused:
            continue
        if isinstance(trace, dict) and trace.get("entries"):
            return trace, f"it is truncated; the {len(trace['entries'])} entries before that are used"
    return None, "it is truncated before its first entry"


def _dict_ends(data: bytes) -> Iterator[int]:
    """Offsets at which a dictionary may end, last first."""
    at = len(data)
    for _ in range(max(1, min(MAX_CUTS, MAX_RELOADED // max(at, 1)))):
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
    decoded = data.decode("utf-8", "replace")
    found = _ENTRIES.search(decoded)
    if found is None:
        return None, "not read: invalid JSON"
    entries, at, decoder = [], found.end(), json.JSONDecoder()
    try:
        with input_limits.limited_memory(input_limits.most_memory(packed, len(data))):
            while True:
                entry, at = decoder.raw_decode(decoded, at)
                entries.append(entry)
                at = re.compile(r"\s*,\s*").match(decoded, at).end()  # type: ignore[union-attr]
    except (ValueError, AttributeError, RecursionError, MemoryError):
        pass
    return {"entries": entries, "version": "2.x"}, f"it is truncated; the {len(entries)} entries before that are used"


# --- from a record to pieces ----------------------------------------------------------------------


def _pieces(source: Source, record: FlightRecorder, context: ReadContext) -> Iterator[Piece]:
    rank = _rank(source, record)
    if rank is None:
        context.warn(f"{source.name}: no rank in its name or content; ignored")
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
        yield Piece(process, "stacks", Stacks((stack_of_call(pending, record),)), at, size)


def _rank(source: Source, record: FlightRecorder) -> int | None:
    """The rank in the name of the file or its folder, else from a send or receive, which names both ranks."""
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


def stack_of_call(entry: RecordedCall, record: FlightRecorder) -> Stack:
    """The stack of a call, with group and peer as arguments of torch's function.

    The tensor is left out: ranks on one line may be in different calls, which only sequence numbers distinguish.
    A call from C++ (DDP) has no frame in torch.distributed; one is added to show the operation.
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
