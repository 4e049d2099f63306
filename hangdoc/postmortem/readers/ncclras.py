"""NCCL RAS reports: output of `ncclras` (text, `-v`) and `ncclras -f json`.

NCCL 2.24 to 2.30, src/ras/client_support.cc. RAS counts launched operations, not completed ones, and queries ranks one
after another: a difference of a few operations is normal, unless a later query in the same text repeats it. A rank that
does not answer is a fault. Ranks are relative to their communicator; in the one that spans the job they are global.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from hangdoc.evidence import FlightRecorder, RecordedCall
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._pasted_text import OwnerHints, json_documents, parse_channels, text_lines

_COMMUNICATOR = re.compile(r"#(\d{1,6})-\d{1,6} \(([0-9a-f]{1,16})\) (INCOMPLETE|ERROR|MISMATCH)\s*")
_OPERATION = re.compile(
    r"\s*Communicator ranks have different (\w+) operation counts\s*|\s*(Communicator ranks have different status)\s*"
)
_MAJORITY = re.compile(
    r"\s*(\d{1,9}) ranks? ha(?:ve|s) (?:launched up to operation (\d{1,19})|(not) launched any operations)\s*"
)
_RANK = re.compile(
    r"\s*Rank (\d{1,7})(?: has (?:launched up to operation (\d{1,19})|(not) launched any operations|status (\w+))"
    r"| reported ([\w ]+?))? -- (?:GPU [\d, ]+(?:\(NVML [\d,]+\))? ?managed by process (\d{1,9}) on node ([\w.:\-]+)"
    r"|\[process information not found\])\s*"
)
_DEAD = re.compile(r"\s*Process (\d{1,9}) on node ([\w.:\-]+) managing GPUs? .*")
_SIZES = re.compile(
    r"\s*(\d{1,6})\s+(\d{1,9})\s+\d{1,7}\s+[\d\-]{1,15}\s+(\d{1,9})\s+(\d{1,9})\s+[A-Z]+\s+[A-Z,+ ]+\s*"
)
_SECTION = re.compile(r"(INCOMPLETE|DEAD|TIMEOUT)\s*")
_START = re.compile(r"NCCL version [\d.]+ compiled with .*|Job summary\s*")
# People paste the part below the summary alone.
_BEGINS = re.compile(r"Group\s+Comms\s+Nodes\s+Ranks\b.*|(?:INCOMPLETE|DEAD)\s*")
OPENING = re.compile(
    r"NCCL version \d[\d.]* compiled with CUDA|Job summary\s*$|Group\s+Comms\s+Nodes\s+Ranks\b"
    r"|#\d{1,6}-\d{1,6} \([0-9a-f]{1,16}\) (?:INCOMPLETE|ERROR|MISMATCH)\s*$|(?:INCOMPLETE|DEAD)\s*$"
)
# Other lines of a report; what is none of them does not belong to it.
_OTHER = re.compile(
    r"\s*|=+\s*|(?:Errors|Warnings)\s*|CUDA runtime version .*|Communicators\.\.\. .*|\s*#\s+in group .*"
    r"|\(total\) .*"
    r"|\s*Nodes\s+Processes\s.*|[\s\d-]+|\s+\d{1,9} (?:ranks?|job process(?:es)?) .*|\s+Missing communicator data .*"
    r"|\s+(?:Initialization|Asynchronous) errors? on .*|\s+Encountered \d.*|\s+Communicator .*|\s+\[.*\]\s*"
    r"|No communicator data collected!\s*|Gathering data about .*"
    r"|\s*(?:Warning: |Collected data |Travel times|Minimum ).*"
)
MAX_JSON_BYTES = 64 * 2**20  # bytes of JSON
MAX_RANKS = 1_000_000
MAX_COMPARED = 64  # ranks that one in another order is compared with
_OPS = {
    "AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "Broadcast": "broadcast",
    "Reduce": "reduce", "SendRecv": "send/recv", "Send": "send", "Recv": "recv", "AlltoAll": "all_to_all",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RasRank:
    """A rank in a RAS report; `rank` is relative to the communicator."""

    rank: int
    host: str | None = None
    pid: int | None = None
    launched: Mapping[str, int] = field(default_factory=dict)  # count by operation; empty: unknown
    dead: bool | None = None  # unreachable for a minute; None: it answered
    status: str | None = None  # status or error


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator; a text report lists only the outlier ranks."""

    hash: str
    size: int | None
    ranks: tuple[RasRank, ...]
    missing: tuple[RasRank, ...] = ()
    most: Mapping[str, int] = field(default_factory=dict)  # operation -> count on most ranks


