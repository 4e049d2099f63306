"""The history of each watched job: the last rounds of snapshots, and the last state of each rank that died."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from hangdoc.analysis import Key
from hangdoc.evidence import AGENT, Snapshot, Target
from hangdoc.evidence.snapshot import of_job
from hangdoc.fleet.transports import FleetOptions
from hangdoc.recording.recorder import Recorder
from hangdoc.watch.sources import Source
from probes import Tier

HISTORY_ROUNDS = 40  # kept for each job: the window of shares and changes
HISTORY_S = 1200.0  # likewise: what was before says nothing about now
MIN_ROUNDS = 5  # kept even for the largest job
MAX_SAMPLES = 8_000  # of single ranks, kept for each job: bounds memory and the CPU time of a verdict


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What to watch and how."""

    pids: tuple[int, ...] = ()  # empty: every training rank
    record: Path | None = None
    playbooks: tuple[Path, ...] = ()
    interval_s: float = 1.0
    fleet: FleetOptions | None = None  # None: this host only
    ask: frozenset[str] = frozenset()  # what probes may send over the network (`probes.ASKABLE`)
    incidents: Path | None = None  # root of the store of incidents; None: the live watch keeps none
    wait_s: float = 0.0  # for the ranks of `pids` to start
    below: bool = False  # only ranks below `pids`, or those of the fleet, which may come late: `pids` start the job


@dataclass(frozen=True, slots=True)
class _Round:
    """One round of one job: a snapshot from each host."""

    number: int
    at_s: float  # time.monotonic() here; a snapshot has the clock of its host
    snapshots: tuple[Snapshot, ...]


class Session:
    """Takes rounds from a source and keeps the history of each job. It judges nothing."""

    def __init__(self, source: Source, keep: Recorder | None) -> None:
        self.source = source
        self.keep = keep
        self.history: dict[str, deque[_Round]] = {}
        self.at_s = 0.0  # of the last round, time.monotonic()
        self.rounds_kept = HISTORY_ROUNDS  # of each job, at most
        self._rounds = 0
        self._died: dict[str, dict[Key, tuple[int, Snapshot]]] = {}  # job -> rank -> round and snapshot before it died
        self._update_jobs()

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(self.history)

    def round_count(self, job: str) -> int:
        """Rounds kept for a job."""
        return len(self.history[job])

    def snapshots(self, job: str, since_s: float = 0.0) -> tuple[Snapshot, ...]:
        """The history of a job from `since_s` on, oldest first, including the last state of each rank that died."""
        history = self.history[job]
        first = history[0].number if history else 0
        lost = {shot.host for shot in history[-1].snapshots if is_lost(shot)} if history else set()
        died = (shot for number, shot in self._died.get(job, {}).values() if number < first)
        # Old snapshots of a lost host are stale, and so is the old loss of a host that is back.
        past = (shot for earlier in list(history)[:-1] if earlier.at_s >= since_s for shot in earlier.snapshots)
        current = [shot for shot in past if shot.host not in lost and not is_lost(shot)]
        current += history[-1].snapshots if history else ()
        return (*died, *current)

    def look(self) -> None:
        """One round over every rank, without pausing any."""
        self._add(self.source.round(Tier.LOOK))

    def look_closer(self, ranks: Collection[Key] = ()) -> None:
        """One round with every probe, which may briefly pause `ranks` for their native stacks."""
        self._add(self.source.round(Tier.EXAMINE, ranks))

    def wait(self, seconds: float) -> None:
        """Sleep until `seconds` after the last round, or until a rank exits."""
        self.source.wait(self.at_s + seconds)

    def rediscover(self) -> None:
        """Look for new ranks; ranks that exited stay until their job has ended."""
        self.source.rediscover()
        self._update_jobs()

    def forget(self, job: str) -> None:
        self.history.pop(job, None)
        self._died.pop(job, None)
        self.source.forget(job)

    def lost(self) -> Mapping[str, str]:
        """Lost hosts, with the reason."""
        return self.source.lost()

    def _update_jobs(self) -> None:
        """A history for each job; shorter for a large job, to bound memory."""
        ranks = Counter(target.job for target in self.source.targets)
        for job, count in ranks.items():
            length = max(MIN_ROUNDS, min(self.rounds_kept, MAX_SAMPLES // count))
            history = self.history.get(job)
            if history is None or history.maxlen != length:
                self.history[job] = deque(history or (), maxlen=length)

    def _add(self, shots: Sequence[Snapshot]) -> None:
        self.at_s = time.monotonic()
        self._rounds += 1
        self._update_jobs()
        for job, history in self.history.items():
            died = self._died.setdefault(job, {})
            died.update(_last_of_dead(history, shots, frozenset(died)))
            for key in _replaced(died, shots):
                del died[key]
            parts = (of_job(shot, job) for shot in shots)
            relevant = tuple(part for part in parts if part.ranks or part.unseen or part.elsewhere)
            history.append(_Round(self._rounds, self.at_s, relevant))
            while len(history) > MIN_ROUNDS and history[0].at_s < self.at_s - HISTORY_S:
                history.popleft()
        if self.keep:
            for shot in shots:
                self.keep.snapshot(shot)


def is_lost(shot: Snapshot) -> bool:
    """True if the snapshot only gives the reason why its host is lost."""
    return not shot.ranks and any(lack.probe == AGENT for lack in shot.unseen)


def _last_of_dead(
    history: Sequence[_Round], shots: Sequence[Snapshot], known: Collection[Key]
) -> dict[Key, tuple[int, Snapshot]]:
    """The last snapshot with stacks of each rank that has died since the previous round."""
    dead = {(rank.target.host, rank.target.pid) for shot in shots for rank in shot.ranks if rank.alive is False}
    gone = dead - set(known)
    found: dict[Key, tuple[int, Snapshot]] = {}
    for number, before in ((past.number, shot) for past in history for shot in past.snapshots) if gone else ():
        for rank in before.ranks:
            key = rank.target.host, rank.target.pid
            if key in gone and "stacks" in rank.records:
                found[key] = number, replace(before, ranks=(rank,), unseen=())
    return found


def _replaced(died: Collection[Key], shots: Sequence[Snapshot]) -> list[Key]:
    """Dead ranks that their host no longer reports, because a restart replaced them."""
    reported = {shot.host: {rank.target.pid for rank in shot.ranks} for shot in shots if shot.ranks}
    return [(host, pid) for host, pid in died if host in reported and pid not in reported[host]]


def jobs_of(targets: Sequence[Target]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(target.job for target in targets))
