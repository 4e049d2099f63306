"""Assembles evidence from many sources into snapshots: one target per rank, one snapshot per look, one job per run."""

from __future__ import annotations

import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from msgspec.structs import replace

from hangdoc.evidence import End, RankEvidence, Snapshot, Target, limits
from hangdoc.evidence.logs import LOST, TEARDOWN, WAITED, Aftermath, Logs
from hangdoc.evidence.pieces import CONTAINER_PID, Piece
from hangdoc.evidence.placement import HostRanks, short_name, whole_names
from hangdoc.postmortem.readers import EvidenceItem
from hangdoc.redaction.records import Mask

UNKNOWN_HOST = "unknown host"
_TEARDOWN_SIGNALS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)  # crashes; teardown of threads also causes them
# The cgroup of a pod, in the kernel's line about a process that it killed (kubernetes: pkg/kubelet/cm).
_OF_POD = re.compile(r"_memcg=/kubepods[./]")
MAX_REFUSALS = 5  # refused ranks and world sizes that are reported one by one
LOOK_GAP_S = 5.0  # assumed between looks without a time

ProcessKey = tuple[int | None, str | None, int | None]  # rank; without one, host and PID
HostPieces = Mapping[str | None, Sequence[Piece]]  # host (None: the whole job) -> pieces without a process


@dataclass(slots=True)
class _ProcessEvidence:
    """The evidence of one process."""

    rank: int | None
    host: str | None = None
    pid: int | None = None
    looks: dict[str, list[tuple[float | None, Any]]] = field(default_factory=lambda: defaultdict(list))
    end: End | None = None

    def add(self, piece: Piece) -> None:
        self.host = self.host or piece.process.host
        self.pid = self.pid if self.pid is not None else piece.process.pid
        if isinstance(piece.record, End):
            self.end = _merged_end(self.end, piece.record) if self.end else piece.record
        else:
            self.looks[piece.probe].append((piece.at, piece.record))


def snapshots(items: Iterable[EvidenceItem], warn: Callable[[str], None] = lambda text: None) -> tuple[Snapshot, ...]:
    """A history as a live watch records it, without secrets; each run of a restarted job is a job of its own.

    `warn` takes a sentence for each rank or world size that is refused.
    """
    mask = Mask()
    taken: list[Snapshot] = []
    refused: dict[str, None] = {}
    runs: dict[int, list[Piece]] = defaultdict(list)
    for item in map(mask.of, items):
        if isinstance(item, Snapshot):
            taken.append(_checked_snapshot(item, refused))
        else:
            runs[item.process.run].append(_checked_piece(item, refused))
    known = _recorded_targets(taken)
    for text in refused:
        warn(text)
    made = [_run_snapshots(pieces, run if len(runs) > 1 else None, known) for run, pieces in sorted(runs.items())]
    return (*taken, *(shot for shots in made for shot in shots))


def _checked_snapshot(shot: Snapshot, refused: dict[str, None]) -> Snapshot:
    """A recorded snapshot without impossible ranks and world sizes."""
    ranks = tuple(
        rank if (target := limits.validated(rank.target)) is rank.target else replace(rank, target=target)
        for rank in shot.ranks
    )
    if all(new is old for new, old in zip(ranks, shot.ranks, strict=True)):
        return shot
    for new, old in zip(ranks, shot.ranks, strict=True):
        _note_refusal(old.target.rank, new.target.rank, old.target.world_size, new.target.world_size, refused)
    return replace(shot, ranks=ranks)


def _checked_piece(piece: Piece, refused: dict[str, None]) -> Piece:
    rank, size = limits.valid_rank(piece.process.rank), limits.valid_world_size(piece.world_size)
    if rank == piece.process.rank and size == (piece.world_size or None):
        return piece
    _note_refusal(piece.process.rank, rank, piece.world_size, size, refused)
    return replace(piece, process=replace(piece.process, rank=rank), world_size=size)


def _note_refusal(
    rank: int | None, believed: int | None, size: int | None, world: int | None, refused: dict[str, None]
) -> None:
    """Record which number was refused; of many, the first few."""
    for what, given, kept in (("rank", rank, believed), ("world size", size, world)):
        if given != kept and len(refused) < MAX_REFUSALS:
            number = str(given) if abs(given or 0) < 10**18 else "a number of more than 18 digits"
            refused[f"{what} {number} is ignored: no job has more than {limits.MAX_RANKS:,} ranks"] = None


