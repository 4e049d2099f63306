"""Entries of Flight Recorder dumps that somebody copied into a text: JSON, or Python's form of a dictionary.

Also rows of some of their fields (`jq -c '[.collective_seq_id, .profiling_name, .state]'`), perhaps under other names
(`jq -c '{seq: .collective_seq_id, op: .profiling_name}'`), which show by their form what they are, and lines of them
(`collective_seq_id=52988  nccl:all_gather  in=[[1]]  state=started`), as a script of a person prints them.

Fields: torch/csrc/distributed/c10d/FlightRecorder.hpp. The rank of an entry is in itself, on its line, or in the
heading above it. `flight_recorder` reads whole dumps.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from hangdoc.evidence import Stacks
from hangdoc.evidence.collectives import pending_call
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._fr_trace import SharedParts, flight_recorder
from hangdoc.postmortem.readers._owner_hints import OwnerHints
from hangdoc.postmortem.readers._pasted_text import text_lines
from hangdoc.postmortem.readers.flight_recorder import stack_of_call

MAX_DOCUMENT = 64 * 2**10  # characters
MAX_DOCUMENT_LINES = 2_000
MAX_LINE = 400  # characters
MAX_DOCUMENTS = 2_000
MAX_ENTRIES = 4_096  # of one rank
MAX_DEPTH = 40  # brackets in brackets
_OPENING = re.compile(r"(?P<owner>[^{}\[\]\"]{0,80}?(?:\[(?:rank)?\d{1,6}\]:? {0,4})?)(?P<document>(?:\[\s{0,4})?\{.*)")
_KEY = re.compile(r"[\"']profiling_name[\"']\s{0,4}:")
# One line: brackets around values, one of them the name of a call.
_ROW = re.compile(
    r"^(?P<owner>[^{}\[\]\"\n]{0,80}?(?:\[(?:rank)?\d{1,6}\]:? {0,4})?)"
    r"(?P<document>\[[^{}\n]{0,400}\"(?:nccl|gloo|mpi|ucc|xccl):\w{1,60}\"[^{}\n]{0,400}\]) {0,8}$",
    re.MULTILINE,
)
_QUOTED_CALL = re.compile(r"[\"'](?:nccl|gloo|mpi|ucc|xccl):\w{1,60}")
_CALL = re.compile(r"(?:nccl|gloo|mpi|ucc|xccl):\w{1,60}(?: \S{1,40})?")  # "nccl:send 0->1"
# A line without brackets around it; several calls in one are a sentence, or a chain.
_BARE_CALL = re.compile(r"(?<![\"'\w])(?:nccl|gloo|mpi|ucc|xccl):[a-z_]\w{1,60}(?![\"'\w])")
_BARE_NUMBER = re.compile(
    r"(?<![A-Za-z])(?:collective[_ ])?seq(?:[_ ]?(?:id|num|no))?[ =:#]{1,3}(\d{1,15})(?!\w)", re.IGNORECASE
)
_BARE_SIZES = re.compile(r"\b(?:in(?:put)?(?:_sizes|_shapes)?|sizes?|shapes?)[ =:]{1,2}\[\[([\d, ]{0,60})\]\]")
_BARE_STATE = re.compile(r"\b(?:scheduled|started|completed)\b")
_LEFT_OUT = re.compile(r"^[ \t]{0,80}(?:\[?\.\.\.\]?|…),?[ \t]{0,80}$", re.MULTILINE)  # by the person who copied it
_DANGLING = re.compile(r",(?=\s{0,200}[\]}])")
_TRANSFER = re.compile(r":(?:send|recv)")  # several have the number of the last collective
_STATES = frozenset({"scheduled", "started", "completed"})
_RANK = re.compile(r"(?<![A-Za-z])(?:global[ _]?)?rank[\s:=#_\[]{0,3}(\d{1,6})|^\s{0,4}\[(\d{1,6})\]", re.IGNORECASE)
# A heading: the name of a dump, such as `== /tmp/nccl_trace_rank_3`.
_FILE_NAME = re.compile(r"\W{0,12}[\w./-]{0,100}_trace_rank_?(\d{1,6})(?:\.\w{1,8})?\W{0,12}")
_FRAME = re.compile(r"(?P<name>[^\s:]{1,200})(?: |, | \(| @ )(?P<filename>\S{1,400}?):(?P<line>\d{1,9})\)?")
_TEXT = re.compile(r"\"(?:[^\"\\]|\\.){0,4000}\"|'(?:[^'\\]|\\.){0,4000}'")


class RecorderEntriesReader:
    name = "entries of the Flight Recorder"
    order = 12
    marks = ("profiling_name", '"nccl:', '"gloo:', " nccl:", " gloo:")
    help = "the whole dump of each rank says more"

    def recognises(self, source: Source) -> bool:
        head = source.head_text
        if _BARE_CALL.search(head) and any(map(_bare_entry, head.splitlines())):
            return True
        return bool(_KEY.search(head) or _QUOTED_CALL.search(head)) and not head.lstrip().startswith("{")

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        entries: dict[int, list[Mapping[str, Any]]] = {}
        for rank, document in _documents(text_lines(source, context)):
            for entry in _entries(document):
                number = entry.get("rank", rank)
                if isinstance(number, int) and len(own := entries.setdefault(number, [])) < MAX_ENTRIES:
                    if own and _is_same(own[-1], entry):
                        own[-1] = {**own[-1], **entry}
                    else:
                        own.append(entry)
        shared = SharedParts()
        for rank, own in entries.items() if len(entries) > 1 else ():
            record, bad = flight_recorder({"entries": own, "version": "2.x"}, shared)
            if bad:
                context.warn(f"{source.name}: {bad} unreadable entries were ignored")
            if record.entries:
                yield Piece(ProcessRef(rank), "recorder", record)
            if pending := pending_call(record):
                yield Piece(ProcessRef(rank), "stacks", Stacks((stack_of_call(pending, record),)))


def _documents(lines: Iterable[str]) -> Iterator[tuple[int | None, Any]]:
    """The dictionaries and lists in a text, each with its rank."""
    hints, count, size = OwnerHints(), 0, 0
    open_lines: list[str] = []
    rank: int | None = None
    for text in lines:
        if not open_lines and (bare := _bare_entry(text)) is not None:
            own = _RANK.search(text)
            yield (int(own[1] or own[2]) if own else rank), bare
            continue
        if not open_lines:
            found = _ROW.match(text) or _OPENING.match(text)
            if not found:
                if named := _FILE_NAME.fullmatch(text):
                    rank = int(named[1])
                    continue
                hints.observe(text)
                rank = hints.rank if hints.updated else None if text.strip() and "ank" in text else rank
                continue
            if own := _RANK.search(found["owner"]):
                rank = int(own[1] or own[2])
            text = found["document"]
        open_lines.append(text)
        size = size + len(text) if len(open_lines) > 1 else len(text)
        if len(open_lines) > MAX_DOCUMENT_LINES or size > MAX_DOCUMENT or count > MAX_DOCUMENTS:
            open_lines = []
            continue
        joined = "\n".join(open_lines) if _depth(text) <= 0 or len(open_lines) == 1 else ""
        if joined and _depth(joined) <= 0:
            open_lines, count = [], count + 1
            if (_KEY.search(joined) or _QUOTED_CALL.search(joined)) and (document := _parsed(joined)) is not None:
                yield rank, document


def _bare_entry(text: str) -> Mapping[str, Any] | None:
    """The entry in a line of fields. None: it has not one call with its number and its state."""
    calls = _BARE_CALL.findall(text) if len(text) <= MAX_LINE else []
    number, state = _BARE_NUMBER.search(text), _BARE_STATE.findall(text)
    if len(calls) != 1 or not number or len(state) != 1:
        return None
    sizes = _BARE_SIZES.search(text)
    entry = {"profiling_name": calls[0], "collective_seq_id": int(number[1]), "state": state[0]}
    return {**entry, "input_sizes": [[int(size) for size in re.findall(r"\d+", sizes[1])]]} if sizes else entry


def _depth(text: str) -> int:
    bare = _TEXT.sub("", text)
    return bare.count("{") + bare.count("[") - bare.count("}") - bare.count("]")


def _parsed(text: str) -> Any:
    """The value of a document; None: it is damaged, or too deep."""
    text = text[: max(text.rfind("}"), text.rfind("]")) + 1]
    if len(text) > MAX_DOCUMENT or not text or _nesting(text) > MAX_DEPTH:
        return None
    for form in (text, _DANGLING.sub("", _LEFT_OUT.sub("", text))):
        with suppress(ValueError):
            return json.loads(form)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a text may have invalid escapes
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None


def _nesting(text: str) -> int:
    depth = most = 0
    for one in re.findall(r"[\[\]{}()]", text):
        depth += 1 if one in "[{(" else -1
        most = max(most, depth)
    return most


def _entries(document: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(document, dict) and isinstance(document.get("entries"), list):
        document = document["entries"]
    if isinstance(document, list) and (row := _row(document)):
        yield row
    for one in document[:MAX_ENTRIES] if isinstance(document, list) else (document,):
        if isinstance(one, dict) and isinstance(one.get("profiling_name"), str):
            yield _in_full(one)
        elif isinstance(one, dict) and (row := _row(list(_without_other_numbers(one).values()))):
            yield row


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if an entry was printed twice, perhaps with other fields."""
    call, number = one.get("profiling_name"), one.get("collective_seq_id")
    same = (other.get("profiling_name"), other.get("collective_seq_id")) == (call, number)
    return same and number is not None and not _TRANSFER.search(str(call))


