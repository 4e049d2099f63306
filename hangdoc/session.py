"""The ranks that are watched: their samples, the history of each job, and what a glance at its facts tells."""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hangdoc.evidence import Snapshot, Target
from hangdoc.facts import Facts
from hangdoc.judge import Judge
from hangdoc.recording import Recorder
from hangdoc.sampler import Sampler, of_job
from hangdoc.verdict import Verdict
from probes import Tier

HISTORY = 40  # snapshots kept a job: what the shares and changes are judged over
PATIENCE_S = 4.0  # what stands still for less may be an ordinary pause
EXAMINATIONS = 3  # rounds: native stacks of many ranks take more than one


@dataclass(frozen=True, slots=True)
class Options:
    """What to watch and how; `pids` empty: every training rank on this host."""

    pids: tuple[int, ...] = ()
    record: Path | None = None
    playbooks: tuple[Path, ...] = ()
    interval_s: float = 1.0


class Session:
    """The targets, the sampler and the history of each job."""

    def __init__(self, targets: Sequence[Target], keep: Recorder | None) -> None:
        self.keep = keep
        self.sampler = Sampler(platform.node(), tuple(targets))
        self.history: dict[str, deque[Snapshot]] = {job: deque(maxlen=HISTORY) for job in jobs_of(targets)}
        self.at_s = 0.0
        self._died: dict[str, dict[int, Snapshot]] = {}  # job -> PID -> what was seen of it last

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(self.history)

    def facts(self, job: str, judge: Judge) -> Facts:
        """The facts of a job as it was seen so far; what was seen last of a rank that died is never forgotten."""
        history = self.history[job]
        forgotten = (shot for shot in self._died.get(job, {}).values() if shot.at_s < history[0].at_s)
        return judge.facts((*forgotten, *history))

    def look(self) -> None:
        """One round over every rank, without pausing any."""
        self._add(self.sampler.round(Tier.LOOK))

    def inspect(self) -> None:
        """One round that sees all there is to see, still without pausing any rank."""
        self._add(self.sampler.round(Tier.EXAMINE))

    def examine(self, job: str, judge: Judge, facts: Facts) -> Verdict:
        """Look closely at what stands still, then judge; a stall that ended meanwhile is judged as what it is."""
        asked: set[int] = set()
        for _ in range(EXAMINATIONS):
            asked.update(_one_of_each(facts))
            self._add(self.sampler.round(Tier.EXAMINE, asked))
            facts = self.facts(job, judge)
            if asked.issuperset(_one_of_each(facts)):
                break
        return judge.verdict(facts)

    def wait(self, seconds: float) -> None:
        """Sleep until so long after the last round, or until a rank ends: that is worth a look at once."""
        self.sampler.exits.wait(self.at_s + seconds)

    def retarget(self, targets: Sequence[Target]) -> None:
        """Watch other ranks from now on; those that ended stay until their job has ended."""
        self.sampler.targets = tuple(targets)
        for job in jobs_of(targets):
            self.history.setdefault(job, deque(maxlen=HISTORY))

    def forget(self, job: str) -> None:
        self.history.pop(job, None)
        self._died.pop(job, None)
        self.sampler.targets = tuple(t for t in self.sampler.targets if t.job != job)

    def _add(self, shot: Snapshot) -> None:
        self.at_s = shot.at_s
        for job, history in self.history.items():
            died = self._died.setdefault(job, {})
            died.update(_last_of(history, shot, frozenset(died)))
            history.append(of_job(shot, job))
        if self.keep:
            self.keep.snapshot(shot)


def _last_of(history: Sequence[Snapshot], shot: Snapshot, known: Collection[int]) -> dict[int, Snapshot]:
    """The last look at each rank that has died since, by PID."""
    gone = {rank.target.pid for rank in shot.ranks if rank.alive is False} - set(known)
    found: dict[int, Snapshot] = {}
    for before in history if gone else ():
        for rank in before.ranks:
            if rank.target.pid in gone and "stacks" in rank.records:
                found[rank.target.pid] = replace(before, ranks=(rank,), unseen=())
    return found


def jobs_of(targets: Sequence[Target]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(target.job for target in targets))


def stuck(facts: Facts, patience_s: float) -> bool:
    """It has stood still for so long, and somebody waits."""
    stall = facts.job.stall
    return bool(stall.stalled) and (stall.seconds or 0.0) >= patience_s


def quiet(facts: Facts) -> bool:
    """Nothing is stuck, yet a rank has done nothing for a while: what it waits for, only a closer look may tell."""
    stall = facts.job.stall
    if stall.idle and (stall.seconds or 0.0) >= PATIENCE_S:
        return True
    return any(
        rank.stack.phase == "idle" and rank.stall.still and (rank.progress.standing_s or 0.0) >= PATIENCE_S
        for rank in facts.ranks
    )


def ended(facts: Facts) -> bool:
    return all(rank.alive is False for rank in facts.ranks)


def may_be_stuck(facts: Facts) -> bool:
    """It stands still, only not long enough to say so; or a rank has just died, and the others may yet hang or end; or
    ranks wait for others that have not come."""
    dying = facts.job.exit.fault and (facts.job.exit.fault_s or PATIENCE_S) < PATIENCE_S
    return bool(facts.job.stall.stalled) or not facts.job.stall.settled or dying or facts.job.startup.pending


def _one_of_each(facts: Facts) -> list[int]:
    """PIDs whose native stacks are wanted: of the ranks that stand at one place one, since equal stacks tell once.

    Where a thread keeps the GIL, the rank stands where the others do, and another of its threads tells.
    """
    by_place = {(rank.position.side, rank.gil.stuck): rank.pid for rank in reversed(facts.ranks) if rank.stall.still}
    return list(by_place.values())