def _recorded_targets(taken: Sequence[Snapshot]) -> dict[int, Target]:
    """The targets in recordings of a single job, by rank; other evidence of these ranks is merged into them."""
    jobs = {rank.target.job for shot in taken for rank in shot.ranks}
    if len(jobs) != 1:
        return {}
    return {rank.target.rank: rank.target for shot in taken for rank in shot.ranks if rank.target.rank is not None}


def _run_snapshots(pieces: Sequence[Piece], run: int | None, known: Mapping[int, Target]) -> list[Snapshot]:
    pieces = _of_lone_ranks(_of_killed_container(_on_whole_hosts(pieces)))
    job, launcher = (next((v for p in pieces if (v := getattr(p, name))), None) for name in ("job", "launcher"))
    size = max((piece.world_size for piece in pieces if piece.world_size), default=None)
    name = (job or "none") + (f" (restart {run})" if run is not None else "")
    hosts: dict[str, list[tuple[Target, _ProcessEvidence]]] = defaultdict(list)
    processes = _by_process(pieces)
    if any(_logged(process, WAITED) for process in processes):
        aborts: set[End] = set()
        for process in processes:
            if process.end and _is_consequence(process, process.end):
                aborts |= {process.end} if process.end.signal == signal.SIGABRT else set()
                process.end = None
        for process in processes if aborts else ():
            if process.end in aborts and not process.looks.get("logs"):
                process.end = None  # a launcher's line names it beside one that timed out
    for process in processes:
        pid = process.pid if process.pid is not None else -1 - (process.rank or 0)
        target = Target(
            pid, 0, process.host or UNKNOWN_HOST, process.rank, world_size=size, job=name, launcher=launcher
        )
        if process.rank is not None:
            target = known.get(process.rank, target)
        hosts[target.host].append((target, process))
    host_pieces: dict[str | None, list[Piece]] = defaultdict(list)
    for piece in pieces:
        if piece.process.rank is None and piece.process.pid is None:
            host_pieces[piece.process.host].append(piece)
    for host in host_pieces.keys() - hosts.keys() - {None}:
        hosts[host or UNKNOWN_HOST] = []
    hosts = hosts or {UNKNOWN_HOST: []}
    return [shot for host, own in hosts.items() for shot in _host_snapshots(host, own, host_pieces)]