@dataclass(frozen=True, slots=True)
class Ras:
    """One query (record `ras`)."""

    communicators: tuple[Communicator, ...]
    dead: tuple[tuple[str, int], ...] = ()  # host and PID of processes that RAS considers dead
    world_size: int | None = None


class NcclRasReader:
    name = "ncclras output"
    order = 34
    marks = ("Job summary", "Communicator ranks have different", "Missing communicator data", '"communicators_count"')
    help = "`ncclras -v` on a host of the job (NCCL 2.24 or later), twice, ten seconds apart"

    def recognises(self, source: Source) -> bool:
        head = source.head
        if b'"communicators_count"' in head and b'"nccl_version"' in head:
            return True
        if b"Job summary" in head and b"Communicators..." in head and b"======" in head:
            return True
        return b"ommunicator" in head and any(
            _COMMUNICATOR.search(line.decode("utf-8", "replace")) for line in head.splitlines() if b"#" in line
        )

    def read(self, source: Source, context: ReadContext) -> Iterable[Piece]:
        if b'"communicators_count"' in source.head:
            found = (_ras_from_json(one) for one in json_documents(source, context, MAX_JSON_BYTES))
            queries = [ras for ras in found if ras is not None]
        else:
            queries = [piece.record for piece in parse_channels(text_lines(source, context), OPENING, _Parser)]
        return ras_pieces(queries, source)


class _Parser:
    """Parses one channel of the text form (`_pasted_text.ChannelParser`)."""

    def __init__(self, hints: OwnerHints) -> None:
        self.pieces: list[Piece] = []
        self._hints = hints
        self._open = False
        self._reset()

    def _reset(self) -> None:
        self._found: dict[str, dict[str, Any]] = {}
        self._dead: list[tuple[str, int]] = []
        self._sizes: dict[str, int] = {}  # group number -> ranks per communicator
        self._size: int | None = None
        self._now: dict[str, Any] | None = None
        self._kind = self._op = ""
        self._count: int | None = None

    def feed(self, text: str) -> bool:
        if _START.fullmatch(text):
            if self._size is not None:
                self.end()
            self._open = True
            return True
        if not self._open and (_BEGINS.fullmatch(text) or _COMMUNICATOR.fullmatch(text)):
            self._open = True
        if not self._open:
            return False
        if found := _SECTION.fullmatch(text):
            self._now, self._kind = None, found[1]
        elif found := _SIZES.fullmatch(text):
            self._sizes[found[1]] = int(found[3])
            self._size = max(self._size or 0, int(found[3]))
        elif found := _COMMUNICATOR.fullmatch(text):
            empty: dict[str, Any] = {"ranks": {}, "missing": {}, "most": {}, "size": self._sizes.get(found[1])}
            empty |= {"counted": {}}
            self._now = self._found.setdefault(found[2], empty)
            self._kind, self._op, self._count = found[3], "", None
        elif found := _OPERATION.fullmatch(text):
            self._op, self._count = found[1] or "", None
        elif found := _MAJORITY.fullmatch(text):
            self._count = int(found[2] or 0)
            if self._now is not None and self._op:
                self._now["most"].setdefault(self._op, self._count)  # the largest set of ranks comes first
                counted = self._now["counted"]
                counted[self._op] = counted.get(self._op, 0) + int(found[1])
        elif found := _RANK.fullmatch(text):
            self._rank(found)
        elif self._kind == "DEAD" and (found := _DEAD.fullmatch(text)) and len(self._dead) < MAX_RANKS:
            self._dead.append((found[2], int(found[1])))
        else:
            return bool(_OTHER.fullmatch(text) or _DEAD.fullmatch(text))
        return True

    def _rank(self, found: re.Match[str]) -> None:
        if self._now is None:
            return
        number, pid = int(found[1]), int(found[6]) if found[6] else None
        into = self._now["missing" if self._kind == "INCOMPLETE" else "ranks"]
        if len(into) >= MAX_RANKS:
            return
        one = into.setdefault(number, {"host": found[7], "pid": pid, "launched": {}, "status": None})
        count = int(found[2]) if found[2] else 0 if found[3] else self._count
        if self._op and count is not None:
            one["launched"][self._op] = count
        one["status"] = found[4] or found[5] or one["status"]

    def end(self) -> None:
        if self._open and (self._size is not None or self._found or self._dead):
            dead = set(self._dead)
            communicators = tuple(
                Communicator(
                    name,
                    one["size"] or max(one["counted"].values(), default=None),
                    _ranks(one["ranks"]),
                    _ranks(one["missing"], dead),
                    one["most"],
                )
                for name, one in self._found.items()
            )
            self.pieces.append(Piece(ProcessRef(), "ras", Ras(communicators, tuple(self._dead), self._size)))
        self._open = False
        self._reset()


