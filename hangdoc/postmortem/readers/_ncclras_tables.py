"""What NCCL's RAS told in one query, and what of it is evidence of the kinds that analyses know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hangdoc.evidence import FlightRecorder, Recorded
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, Who
from hangdoc.postmortem.readers import Source

_OPS = {
    "AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "Broadcast": "broadcast",
    "Reduce": "reduce", "SendRecv": "send/recv", "Send": "send", "Recv": "recv", "AlltoAll": "all_to_all",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RasRank:
    """A rank as RAS knows it; its number is that in the communicator."""

    rank: int
    host: str | None = None
    pid: int | None = None
    launched: Mapping[str, int] = field(default_factory=dict)  # by operation; empty: not told
    dead: bool | None = None  # not reachable for a minute; None: it answered
    said: str | None = None  # status or error


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator; of a text only the ranks that it names, as RAS names outliers only."""

    hash: str
    size: int | None
    ranks: tuple[RasRank, ...]
    missing: tuple[RasRank, ...] = ()
    most: Mapping[str, int] = field(default_factory=dict)  # operations that most ranks had launched


@dataclass(frozen=True, slots=True)
class Ras:
    """One query (record of `ras`)."""

    communicators: tuple[Communicator, ...]
    dead: tuple[tuple[str, int], ...] = ()  # host and PID of processes that RAS holds for dead
    world_size: int | None = None


def pieces(queries: Sequence[Ras], source: Source) -> Iterator[Piece]:
    for ras in queries:
        yield Piece(Who(), "ras", ras, world_size=ras.world_size)
        for communicator in ras.communicators:
            yield from _launched(communicator, ras)
    said = [*_lost(queries[-1:], source), *_behind(queries, source)]
    if said:
        yield Piece(Who(), "logs", Logs(tuple(said)))


def _launched(one: Communicator, ras: Ras) -> Iterator[Piece]:
    """How far each rank has come in the operation in which they differ; of the whole job's communicator only."""
    if not _is_whole(one, ras) or len(one.ranks) != one.size:  # a text names only those that differ
        return
    differ = [op for op in one.most if len({rank.launched.get(op, 0) for rank in one.ranks}) > 1]
    if len(differ) != 1:
        return
    (op,) = differ
    for rank in one.ranks:
        count = rank.launched.get(op, 0)
        entry = Recorded(one.hash, count, _OPS.get(op, op.lower()), "", (), False)
        record = FlightRecorder("ras", (entry,), {one.hash: count}, {})
        yield Piece(Who(rank.rank, rank.host, rank.pid), "recorder", record, world_size=one.size)


def _lost(queries: Sequence[Ras], source: Source) -> Iterator[LogEvent]:
    """Processes that do not answer."""
    for ras in queries:
        for host, pid in ras.dead:
            text = f"RAS: process {pid} on node {host} is considered dead"
            yield LogEvent("ras_dead", text, source.name, 0, None, {"host": host, "pid": str(pid)})
        for one in ras.communicators:
            for rank in one.missing:
                fields = {"rank": str(rank.rank), "host": rank.host or "", "pid": str(rank.pid or "")}
                text = f"RAS: no data from rank {rank.rank} of communicator {one.hash}"
                told = {name: value for name, value in fields.items() if value}
                yield LogEvent("ras_missing", text, source.name, 0, None, told | _group(one, ras))


def _behind(queries: Sequence[Ras], source: Source) -> Iterator[LogEvent]:
    """Ranks that have launched less than most; `lagging` where nothing was launched between two queries."""
    if not queries:
        return
    still = len(queries) > 1 and _counts(queries[-1]) == _counts(queries[-2])
    for one in queries[-1].communicators:
        for op, most in one.most.items():
            slow = [rank for rank in one.ranks if rank.launched.get(op, most) < most]
            for count in sorted({rank.launched[op] for rank in slow})[:64]:
                numbers = ", ".join(str(rank.rank) for rank in slow if rank.launched[op] == count)[:2000]
                text = f"RAS: rank {numbers} has launched {count} {op}, most of communicator {one.hash} {most}"
                fields = {"ranks": numbers, "completed": str(count), "sequence": str(count + 1), "op": op}
                fields |= _group(one, queries[-1])
                yield LogEvent("lagging" if still else "ras_behind", text, source.name, 0, None, fields)


def _group(one: Communicator, ras: Ras) -> dict[str, str]:
    """What a line says of its group; none where that is the whole job's, as with torch's own lines."""
    return {} if _is_whole(one, ras) else {"group": one.hash}


def _is_whole(one: Communicator, ras: Ras) -> bool:
    return one.size is not None and one.size == ras.world_size


def _counts(ras: Ras) -> object:
    return [
        (one.hash, dict(one.most), [(rank.rank, dict(rank.launched)) for rank in one.ranks])
        for one in ras.communicators
    ]