def _on_whole_hosts(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """The pieces with one name for each host: a person calls `train-worker-1` `worker-1`, if there is no other one."""
    hosts = {host for piece in pieces if (host := piece.process.host)}
    whole = whole_names(hosts, hosts)
    if not whole:
        return pieces
    return [
        replace(piece, process=replace(piece.process, host=whole[host]))
        if (host := piece.process.host) and host in whole
        else piece
        for piece in pieces
    ]


def _of_killed_container(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """The pieces, where the kernel's kill of a process in a pod and the only container that ended by it are one death.

    Kubernetes knows the pod, and the log of the node only the process.
    """
    ends = [(one.process, one.record) for one in pieces if isinstance(one.record, End) and one.record.oom_kills]
    dead = [(process, end) for process, end in ends if process.rank is None]
    killed = {process for process, end in dead if any(_OF_POD.search(line) for line in end.kernel)}
    containers = {process for process, _ in dead if process.pid == CONTAINER_PID} - killed
    if len(killed) != 1 or len(containers) != 1:
        return pieces
    (container,), (process,) = containers, killed
    one = replace(container, pid=process.pid)
    return [replace(piece, process=one) if piece.process in (container, process) else piece for piece in pieces]


def _of_lone_ranks(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """The pieces, where a process of which there are stacks is the only rank of its host, and no other one has any."""
    lone = {
        host: ranks[0]
        for piece in pieces
        if isinstance(piece.record, HostRanks)
        for host, ranks in piece.record.ranks.items()
        if len(ranks) == 1
    }
    dumped: dict[str, set[int | None]] = defaultdict(set)
    for piece in pieces if lone else ():
        if piece.probe == "stacks" and piece.process.host:
            dumped[short_name(piece.process.host)].add(piece.process.pid if piece.process.rank is None else None)
    ranks = {(host, pids.pop()): lone[host] for host, pids in dumped.items() if host in lone and len(pids) == 1}
    return [
        replace(piece, process=replace(piece.process, rank=ranks[key]))
        if piece.process.pid is not None
        and (key := (short_name(piece.process.host or ""), piece.process.pid)) in ranks
        and piece.process.rank is None
        else piece
        for piece in pieces
    ]


def _by_process(pieces: Sequence[Piece]) -> list[_ProcessEvidence]:
    """One entry per process; PID-only pieces join the rank known for that PID."""
    ranks_of_pid: dict[int, set[int]] = defaultdict(set)
    for piece in pieces:
        if piece.process.rank is not None and piece.process.pid is not None:
            ranks_of_pid[piece.process.pid].add(piece.process.rank)
    found: dict[ProcessKey, _ProcessEvidence] = {}
    for piece in pieces:
        rank, pid = piece.process.rank, piece.process.pid
        if rank is None and pid is None:
            continue
        if rank is None and pid is not None and len(ranks := ranks_of_pid.get(pid, set())) == 1:
            (rank,) = ranks
        key: ProcessKey = (rank, None, None) if rank is not None else (None, piece.process.host, pid)
        found.setdefault(key, _ProcessEvidence(rank)).add(piece)
    return list(found.values())


def _host_snapshots(
    host: str, processes: Sequence[tuple[Target, _ProcessEvidence]], host_pieces: HostPieces
) -> Iterator[Snapshot]:
    """One snapshot per look: the k-th look at every rank of a host is in its k-th snapshot."""
    rounds: list[dict[int, dict[str, Any]]] = [{}]
    times: list[float | None] = [None]
    for target, process in processes:
        for probe, looks in process.looks.items():
            if probe == "logs":  # one log, split over several files
                looks = [(None, merge_logs([record for _, record in looks]))]
            for number, (at, record) in enumerate(looks):
                if number == len(rounds):
                    rounds.append({})
                    times.append(None)
                rounds[number].setdefault(target.pid, {})[probe] = record
                times[number] = times[number] if times[number] is not None else at
    records = _host_records([piece for of in (host, None) for piece in host_pieces.get(of, ())])
    start = next((at for at in times if at is not None), 0.0)
    at_s = -LOOK_GAP_S
    for seen, at in zip(rounds, times, strict=True):
        at_s = max(at - start, at_s) if at is not None else at_s + LOOK_GAP_S
        ranks = tuple(_rank_evidence(target, process, seen) for target, process in processes)
        yield Snapshot(host, at_s, _iso(at), ranks, records, tier="examine")


def _host_records(pieces: Sequence[Piece]) -> dict[str, Any]:
    """The records of a host by probe: the newest one, and its logs merged."""
    records = {piece.probe: piece.record for piece in pieces}
    logs = [piece.record for piece in pieces if isinstance(piece.record, Logs)]
    return records | ({"logs": merge_logs(logs)} if logs else {})


def _rank_evidence(target: Target, process: _ProcessEvidence, seen: Mapping[int, dict[str, Any]]) -> RankEvidence:
    from hangdoc.system.exits import format_exit

    records = {**seen.get(target.pid, {}), "aftermath": Aftermath(tuple(sorted(process.looks)))}
    if process.end is None:
        return RankEvidence(target, None, records)
    return RankEvidence(target, False, records, format_exit(process.end), process.end)


def _merged_end(end: End, other: End) -> End:
    """Merge the same exit from two sources; kernel evidence of both is kept."""
    return replace(end, oom_kills=end.oom_kills or other.oom_kills, kernel=(*end.kernel, *other.kernel))


def _is_consequence(process: _ProcessEvidence, end: End) -> bool:
    """True if another failure caused the exit: the launcher tore it down, or it timed out or lost its peer.

    Only for jobs in which a rank waited until a timeout. Such a rank is judged by its state before the exit.
    """
    torn_down = end.signal == signal.SIGTERM or _torn_down(process)  # by the launcher
    return torn_down or ((bool(end.code) or end.signal in _TEARDOWN_SIGNALS) and _logged(process, WAITED | LOST))


def _logged(process: _ProcessEvidence, kinds: frozenset[str]) -> bool:
    logs = [record for _, record in process.looks.get("logs", ()) if isinstance(record, Logs)]
    return any(event.kind in kinds for log in logs for event in log.said)


def _torn_down(process: _ProcessEvidence) -> bool:
    return any(TEARDOWN in event.fields for _, record in process.looks.get("logs", ()) for event in record.said)


def merge_logs(logs: Sequence[Logs]) -> Logs:
    """Merge logs of one process, sorted by time if every event has one."""
    if len(logs) == 1:
        return logs[0]
    events = [event for log in logs for event in log.said]
    if all(event.at is not None for event in events):
        events.sort(key=lambda event: event.at or 0.0)
    firsts = [log.first for log in logs if log.first is not None]
    lasts = [log.last for log in logs if log.last is not None]
    lines = sum(log.lines for log in logs)
    return Logs(tuple(events), lines, min(firsts, default=None), max(lasts, default=None))


def _iso(at: float | None) -> str:
    try:
        return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds") if at is not None else ""
    except (ValueError, OverflowError, OSError):
        return ""