def _ranks(
    found: Mapping[int, Mapping[str, Any]], dead: Iterable[tuple[str, int]] | None = None
) -> tuple[RasRank, ...]:
    return tuple(
        RasRank(
            number, one["host"], one["pid"], one["launched"],
            None if dead is None else (one["host"], one["pid"]) in dead, one["status"],
        )
        for number, one in sorted(found.items())
    )  # fmt: skip


def _ras_from_json(one: object) -> Ras | None:
    found = one.get("communicators") if isinstance(one, dict) else None
    if not isinstance(found, list):
        return None
    communicators = tuple(_json_communicator(entry) for entry in found if isinstance(entry, dict))
    missing = [rank for one in communicators for rank in one.missing if rank.dead]
    dead = {(rank.host or "", rank.pid): None for rank in missing if rank.pid is not None}
    sizes = [one.size for one in communicators if one.size is not None]
    return Ras(communicators, tuple((host, pid) for host, pid in dead if pid is not None), max(sizes, default=None))


def _json_communicator(one: Mapping[str, Any]) -> Communicator:
    ranks, missing = (
        tuple(_json_rank(entry) for entry in _dicts(one.get(name))) for name in ("ranks", "missing_ranks")
    )
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for rank in ranks:
        for op, count in rank.launched.items():
            counts[op][count] += 1
    most = {op: seen.most_common(1)[0][0] for op, seen in counts.items()}
    name = one.get("hash")
    return Communicator(str(name)[:20].removeprefix("0x"), _int(one.get("size")), ranks, missing, most)


def _json_rank(one: Mapping[str, Any]) -> RasRank:
    host, pid, status, counts = (
        one.get("host"),
        _int(one.get("pid")),
        one.get("status"),
        one.get("collective_counts"),
    )
    status = status if isinstance(status, dict) else {}
    counts = counts if isinstance(counts, dict) else {}
    launched = {str(op)[:40]: count for op, value in list(counts.items())[:64] if (count := _int(value)) is not None}
    status_text = (
        "ABORT" if status.get("abort_flag") is True else "FINALIZE" if status.get("finalize_called") is True else None
    )
    dead = status.get("considered_dead") if "considered_dead" in status else None
    known = host[:253] if isinstance(host, str) and host != "unknown" else None
    return RasRank(
        _int(one.get("rank")) or 0,
        known,
        pid if pid and pid > 0 else None,
        launched,
        dead if isinstance(dead, bool) else None,
        status_text,
    )


def _dicts(value: object) -> list[dict[str, Any]]:
    return [one for one in value[:MAX_RANKS] if isinstance(one, dict)] if isinstance(value, list) else []


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


# --- from a query to evidence ---------------------------------------------------------------------


