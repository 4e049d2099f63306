"""Pieces of evidence from many sources put together: one target a rank, one snapshot a look, one job a run."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from hangdoc.evidence import End, RankEvidence, Snapshot, Target, limits
from hangdoc.evidence.logs import LOST, TEARDOWN, WAITED, Aftermath, Logs
from hangdoc.evidence.pieces import Piece
from hangdoc.postmortem.readers import EvidenceItem
from hangdoc.redaction.records import Mask

UNKNOWN_HOST = "unknown host"
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)  # also what comes of it when threads are torn down
REFUSED_MOST = 5  # claims that are not believed, said one by one
APART_S = 5.0  # between two looks that do not say when they were taken

Identity = tuple[int | None, str | None, int | None]  # rank; where that is not known host and PID
Whole = Mapping[str | None, Sequence[Piece]]  # what was said of a host, or (None) of no process in particular


@dataclass(slots=True)
class _Rank:
    """What was found of one process."""

    rank: int | None
    host: str | None = None
    pid: int | None = None
    looks: dict[str, list[tuple[float | None, Any]]] = field(default_factory=lambda: defaultdict(list))
    end: End | None = None

    def add(self, piece: Piece) -> None:
        self.host = self.host or piece.process.host
        self.pid = self.pid if self.pid is not None else piece.process.pid
        if isinstance(piece.record, End):
            self.end = _told_twice(self.end, piece.record) if self.end else piece.record
        else:
            self.looks[piece.probe].append((piece.at, piece.record))


def snapshots(
    found: Iterable[EvidenceItem], problem: Callable[[str], None] = lambda text: None
) -> tuple[Snapshot, ...]:
    """A history such as a watched job has, without secrets; the runs of a job that was restarted are jobs of their own.

    `problem` hears a sentence for each rank and world size that is not believed.
    """
    mask = Mask()
    taken: list[Snapshot] = []
    refused: dict[str, None] = {}
    runs: dict[int, list[Piece]] = defaultdict(list)
    for one in map(mask.of, found):
        if isinstance(one, Snapshot):
            taken.append(_believed(one, refused))
        else:
            runs[one.process.run].append(_believable(one, refused))
    known = _known(taken)
    for text in refused:
        problem(text)
    made = [_run(pieces, run if len(runs) > 1 else None, known) for run, pieces in sorted(runs.items())]
    return (*taken, *(shot for shots in made for shot in shots))


def _believed(shot: Snapshot, refused: dict[str, None]) -> Snapshot:
    """A recorded snapshot without claims of ranks and sizes that no job has."""
    ranks = tuple(
        rank if (target := limits.validated(rank.target)) is rank.target else replace(rank, target=target)
        for rank in shot.ranks
    )
    if all(new is old for new, old in zip(ranks, shot.ranks, strict=True)):
        return shot
    for new, old in zip(ranks, shot.ranks, strict=True):
        _refuse(old.target.rank, new.target.rank, old.target.world_size, new.target.world_size, refused)
    return replace(shot, ranks=ranks)


def _believable(piece: Piece, refused: dict[str, None]) -> Piece:
    rank, size = limits.valid_rank(piece.process.rank), limits.valid_world_size(piece.world_size)
    if rank == piece.process.rank and size == (piece.world_size or None):
        return piece
    _refuse(piece.process.rank, rank, piece.world_size, size, refused)
    return replace(piece, process=replace(piece.process, rank=rank), world_size=size)


def _refuse(
    rank: int | None, believed: int | None, size: int | None, world: int | None, refused: dict[str, None]
) -> None:
    """Say which claim was not believed; of many that differ the first few."""
    for what, told, kept in (("rank", rank, believed), ("world size", size, world)):
        if told != kept and len(refused) < REFUSED_MOST:
            number = str(told) if abs(told or 0) < 10**18 else "a number of more than 18 digits"
            refused[f"{what} {number} is ignored: no job has more than {limits.RANKS_MOST:,} ranks"] = None


def _known(taken: Sequence[Snapshot]) -> dict[int, Target]:
    """The ranks of recordings, where these are of one job: what else is found of them belongs to the same processes."""
    jobs = {rank.target.job for shot in taken for rank in shot.ranks}
    if len(jobs) != 1:
        return {}
    return {rank.target.rank: rank.target for shot in taken for rank in shot.ranks if rank.target.rank is not None}


def _run(pieces: Sequence[Piece], run: int | None, known: Mapping[int, Target]) -> list[Snapshot]:
    job, launcher = (next((v for p in pieces if (v := getattr(p, name))), None) for name in ("job", "launcher"))
    size = max((piece.world_size for piece in pieces if piece.world_size), default=None)
    name = (job or "none") + (f" (restart {run})" if run is not None else "")
    hosts: dict[str, list[tuple[Target, _Rank]]] = defaultdict(list)
    ranks = _ranks(pieces)
    if any(_says(one, WAITED) for one in ranks):
        for one in ranks:
            one.end = None if one.end and _followed(one, one.end) else one.end
    for one in ranks:
        pid = one.pid if one.pid is not None else -1 - (one.rank or 0)
        made = Target(pid, 0, one.host or UNKNOWN_HOST, one.rank, world_size=size, job=name, launcher=launcher)
        target = made if one.rank is None else known.get(one.rank, made)
        hosts[target.host].append((target, one))
    whole: dict[str | None, list[Piece]] = defaultdict(list)
    for piece in pieces:
        if piece.process.rank is None and piece.process.pid is None:
            whole[piece.process.host].append(piece)
    for host in whole.keys() - hosts.keys() - {None}:
        hosts[host or UNKNOWN_HOST] = []
    return [shot for host, mine in (hosts or {UNKNOWN_HOST: []}).items() for shot in _looks(host, mine, whole)]


def _ranks(pieces: Sequence[Piece]) -> list[_Rank]:
    """One for each process; what says only a PID belongs to the rank of which another piece tells both."""
    number: dict[int, set[int]] = defaultdict(set)
    for piece in pieces:
        if piece.process.rank is not None and piece.process.pid is not None:
            number[piece.process.pid].add(piece.process.rank)
    found: dict[Identity, _Rank] = {}
    for piece in pieces:
        rank, pid = piece.process.rank, piece.process.pid
        if rank is None and pid is None:
            continue
        if rank is None and pid is not None and len(told := number.get(pid, set())) == 1:
            (rank,) = told
        key: Identity = (rank, None, None) if rank is not None else (None, piece.process.host, pid)
        found.setdefault(key, _Rank(rank)).add(piece)
    return list(found.values())


def _looks(host: str, ranks: Sequence[tuple[Target, _Rank]], whole: Whole) -> Iterator[Snapshot]:
    """The k-th look at every rank in the k-th snapshot of its host."""
    rounds: list[dict[int, dict[str, Any]]] = [{}]
    times: list[float | None] = [None]
    for target, one in ranks:
        for probe, looks in one.looks.items():
            if probe == "logs":  # one log in several files
                looks = [(None, merged([record for _, record in looks]))]
            for number, (at, record) in enumerate(looks):
                if number == len(rounds):
                    rounds.append({})
                    times.append(None)
                rounds[number].setdefault(target.pid, {})[probe] = record
                times[number] = times[number] if times[number] is not None else at
    told = _of_host([piece for of in (host, None) for piece in whole.get(of, ())])
    start = next((at for at in times if at is not None), 0.0)
    at_s = -APART_S
    for seen, at in zip(rounds, times, strict=True):
        at_s = max(at - start, at_s) if at is not None else at_s + APART_S
        yield Snapshot(host, at_s, _iso(at), tuple(_evidence(*rank, seen) for rank in ranks), told, tier="examine")


def _of_host(pieces: Sequence[Piece]) -> dict[str, Any]:
    """What was said of a host, by probe: the newest, and of its logs all."""
    told = {piece.probe: piece.record for piece in pieces}
    logs = [piece.record for piece in pieces if isinstance(piece.record, Logs)]
    return told | ({"logs": merged(logs)} if logs else {})


def _evidence(target: Target, one: _Rank, seen: Mapping[int, dict[str, Any]]) -> RankEvidence:
    from hangdoc.system.exits import format_exit

    records = {**seen.get(target.pid, {}), "aftermath": Aftermath(tuple(sorted(one.looks)))}
    if one.end is None:
        return RankEvidence(target, None, records)
    return RankEvidence(target, False, records, format_exit(one.end), one.end)


def _told_twice(end: End, other: End) -> End:
    """An end as two sources tell it: what the kernel said of it is kept."""
    return replace(end, oom_kills=end.oom_kills or other.oom_kills, kernel=(*end.kernel, *other.kernel))


def _followed(one: _Rank, end: End) -> bool:
    """In a job of which a rank waited until a timeout: it ended only because that rank did, or it waited as well.

    As it was before that it is to be judged.
    """
    told = end.signal == signal.SIGTERM or _torn_down(one)  # by its launcher
    return told or ((bool(end.code) or end.signal in _CRASHES) and _says(one, WAITED | LOST))


def _says(one: _Rank, kinds: frozenset[str]) -> bool:
    logs = [record for _, record in one.looks.get("logs", ()) if isinstance(record, Logs)]
    return any(said.kind in kinds for log in logs for said in log.said)


def _torn_down(one: _Rank) -> bool:
    return any(TEARDOWN in said.fields for _, record in one.looks.get("logs", ()) for said in record.said)


def merged(logs: Sequence[Logs]) -> Logs:
    """Several logs of one writer as one, in order of time where every line of them has one."""
    if len(logs) == 1:
        return logs[0]
    said = [one for log in logs for one in log.said]
    if all(one.at is not None for one in said):
        said.sort(key=lambda one: one.at or 0.0)
    firsts = [log.first for log in logs if log.first is not None]
    lasts = [log.last for log in logs if log.last is not None]
    lines = sum(log.lines for log in logs)
    return Logs(tuple(said), lines, min(firsts, default=None), max(lasts, default=None))


def _iso(at: float | None) -> str:
    try:
        return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds") if at is not None else ""
    except (ValueError, OverflowError, OSError):
        return ""
