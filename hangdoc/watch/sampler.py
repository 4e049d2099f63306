"""Samples the ranks of this host: runs the probes that a round allows and collects their records."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from msgspec import structs

from hangdoc.discovery.ranks import same_process
from hangdoc.evidence import ProcessGroups, RankEvidence, Snapshot, Target, Unseen
from hangdoc.evidence.memory import share
from hangdoc.redaction.records import Mask
from hangdoc.system import procfs
from hangdoc.system.exits import ExitWatcher, format_exit
from probes import Observation, Probe, Request, Tier, load


@dataclass(slots=True)
class Sampler:
    """Observes the same ranks round after round.

    Within a round, probes see unmasked records, because later probes open files by names from earlier ones. The
    snapshot that a round returns is masked.

    Probes marked `steady` (their records hardly change) run in the first allowed round and on examination.
    """

    host: str
    targets: Sequence[Target]
    probes: Sequence[Probe] = field(default_factory=load)
    exits: ExitWatcher = field(default_factory=ExitWatcher)
    ask: frozenset[str] = frozenset()  # what probes may send over the network (`probes.ASKABLE`)
    _asked: set[tuple[str, int, int]] = field(default_factory=set)  # steady probe, PID and start time of living ranks
    _previous: Snapshot | None = None  # unmasked
    _mask: Mask = field(default_factory=Mask)

    def round(self, tier: Tier, still: Iterable[int] = ()) -> Snapshot:
        """One observation of every rank. Never raises: unreadable data is reported as unseen."""
        self.exits.watch(self.targets)
        alive = {_process(target): self._alive(target) for target in self.targets}
        living = [target for target in self.targets if alive[_process(target)] is not False]
        self._asked &= {(probe.name, *_process(target)) for probe in self.probes if probe.steady for target in living}
        at_s, now = time.monotonic(), datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        records: dict[int, dict[str, Any]] = {target.pid: {} for target in living}
        previous = _only(self._previous, set(map(_process, living)))
        before = {rank.target.pid: rank.records for rank in previous.ranks} if previous else {}
        of_host: dict[str, Any] = {}
        unseen: list[Unseen] = []
        for probe in self.probes:
            asked = self._wanted(probe, tier, living)
            if not asked:
                continue
            seen = _observe(probe, Request(asked, tier, frozenset(still), previous, records, self.ask))
            for pid, record in seen.by_pid.items():
                records[pid][probe.name] = share(record, before.get(pid, {}).get(probe.name))
            if seen.host is not None:
                of_host[probe.name] = seen.host
            unseen += seen.unseen
        of_rank = {_process(target): records[target.pid] for target in living if not _is_reused(target)}
        self.targets = numbered(self.targets, {process: seen.get("groups") for process, seen in of_rank.items()})
        ranks = tuple(self._evidence(t, alive[_process(t)], of_rank.get(_process(t), {})) for t in self.targets)
        self._previous = Snapshot(self.host, at_s, now, ranks, of_host, tuple(unseen), tier.name.lower())
        self._mask.again()
        return self._mask.of(self._previous)

    def _alive(self, target: Target) -> bool | None:
        runs = self.exits.is_running(target)
        return same_process(target) if runs is None else runs

    def _evidence(self, target: Target, alive: bool | None, records: dict[str, Any]) -> RankEvidence:
        end = self.exits.end(target)
        return RankEvidence(target, alive, records, format_exit(end) if end else None, end)

    def _wanted(self, probe: Probe, tier: Tier, living: Sequence[Target]) -> list[Target]:
        if probe.tier > tier:
            return []
        if not probe.steady or tier >= Tier.EXAMINE:
            return list(living)
        fresh = [target for target in living if (probe.name, *_process(target)) not in self._asked]
        self._asked.update((probe.name, *_process(target)) for target in fresh)
        return fresh


def _process(target: Target) -> tuple[int, int]:
    """What identifies a process of this host: PIDs come again, in a small PID namespace within seconds."""
    return target.pid, target.start_ticks


def _is_reused(target: Target) -> bool:
    """True if another process has the PID now: what was read under it may be of that one."""
    found = procfs.stat(target.pid)
    return found is not None and found.start_ticks != target.start_ticks


def _only(shot: Snapshot | None, processes: Collection[tuple[int, int]]) -> Snapshot | None:
    """The snapshot with the ranks of these processes."""
    if shot is None or all(_process(rank.target) in processes for rank in shot.ranks):
        return shot
    return structs.replace(shot, ranks=tuple(rank for rank in shot.ranks if _process(rank.target) in processes))


def _observe(probe: Probe, request: Request) -> Observation:
    """Run a probe. If it fails, against its contract, only the rank that it fails on loses evidence."""
    try:
        return probe.observe(request)
    except Exception as error:
        if probe.scope == "rank" and len(request.targets) > 1:
            half = len(request.targets) // 2
            parts = (request.targets[:half], request.targets[half:])
            one, other = (_observe(probe, replace(request, targets=part)) for part in parts)
            return Observation({**one.by_pid, **other.by_pid}, unseen=(*one.unseen, *other.unseen))
        why = f"the probe failed ({type(error).__name__}: {str(error)[:200]}); please report this"
        at = request.targets[0] if probe.scope == "rank" and request.targets else None
        lack = Unseen(probe.name, why, at.rank, at.pid, at.host) if at else Unseen(probe.name, why)
        return Observation({}, unseen=(lack,))


def numbered(targets: Sequence[Target], groups: Mapping[tuple[int, int], Any]) -> tuple[Target, ...]:
    """The targets, completed with what their processes know (records of probe `groups`, by PID and start time).

    The launch takes precedence. A rank number that another rank of the job has is not used: the two are in separate
    process groups.
    """
    completed = [_completed(target, groups.get(_process(target))) for target in targets]
    often = Counter((target.job, target.rank) for target in completed)
    return tuple(
        new if new.rank == old.rank or often[new.job, new.rank] == 1 else old
        for old, new in zip(targets, completed, strict=True)
    )


def _completed(target: Target, record: Any) -> Target:
    if not isinstance(record, ProcessGroups) or target.role == "agent":
        return target
    deduced = target.rank is None or target.launcher == "spawn"  # from the order of creation
    return structs.replace(
        target,
        rank=record.rank if deduced and record.rank is not None else target.rank,
        world_size=record.world_size if record.world_size and (deduced or not target.world_size) else target.world_size,
        local_rank=target.local_rank if target.local_rank is not None else record.local_rank,
        master=target.master or record.master,
    )