def ras_pieces(queries: Sequence[Ras], source: Source) -> Iterator[Piece]:
    for ras in queries:
        yield Piece(ProcessRef(), "ras", ras, world_size=ras.world_size)
        for communicator in ras.communicators:
            yield from _recorder_pieces(communicator, ras)
        yield from _missing_ranks(ras)
    status_text = [
        *_unreachable_events(queries[-1:], source),
        *_lag_events(queries, source),
        *_order_events(queries[-1:], source),
    ]
    if status_text:
        numbered = (replace(event, line=number) for number, event in enumerate(status_text, 1))
        yield Piece(ProcessRef(), "logs", Logs(tuple(numbered)))


def _recorder_pieces(one: Communicator, ras: Ras) -> Iterator[Piece]:
    """Each rank's count of the one operation whose counts differ; only for the communicator that spans the job."""
    if not _spans_job(one, ras) or len(one.ranks) != one.size:  # text reports list only outliers
        return
    differ = [op for op in one.most if len({rank.launched.get(op, 0) for rank in one.ranks}) > 1]
    if len(differ) != 1:
        return
    (op,) = differ
    for rank in one.ranks:
        count = rank.launched.get(op, 0)
        entry = RecordedCall(one.hash, count, _OPS.get(op, op.lower()), "", (), False)
        record = FlightRecorder("ras", (entry,), {one.hash: count}, {})
        yield Piece(ProcessRef(rank.rank, rank.host, rank.pid), "recorder", record, world_size=one.size)


def _missing_ranks(ras: Ras) -> Iterator[Piece]:
    """Which process each rank is that does not answer, for the output of other tools, which shows it by its PID."""
    for one in ras.communicators:
        for rank in one.missing if _spans_job(one, ras) else ():
            yield Piece(ProcessRef(rank.rank, rank.host, rank.pid), "ras", ras, world_size=one.size)


def _unreachable_events(queries: Sequence[Ras], source: Source) -> Iterator[LogEvent]:
    """Events for processes and ranks that do not answer."""
    for ras in queries:
        for host, pid in ras.dead:
            text = f"RAS: process {pid} on node {host} is considered dead"
            yield LogEvent("ras_dead", text, source.name, 0, None, {"host": host, "pid": str(pid)})
        for one in ras.communicators:
            for rank in one.missing:
                fields = {"rank": str(rank.rank), "host": rank.host or "", "pid": str(rank.pid or "")}
                text = f"RAS: no data from rank {rank.rank} of communicator {one.hash}"
                known = {name: value for name, value in fields.items() if value}
                yield LogEvent("ras_missing", text, source.name, 0, None, known | _group_fields(one, ras))


def _lag_events(queries: Sequence[Ras], source: Source) -> Iterator[LogEvent]:
    """Events for ranks behind the majority; kind `lagging` if no count changed between the last two queries."""
    if not queries:
        return
    still = len(queries) > 1 and _counts(queries[-1]) == _counts(queries[-2])
    for one in queries[-1].communicators:
        for op, most in one.most.items():
            slow = [rank for rank in one.ranks if rank.launched.get(op, most) < most]
            alone = len(slow) == 1 == sum(rank.launched.get(op, most) != most for rank in one.ranks)
            for count in sorted({rank.launched[op] for rank in slow})[:64]:
                numbers = ", ".join(str(rank.rank) for rank in slow if rank.launched[op] == count)[:2000]
                text = f"RAS: rank {numbers} has launched {count} {op}, most of communicator {one.hash} {most}"
                fields = {"ranks": numbers, "completed": str(count), "sequence": str(count + 1), "op": op}
                fields |= {"lag": str(most - count), **({"alone": "yes"} if alone else {})}
                fields |= _group_fields(one, queries[-1])
                yield LogEvent("lagging" if still else "behind_at_a_look", text, source.name, 0, None, fields)


