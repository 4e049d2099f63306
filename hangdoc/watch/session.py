"""The ranks that are watched: their samples, the history of each job, and what a glance at its facts tells."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hangdoc.analysis import Key
from hangdoc.analysis.facts import Facts
from hangdoc.diagnose import Judge
from hangdoc.evidence import AGENT, Snapshot, Target
from hangdoc.fleet.transports import FleetOptions
from hangdoc.recording.recorder import Recorder
from hangdoc.verdict import Verdict
from hangdoc.watch.sampler import of_job
from hangdoc.watch.sources import Source
from probes import Tier

HISTORY = 40  # rounds kept a job: what the shares and changes are judged over
SHORTEST = 5  # of a job however large
LOOKS = 8_000  # at single ranks, kept a job: what they cost to judge, and the memory that they take, stay bounded
PATIENCE_S = 4.0  # what stands still for less may be an ordinary pause
EXAMINATIONS = 3  # rounds: native stacks of many ranks take more than one


@dataclass(frozen=True, slots=True)
class Options:
    """What to watch and how; `pids` empty: every training rank."""

    pids: tuple[int, ...] = ()
    record: Path | None = None
    playbooks: tuple[Path, ...] = ()
    interval_s: float = 1.0
    fleet: FleetOptions | None = None  # None: this host
    ask: frozenset[str] = frozenset()  # what probes may send (`probes.ASKABLE`); by default nothing


@dataclass(frozen=True, slots=True)
class _Round:
    """What was seen of one job at once, a snapshot a host."""

    number: int
    shots: tuple[Snapshot, ...]


class Session:
    """The source of what is seen, and the history of each job."""

    def __init__(self, source: Source, keep: Recorder | None) -> None:
        self.source = source
        self.keep = keep
        self.history: dict[str, deque[_Round]] = {}
        self.at_s = 0.0
        self._rounds = 0
        self._died: dict[str, dict[Key, tuple[int, Snapshot]]] = {}  # job -> rank -> round, what was seen of it last
        self._know()

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(self.history)

    def looks(self, job: str) -> int:
        """Rounds that are kept of a job."""
        return len(self.history[job])

    def facts(self, job: str, judge: Judge) -> Facts:
        """The facts of a job as it was seen so far; what was seen last of a rank that died is never forgotten."""
        history = self.history[job]
        first = history[0].number if history else 0
        lost = {shot.host for shot in history[-1].shots if is_lost(shot)} if history else set()
        forgotten = (shot for number, shot in self._died.get(job, {}).values() if number < first)
        # What a lost host showed before is no news of it; nor is, of one that is back, that it was lost.
        stale = (shot for past in list(history)[:-1] for shot in past.shots)
        shots = [shot for shot in stale if shot.host not in lost and not is_lost(shot)]
        shots += history[-1].shots if history else ()
        return judge.facts((*forgotten, *shots))

    def look(self) -> None:
        """One round over every rank, without pausing any."""
        self._add(self.source.round(Tier.LOOK))

    def inspect(self) -> None:
        """One round that sees all there is to see, still without pausing any rank."""
        self._add(self.source.round(Tier.EXAMINE))

    def examine(self, job: str, judge: Judge, still: Collection[Key]) -> Verdict:
        """Look closely at what stands still, then judge; a stall that ended meanwhile is judged as what it is."""
        asked: set[Key] = set()
        for _ in range(EXAMINATIONS):
            asked.update(still)
            self._add(self.source.round(Tier.EXAMINE, asked))
            facts = self.facts(job, judge)
            still = one_of_each(facts)
            if asked.issuperset(still):
                break
        return judge.verdict(facts)

    def wait(self, seconds: float) -> None:
        """Sleep until so long after the last round, or until a rank ends: that is worth a look at once."""
        self.source.wait(self.at_s + seconds)

    def rediscover(self) -> None:
        """Look for ranks that are new; those that ended stay until their job has ended."""
        self.source.rediscover()
        self._know()

    def forget(self, job: str) -> None:
        self.history.pop(job, None)
        self._died.pop(job, None)
        self.source.forget(job)

    def lost(self) -> Mapping[str, str]:
        """Hosts that are not seen now, and why."""
        return self.source.lost()

    def _know(self) -> None:
        """A history for each job there is; that of a large one is short, so that memory stays within bounds."""
        ranks = Counter(target.job for target in self.source.targets)
        for job, count in ranks.items():
            length = max(SHORTEST, min(HISTORY, LOOKS // count))
            history = self.history.get(job)
            if history is None or history.maxlen != length:
                self.history[job] = deque(history or (), maxlen=length)

    def _add(self, shots: Sequence[Snapshot]) -> None:
        self.at_s = time.monotonic()
        self._rounds += 1
        self._know()
        for job, history in self.history.items():
            died = self._died.setdefault(job, {})
            died.update(_last_of(history, shots, frozenset(died)))
            for key in _superseded(died, shots):
                del died[key]
            parts = (of_job(shot, job) for shot in shots)
            told = tuple(part for part in parts if part.ranks or part.unseen or part.elsewhere)
            history.append(_Round(self._rounds, told))
        if self.keep:
            for shot in shots:
                self.keep.snapshot(shot)


def is_lost(shot: Snapshot) -> bool:
    """It only says why its host is not seen."""
    return not shot.ranks and any(lack.probe == AGENT for lack in shot.unseen)


def _last_of(
    history: Sequence[_Round], shots: Sequence[Snapshot], known: Collection[Key]
) -> dict[Key, tuple[int, Snapshot]]:
    """The last look at each rank that has died since."""
    dead = {(rank.target.host, rank.target.pid) for shot in shots for rank in shot.ranks if rank.alive is False}
    gone = dead - set(known)
    found: dict[Key, tuple[int, Snapshot]] = {}
    for number, before in ((past.number, shot) for past in history for shot in past.shots) if gone else ():
        for rank in before.ranks:
            key = rank.target.host, rank.target.pid
            if key in gone and "stacks" in rank.records:
                found[key] = number, replace(before, ranks=(rank,), unseen=())
    return found


def _superseded(died: Collection[Key], shots: Sequence[Snapshot]) -> list[Key]:
    """Dead ranks that their host no longer speaks of: others have taken their place."""
    told = {shot.host: {rank.target.pid for rank in shot.ranks} for shot in shots if shot.ranks}
    return [(host, pid) for host, pid in died if host in told and pid not in told[host]]


def jobs_of(targets: Sequence[Target]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(target.job for target in targets))


def stuck(facts: Facts, patience_s: float) -> bool:
    """It has stood still for so long, and somebody waits."""
    stall = facts.job.stall
    return bool(stall.stalled) and (stall.seconds or 0.0) >= patience_s


def quiet(facts: Facts) -> bool:
    """Nothing is stuck, yet a rank has done nothing for a while, nor have bytes crossed on its connections: what it
    waits for, only a closer look may tell."""
    stall = facts.job.stall
    if stall.idle and (stall.seconds or 0.0) >= PATIENCE_S:
        return True
    return any(
        rank.stack.phase == "idle"
        and rank.stall.still
        and (rank.progress.standing_s or 0.0) >= PATIENCE_S
        and not rank.network.moving
        for rank in facts.ranks
    )


def unclear(facts: Facts) -> bool:
    """Looking once at all there is to see may tell more, though nothing is stuck."""
    slow = (rank for rank in facts.ranks if "slow" in rank.network.faults)
    return quiet(facts) or any("nics" not in rank.seen for rank in slow)  # who only receives has not looked by itself


def ended(facts: Facts) -> bool:
    return bool(facts.ranks) and all(rank.alive is False for rank in facts.ranks)


def may_be_stuck(facts: Facts) -> bool:
    """It stands still, only not long enough to say so; or a rank has just died, and the others may yet hang or end; or
    ranks wait for others that have not come."""
    dying = facts.job.exit.fault and (facts.job.exit.fault_s or PATIENCE_S) < PATIENCE_S
    return bool(facts.job.stall.stalled) or not facts.job.stall.settled or dying or facts.job.startup.pending


def one_of_each(facts: Facts) -> list[Key]:
    """The ranks whose native stacks are wanted: of the ranks that stand at one place one, since equal stacks tell once.

    Where a thread keeps the GIL, the rank stands where the others do, and another of its threads tells.
    """
    by_place = {
        (rank.position.side, rank.gil.stuck): (rank.host, rank.pid)
        for rank in reversed(facts.ranks)
        if rank.stall.still
    }
    return list(by_place.values())
