"""Tables of the last calls of several ranks, as people copy them from Flight Recorder dumps: a row for each rank.

The head names the rank, the sequence number and the call, in Markdown or in columns: `rank | seq | op | numel | state`.
The rows become entries of a dump (torch/csrc/distributed/c10d/FlightRecorder.hpp).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hangdoc.evidence import Stacks
from hangdoc.evidence.collectives import pending_call
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._fr_trace import SharedParts, flight_recorder
from hangdoc.postmortem.readers._pasted_text import text_lines
from hangdoc.postmortem.readers.flight_recorder import stack_of_call

MAX_LINE = 400  # characters
MAX_CELLS = 16
MAX_RANKS = 4096
LEAST_RANKS = 2
_COLUMNS = {
    "rank": re.compile(r"(?:global )?ranks?"),
    "seq": re.compile(r"(?:last |collective ){0,2}seq(?:uence)?(?: ?(?:id|no|num(?:ber)?|nr))?"),
    "call": re.compile(r"(?:last )?(?:op(?:eration)?(?: ?type)?|optype|collective|call|profiling name|name)"),
    "group": re.compile(r"(?:pg|process group|group)(?: ?(?:name|id|desc))?"),
    "input": re.compile(r"num|elements|(?:in(?:put)? ?)?(?:num(?:el)?s?|sizes?|shapes?|elems?)|numel ?in"),
    "output": re.compile(r"out(?:put)? ?(?:num(?:el)?s?|sizes?|shapes?|elems?)|numel ?out"),
    "state": re.compile(r"state|status"),
    "frame": re.compile(r"(?:user |top |python |call )?(?:frames?|sites?|lines?|stacks?|where|caller)"),
}  # fmt: skip
_NEEDED = frozenset({"rank", "seq", "call"})
_RULER = re.compile(r"[\s|:+=-]*")
_RANK = re.compile(r"(?:rank ?)?(\d{1,6})", re.IGNORECASE)
_CALL = re.compile(r"(?:(?:nccl|gloo|mpi|ucc|xccl):)?(_?[A-Za-z]\w{2,60})")
_NUMBER = re.compile(r"\d{1,3}(?:,\d{3}){1,5}|\d{1,18}")
_STATES = frozenset({"scheduled", "started", "completed"})
_FRAME = re.compile(r"(?:(?P<name>[A-Za-z_]\w{0,80})[ (@]{1,3})?(?P<file>[\w./-]{1,200}\.py):(?P<line>\d{1,7})\b")


class RecorderTableReader:
    name = "table of calls of the Flight Recorder"
    order = 12
    marks = ("seq", "Seq", "SEQ")
    help = "the whole dump of each rank says more"

    def recognises(self, source: Source) -> bool:
        return any(_head(line) for line in source.head_text.splitlines())

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        for table in _tables(text_lines(source, context)):
            yield from _pieces(table, source, context)


def _pieces(table: Mapping[int, Mapping[str, Any]], source: Source, context: ReadContext) -> Iterator[Piece]:
    shared = SharedParts()
    for rank, entry in table.items():
        record, bad = flight_recorder({"entries": [entry], "version": "2.x"}, shared)
        if bad:
            context.warn(f"{source.name}: an unreadable row of rank {rank} was ignored")
        if record.entries:
            yield Piece(ProcessRef(rank), "recorder", record)
        if pending := pending_call(record):
            yield Piece(ProcessRef(rank), "stacks", Stacks((stack_of_call(pending, record),)))


def _tables(lines: Iterable[str]) -> Iterator[Mapping[int, Mapping[str, Any]]]:
    """The entry of each rank, of each table with several ranks that have one row each."""
    columns: Sequence[str] = ()
    rows: dict[int, Mapping[str, Any]] = {}
    for text in (*lines, ""):
        row = _row(columns, text) if columns else None
        if row is not None and row[0] not in rows and len(rows) < MAX_RANKS:
            rows[row[0]] = row[1]
            continue
        if columns and not rows and (_RULER.fullmatch(text) or not text.strip()):
            continue  # below the head
        if len(rows) >= LEAST_RANKS and row is None:
            yield rows
        rows, columns = {}, _head(text)


def _cells(text: str) -> list[str]:
    text = text.strip()
    if text.count("|") > 1:
        return [cell.strip(" `*") for cell in text.strip("|").split("|")][:MAX_CELLS]
    return re.split(r"\t+| {2,}", text)[:MAX_CELLS]


def _head(text: str) -> Sequence[str]:
    """The fields in the columns of a table, "" for others. Empty: the line is no head of such a table."""
    if len(text) > MAX_LINE or not all(word in text.lower() for word in ("seq", "rank")):  # most lines have not both
        return ()
    names = [re.sub(r"[_\s]+", " ", cell.lower()).strip() for cell in _cells(text)]
    fields = [next((field for field, form in _COLUMNS.items() if form.fullmatch(name)), "") for name in names]
    known = [field for field in fields if field]
    return fields if set(known) >= _NEEDED and len(known) == len(set(known)) else ()


def _row(columns: Sequence[str], text: str) -> tuple[int, Mapping[str, Any]] | None:
    """The rank and the entry in a row. None: it is none."""
    cells = _cells(text) if len(text) <= MAX_LINE else []
    if len(cells) != len(columns):
        return None
    row = dict(zip(columns, cells, strict=True))
    rank, call, number = _RANK.fullmatch(row["rank"]), _CALL.fullmatch(row["call"]), _NUMBER.fullmatch(row["seq"])
    if not rank or not call or not number:
        return None
    entry: dict[str, Any] = {
        "profiling_name": f"nccl:{call[1].lower()}",
        "collective_seq_id": _number(number[0]),
        "process_group": [row.get("group") or "unknown"],
        "state": row["state"].lower() if row.get("state", "").lower() in _STATES else None,
    }
    for side in ("input", "output"):
        if sizes := [_number(one) for one in _NUMBER.findall(row.get(side, ""))]:
            entry[f"{side}_sizes"] = [sizes]
    if frame := _FRAME.match(row.get("frame", "")):
        name = frame["name"] or "unknown"
        entry["frames"] = [{"name": name, "filename": frame["file"], "line": int(frame["line"])}]
    return int(rank[1]), entry


def _number(text: str) -> int:
    return int(text.replace(",", ""))


READER = RecorderTableReader()