def _swapped_events(ras: Ras, source: Source) -> Iterator[LogEvent]:
    """Events for a process that is behind in the communicator of the job, and ahead in another one, or the reverse.

    A process reports all its communicators at once. Its peers in the other one are as far as most in the first, so
    they launched the two operations in another order.
    """
    whole = [one for one in ras.communicators if _spans_job(one, ras)]
    if len(whole) != 1:
        return
    parts = [one for one in ras.communicators if one is not whole[0]]
    lags = {process: found for one in parts for process, found in _own_lags(one).items()}
    usual = _usual_ranks(whole[0])
    for process, (rank, lag, op) in _own_lags(whole[0]).items():
        _, other_lag, other_op = lags.get(process, (0, 0, ""))
        if lag * other_lag >= 0:
            continue
        own, theirs = (f"{other_op} of a subgroup", f"{op} of all ranks")
        own, theirs = (own, theirs) if lag < 0 else (theirs, own)
        text = f"RAS: rank {rank} has launched {own} before {theirs}, its peers the other way round"
        for other in usual:
            fields = {"rank_a": str(rank), "op_a": own, "rank_b": str(other), "op_b": theirs}
            yield LogEvent("mismatch", text, source.name, 0, None, fields)


def _own_lags(one: Communicator) -> Mapping[tuple[str, int], tuple[int, int, str]]:
    """By host and PID of a process with one rank: that rank, and how far it is from the majority in one operation."""
    processes = Counter((rank.host, rank.pid) for rank in one.ranks)
    found: dict[tuple[str, int], tuple[int, int, str]] = {}
    for rank in one.ranks:
        differ = {op: count - one.most[op] for op, count in rank.launched.items() if count != one.most.get(op, count)}
        if rank.host and rank.pid is not None and len(differ) == 1 and processes[rank.host, rank.pid] == 1:
            ((op, lag),) = differ.items()
            found[rank.host, rank.pid] = rank.rank, lag, op
    return found


def _usual_ranks(one: Communicator) -> Sequence[int]:
    """Ranks that are as far as the majority; a text lists only the others."""
    apart = {
        rank.rank for rank in one.ranks if any(rank.launched.get(op, most) != most for op, most in one.most.items())
    }
    return [rank for rank in range(min(one.size or 0, MAX_COMPARED)) if rank not in apart]


def _order_events(queries: Sequence[Ras], source: Source) -> Iterator[LogEvent]:
    """Events for a rank that is ahead of the majority in one operation and behind in another.

    Lateness cannot explain it, since a rank is asked for all its counts at once: it called other operations.
    """
    for ras in queries if len(queries) == 1 else ():
        yield from _swapped_events(ras, source)
        for one in ras.communicators:
            if not _spans_job(one, ras):
                continue
            usual = _usual_ranks(one)
            for rank in one.ranks:
                differ = {op: count - one.most[op] for op, count in rank.launched.items() if op in one.most}
                if len(set(map(_sign, differ.values())) - {0}) < 2:
                    continue
                own = ", ".join(f"{op} {rank.launched[op]}" for op, more in differ.items() if more)
                theirs = ", ".join(f"{op} {one.most[op]}" for op, more in differ.items() if more)
                text = f"RAS: rank {rank.rank} has launched {own}, most of communicator {one.hash} {theirs}"
                for other in usual:
                    fields = {"rank_a": str(rank.rank), "op_a": own, "rank_b": str(other), "op_b": theirs}
                    yield LogEvent("mismatch", text, source.name, 0, None, fields)


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def _group_fields(one: Communicator, ras: Ras) -> dict[str, str]:
    """The `group` field of an event; omitted for the communicator that spans the job, as in torch's log lines."""
    return {} if _spans_job(one, ras) else {"group": one.hash}


def _spans_job(one: Communicator, ras: Ras) -> bool:
    if ras.world_size is None:  # the summary with the sizes was not copied
        sizes = [other.size or 0 for other in ras.communicators]
        return len(sizes) == 1 or (sizes.count(max(sizes)) == 1 and one.size == max(sizes))
    return one.size is not None and one.size == ras.world_size


def _counts(ras: Ras) -> object:
    return [
        (one.hash, dict(one.most), [(rank.rank, dict(rank.launched)) for rank in one.ranks])
        for one in ras.communicators
    ]


READER = NcclRasReader()
