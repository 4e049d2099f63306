"""Text that `torchfrtrace` prints about Flight Recorder dumps: ranks that did not join, and calls that differ.

Forms: torch 2.5 to 2.13, torch/distributed/flight_recorder/components/{types,utils}.py (before 2.9
tools/flight_recorder). torchfrtrace compares every rank with the lowest one, so most ranks are "culprits" if that one
is wrong: every member's call is recorded, and the analysis looks for the minority. Its ranks are global.

`torchfrtrace -j` prints a column for each rank, with its calls in order. In the first row with a call that is not
complete, the ranks of which the column has ended have not made it, and those with another operation disagree. Columns
with sends and receives have no common rows: they become records of the Flight Recorder.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hangdoc.evidence import FlightRecorder, RecordedCall, limits
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._pasted_text import text_lines

_HEAD = re.compile(
    r"(?:Not all ranks joining collective|Collective sequence number: \d{1,18} has errors"
    r"|Collective \d{1,18} at entry \d{1,18} errors|Input/output mismatch in the collective)\b(?P<rest>.{0,300})"
)
_RANKS = re.compile(r"\{([\d, ]{1,40000})\}")
_FIELD = re.compile(
    r"(group info|collective|missing ranks|world size|expected ranks|collective state|error msg|input sizes): (.*)"
)
_OLD = re.compile(
    r"for group (?P<group>\S{1,200}) collective (?P<op>\S{1,100})\s+Missing ranks are (?P<ranks>\{[\d, ]+\})"
)
_SEQUENCE = re.compile(r"(?:number:|joining collective|Collective) (\d{1,18})")
_CULPRIT = re.compile(r"Culprit rank (\d{1,7}); Error type: (\w{1,60})(?:, (.{0,400}?))?(?=, Culprit rank|$)")
# The same in other words: after `Culprit rank 6`, what kind of difference, and sizes.
_ANY_CULPRIT = re.compile(r"[Cc]ulprit ranks? (\d{1,7})\b(.{0,400}?)(?=[,;] [Cc]ulprit rank|$)")
_KINDS = (("dtypes", "dtype"), ("input sizes", "size"), ("collective type", "type mismatch"))  # what differs, a word
_SIZES = re.compile(r"\[\[[\d, \[\]]{1,160}\]\]|\[\d[\d, ]{0,80}\]")
_EXPECTED = re.compile(r"Expected (collective type|input sizes|output sizes|dtypes): '(.{0,160}?)' does not")
_FOUND = re.compile(r"match found (?:collective type|input sizes|output sizes|dtype): '(.{0,160}?)'")
_COLUMNS = re.compile(r"(?:^|(?<=[\s|:]))(?:Rank \d{1,7}\s{1,400}){1,4095}Rank \d{1,7}\s*$")
_RULER = re.compile(r"\s*-{3,}(?:\s{1,4}-{3,}){1,4095}\s*")
_CELL = re.compile(
    r"(?P<op>\w{1,60})\((?P<ends>[^()]{0,200}?)input_sizes=(?P<sizes>[\[\]\d, ]{1,400}|None)(?P<rest>[^()]{0,800})"
    r"state=(?P<state>\w{1,40})\)"
)
_CELL_BEGINNING = re.compile(r"\w{1,60}\([^()]{0,800}$")
_CELL_SEQUENCE = re.compile(r"collective_seq_id \| p2p_seq_id=(\d{1,18})")
_ENDS = re.compile(r"\bs=(\d{1,7}) d=(\d{1,7})\b")  # of a send or receive: global ranks
_UNORDERED = frozenset({"send", "recv", "coalesced", "_broadcast_oop", "_reduce_oop"})  # not the same on every rank
MAX_COLUMNS = 4096
MAX_ROWS = 20_000
MAX_REPORTS = 1000  # collectives that are reported as wrong
MAX_PAIRS = 512  # events per collective
MAX_LINES = 12  # lines of a report before its stack trace
_RANK_LIMIT = limits.MAX_RANKS
_Ends = tuple[int | None, int | None]  # ranks that send and receive


class TorchFrTraceReader:
    name = "torchfrtrace output"
    order = 37
    marks = (
        "Not all ranks joining collective",
        "Collective sequence number: ",
        " at entry ",
        "Input/output mismatch in the collective",
        "(input_sizes=[",
    )
    help = "`torchfrtrace DIR`; better: give hangdoc the dumps in DIR"

    def recognises(self, source: Source) -> bool:
        head = source.head_text
        return _HEAD.search(head) is not None or ("(input_sizes=[" in head and _CELL.search(head) is not None)

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        for number, report in enumerate(_reports(text_lines(source, context))):
            if number >= MAX_REPORTS:
                context.warn(f"{source.name}: more than {MAX_REPORTS} collectives; the rest were not read")
                return
            if isinstance(report, _Table):
                for own, record in report.records().items():
                    yield Piece(ProcessRef(own), "recorder", record)
                continue
            size = len(report.expected) if report.default and report.expected else None
            for rank, event in report.events(source.name):
                yield Piece(ProcessRef(rank), "logs", Logs((event,)), None, size)


@dataclass(slots=True)
class _Report:
    """What torchfrtrace prints about one collective."""

    line: int
    sequence: str | None = None
    group: str = ""
    op: str = ""
    sizes: str = ""
    missing: tuple[int, ...] = ()
    expected: tuple[int, ...] = ()
    culprits: list[tuple[int, str, str, str]] = field(default_factory=list)  # rank, what differs, expected, found
    by_rows: bool = False  # only the place in a table shows who is missing: the group may lack that rank

    @property
    def default(self) -> bool:
        """True for the default group, whose members are all ranks."""
        return not self.group or "default_pg" in self.group

    def add(self, name: str, value: str) -> None:
        value = value.strip()
        if name == "group info":
            self.group = value[:200]
        elif name == "collective":
            self.op = value.rpartition(":")[2][:60]
        elif name == "input sizes":
            self.sizes = value[:160]
        elif name == "missing ranks":
            self.missing = _ranks(value)
        elif name == "expected ranks":
            self.expected = _ranks(value) or self._first(value)
        elif name == "world size":
            self.expected = self.expected or self._first(value)
        elif name == "error msg":
            for found in _CULPRIT.finditer(value):
                expected, other = _EXPECTED.search(found[3] or ""), _FOUND.search(found[3] or "")
                if expected and other and len(self.culprits) < MAX_PAIRS:
                    self.culprits.append((int(found[1]), expected[1], expected[2], other[1]))
            if not self.culprits and "STATE_MISMATCH" not in value:
                self._other_words(value)

    def _other_words(self, value: str) -> None:
        for found in _ANY_CULPRIT.finditer(value):
            text = found[2].lower().replace("_", " ")
            kind = next((kind for kind, word in _KINDS if word in text), None)
            if kind is None or len(self.culprits) >= MAX_PAIRS:
                continue
            sizes = _SIZES.search(found[2])
            usual = self.sizes if kind == "input sizes" else self.op
            other = sizes[0] if sizes and kind == "input sizes" else "another"
            self.culprits.append((int(found[1]), kind, usual or "the usual", other if other != usual else "another"))

    def _first(self, count: str) -> tuple[int, ...]:
        """The ranks of the default group, if only their number is known."""
        number = int(count) if re.fullmatch(r"\d{1,7}", count) else 0
        return tuple(range(number)) if self.default and number <= _RANK_LIMIT else ()

    def events(self, source: str) -> Iterator[tuple[int | None, LogEvent]]:
        """Events, each with the rank whose call it shows."""
        sequence = {"sequence": self.sequence} if self.sequence else {}
        if self.missing and (not self.expected or 2 * len(self.missing) <= len(self.expected)):
            names = ", ".join(map(str, self.missing))
            what = f"{self.op or 'collective'}{f' {self.sequence}' if self.sequence else ''}"
            text = f"torchfrtrace: not all ranks join {what}; missing: {names}"[:400]
            if self.by_rows:
                fields = {"ranks": names, "lag": str(MAX_ROWS)}
                yield None, LogEvent("behind_at_a_look", text, source, self.line, None, fields)
            else:
                yield None, LogEvent("lagging", text, source, self.line, None, {"ranks": names, **sequence})
        yield from self._mismatches(source)

    def _mismatches(self, source: str) -> Iterator[tuple[int, LogEvent]]:
        wrong = {culprit[0]: culprit for culprit in self.culprits}
        right = [rank for rank in self.expected if rank not in wrong]
        if not wrong or not right:
            return
        pairs = [(rank, right[0], culprit) for rank, culprit in wrong.items()]
        pairs += [(rank, rank, self.culprits[0]) for rank in right]
        for rank, a, (b, kind, left, found) in pairs[:MAX_PAIRS]:
            text = f"torchfrtrace: rank {b} has {kind} {found} where rank {a} has {left}"
            yield rank, LogEvent("mismatch", text[:400], source, self.line, None, self._sides(a, b, kind, left, found))

    def _sides(self, a: int, b: int, kind: str, left: str, right: str) -> dict[str, str]:
        fields = {"rank_a": str(a), "rank_b": str(b)}
        if kind == "collective type":
            return fields | {"op_a": left, "op_b": right}
        name = "dtype" if kind == "dtypes" else "shape"
        left, right = (value if name == "dtype" or value[:1] != "[" else value[1:-1] for value in (left, right))
        return fields | {"op_a": self.op, "op_b": self.op, f"{name}_a": left, f"{name}_b": right}


@dataclass(slots=True)
class _Table:
    """The table of `-j`: the calls of each rank, in order."""

    line: int
    ranks: Sequence[int]
    start: int  # of the first column, behind a prefix
    starts: Sequence[int] = ()  # of the columns
    calls: dict[int, list[re.Match[str]]] = field(default_factory=dict)
    cut: bool = False  # a cell is damaged, so that who has made a call is unknown

    def add(self, text: str) -> bool:
        """True if the line is a row."""
        if not self.starts:
            if not _RULER.fullmatch(text):
                return False
            self.starts = [found.start() for found in re.finditer(r"-{3,}", text)][:MAX_COLUMNS]
            return len(self.starts) == len(self.ranks)
        ends = [*self.starts[1:], len(text)]
        shown = {rank: text[start:end].strip() for rank, start, end in zip(self.ranks, self.starts, ends, strict=False)}
        cells = {rank: found for rank, cell in shown.items() if (found := _CELL.fullmatch(cell))}
        is_row = bool(cells) or any(map(_CELL_BEGINNING.match, shown.values()))
        self.cut = self.cut or (is_row and len(cells) < sum(map(bool, shown.values())))
        for rank, found in cells.items():
            if len(self.calls.setdefault(rank, [])) < MAX_ROWS:
                self.calls[rank].append(found)
        return is_row

    def shown(self) -> Iterator[_Report | _Table]:
        if self.transfers:
            yield self
        elif report := self.report():
            yield report

    def report(self) -> _Report | None:
        """What the first call that is not complete shows, if its group is that of all ranks."""
        numbered = {rank: self._numbered(calls) for rank, calls in self.calls.items()}
        pending = [
            number for calls in numbered.values() for number, call in calls.items() if call["state"] != "completed"
        ]
        if not pending or len(self.ranks) < 2 or self.cut:
            return None
        first = min(pending)
        here = {rank: calls[first] for rank, calls in numbered.items() if first in calls}
        behind = [rank for rank in self.ranks if max(numbered.get(rank, {-1: None}), default=-1) < first]
        ops = Counter(call["op"] for call in here.values())
        (op, count), *others = ops.most_common(2)
        if ops.keys() & _UNORDERED:
            return None
        report = _Report(self.line, None, "", op, expected=tuple(self.ranks), by_rows=True)
        if not others and behind:
            report.missing = tuple(behind)
            return report
        if others and count > len(here) - count and not behind:
            wrong = {rank: call["op"] for rank, call in here.items() if call["op"] != op}
            report.culprits = [(rank, "collective type", op, other) for rank, other in wrong.items()][:MAX_PAIRS]
            return report
        return None

    @property
    def transfers(self) -> bool:
        return any(_ENDS.search(call["ends"]) for calls in self.calls.values() for call in calls)

    def records(self) -> Mapping[int, FlightRecorder]:
        """The calls of each rank; none if a cell is damaged, or the columns do not start at the same time.

        A collective is numbered by its place among those of its column. Columns that start at the same time have the
        same collectives.
        """
        made = {rank: _recorded(calls) for rank, calls in self.calls.items()}
        collectives = [[(call.op, call.sizes) for call in calls if not call.p2p] for calls in made.values()]
        longest = max(collectives, key=len, default=[])
        if self.cut or len(made) < 2 or any(own != longest[: len(own)] for own in collectives):
            return {}
        transfers = {
            rank: Counter((call.sender, call.receiver) for call in calls if call.p2p) for rank, calls in made.items()
        }
        left = {rank: list(_unmatched(rank, calls, transfers)) for rank, calls in made.items()}
        waiting = {rank for rank, calls in left.items() if not all(call.retired for call in calls)}
        # A rank that waits for nothing may be about to make its side of a transfer.
        return {
            rank: FlightRecorder(
                version="2.x",
                entries=tuple(one for one in calls if one.retired or not one.p2p or _peer(rank, one) in waiting),
                enqueued={},
                completed={},
                final=True,
            )
            for rank, calls in left.items()
        }

    def _numbered(self, calls: Sequence[re.Match[str]]) -> Mapping[int, re.Match[str]]:
        """The calls by sequence number, if each has one, else by row."""
        numbers = [_CELL_SEQUENCE.search(call["rest"]) for call in calls]
        if all(numbers):
            return {int(number[1]): call for number, call in zip(numbers, calls, strict=True) if number}
        return dict(enumerate(calls))


def _recorded(cells: Sequence[re.Match[str]]) -> Sequence[RecordedCall]:
    calls: list[RecordedCall] = []
    numbers: Counter[bool] = Counter()
    for cell in cells:
        ends = _ENDS.search(cell["ends"])
        numbers[ends is not None] += 1
        calls.append(
            RecordedCall(
                group="0",
                sequence=numbers[ends is not None],
                op=cell["op"],
                sizes="" if cell["sizes"] == "None" else cell["sizes"].rstrip(", "),
                dtypes=(),
                retired=cell["state"] == "completed",
                p2p=ends is not None,
                state=cell["state"],
                sender=int(ends[1]) if ends else None,
                receiver=int(ends[2]) if ends else None,
            )
        )
    return calls


def _unmatched(rank: int, calls: Iterable[RecordedCall], made: Mapping[int, Counter[_Ends]]) -> Iterator[RecordedCall]:
    """The calls, without the transfers that wait although the other rank, if it is shown, has made its side of them."""
    own: Counter[_Ends] = Counter()
    for call in calls:
        ends = call.sender, call.receiver
        own[ends] += call.p2p
        if not call.p2p or call.retired or (peer := _peer(rank, call)) not in made or made[peer][ends] < own[ends]:
            yield call


def _peer(rank: int, call: RecordedCall) -> int:
    peer = call.receiver if call.sender == rank else call.sender
    return -1 if peer is None else peer


def _reports(lines: Iterable[str]) -> Iterator[_Report | _Table]:
    report, since = None, 0
    table: _Table | None = None
    for number, text in enumerate(lines, 1):
        if columns := _COLUMNS.search(text):
            ranks = [int(one) for one in re.findall(r"\d{1,7}", columns[0])[:MAX_COLUMNS]]
            table = _Table(number, ranks, columns.start())
            continue
        if table is not None and text.strip():
            if table.add(text[table.start :]):
                continue
            yield from table.shown()
            table = None
        if head := _HEAD.search(text):
            if report is not None:
                yield report
            report, since = _Report(number), 0
            sequence = _SEQUENCE.search(head[0])
            report.sequence = sequence[1] if sequence else None
            if old := _OLD.search(head["rest"]):
                report.group, report.op, report.missing = (
                    old["group"],
                    old["op"].rpartition(":")[2],
                    _ranks(old["ranks"]),
                )
        elif report is not None and (found := _FIELD.search(text)):
            report.add(found[1], found[2])
        elif report is not None:
            since += 1
            if since > MAX_LINES:
                yield report
                report = None
    if report is not None:
        yield report
    if table is not None:
        yield from table.shown()


def _ranks(text: str) -> tuple[int, ...]:
    found = _RANKS.search(text)
    ranks = (int(one) for one in re.findall(r"\d{1,9}", found[1])) if found else iter(())
    return tuple(sorted({rank for rank in ranks if rank < _RANK_LIMIT}))


READER = TorchFrTraceReader()