def _row(values: list[Any]) -> Mapping[str, Any] | None:
    """The entry whose fields are these values. None: no call and number among them."""
    texts = [value for value in values if isinstance(value, str)]
    numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    sizes = [value for value in values if isinstance(value, list) and value and isinstance(value[0], list)]
    call = next((text for text in texts if _CALL.fullmatch(text)), None)
    if call is None or len(numbers) != 1:
        return None
    state = next((text for text in texts if text in _STATES), None)
    group = next((text for text in texts if text not in (call, state)), "unknown")
    entry = {"profiling_name": call, "collective_seq_id": numbers[0], "process_group": [group], "state": state}
    return {**entry, "input_sizes": sizes[0]} if sizes else entry


def _without_other_numbers(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields, of the numbers only that of the call, where one is named like it."""
    number = next((name for name, value in entry.items() if isinstance(value, int) and "seq" in str(name)), None)
    return {name: value for name, value in entry.items() if number in (None, name) or not isinstance(value, int)}


def _in_full(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry in the form of a dump, where jq wrote each frame as a string, or the group under a short name."""
    group = entry.get("process_group") or entry.get("pg")
    if not isinstance(group, list) and entry.get("pg_id") is None:
        group = ["unknown"]
    frames = entry.get("frames")
    if isinstance(frames, list) and any(isinstance(frame, str) for frame in frames):
        found = [_FRAME.fullmatch(frame.strip()) if isinstance(frame, str) else None for frame in frames]
        frames = [{**one.groupdict(), "line": int(one["line"])} for one in found if one]
    return {**entry, "process_group": group, "frames": frames}


READER = RecorderEntriesReader()
