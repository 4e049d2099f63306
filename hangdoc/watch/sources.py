"""Where snapshots come from: the ranks of this host, or those of a fleet (`hangdoc.fleet`)."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from hangdoc.analysis import Key
from hangdoc.discovery.dead_ranks import match_zombies
from hangdoc.discovery.ranks import Discovery, discover, same_process
from hangdoc.evidence import Snapshot, Target, Unseen
from hangdoc.redaction.records import masked
from hangdoc.system import procfs
from hangdoc.watch.sampler import Sampler
from probes import Tier

RESTARTS = 4  # of a job whose dead ranks are remembered while it lives: an elastic job may restart for weeks


class Source(Protocol):
    """What a session needs of those who observe."""

    @property
    def targets(self) -> Sequence[Target]:
        """The ranks that are watched."""

    def round(self, tier: Tier, still: Collection[Key] = ()) -> Sequence[Snapshot]:
        """One observation of every rank, a snapshot a host; ranks in `still` may be paused for an instant."""

    def rediscover(self) -> None:
        """Look for new ranks; known ones stay, so that an exit is noticed."""

    def forget(self, job: str) -> None:
        """Watch the ranks of a job no longer."""

    def lost(self) -> Mapping[str, str]:
        """The hosts that are not seen now, and why."""

    def wait(self, until_s: float) -> None:
        """Sleep until that instant of this process's monotonic clock, or until something is worth a look."""


@dataclass(slots=True)
class LocalSource:
    """The ranks of this host; `pids` empty: every one."""

    pids: tuple[int, ...] = ()
    sampler: Sampler = field(default_factory=lambda: Sampler(platform.node(), ()))
    slurm: str | None = None  # a Slurm job: ranks that say they are of another are not watched
    skip: frozenset[int] = frozenset()  # PIDs that somebody else watches
    problems: tuple[Unseen, ...] = ()  # why ranks were not found, when they were looked for first
    doubts: tuple[Unseen, ...] = ()  # see `Discovery`

    def find(self) -> LocalSource:
        """Look for the ranks; finds none where there are none."""
        found = masked(discover(self.pids or None))
        self.sampler.targets = tuple(filter(self._ours, _all(found)))
        self.problems, self.doubts = found.problems, found.doubts
        return self

    @property
    def targets(self) -> Sequence[Target]:
        return self.sampler.targets

    def round(self, tier: Tier, still: Collection[Key] = ()) -> tuple[Snapshot]:
        others = tuple(target for target in self.targets if target.pid in self.skip)
        self.sampler.targets = tuple(target for target in self.targets if target.pid not in self.skip)
        shot = self.sampler.round(tier, [pid for _, pid in still])
        self.sampler.targets = (*self.sampler.targets, *others)
        return (replace(shot, unseen=(*self.doubts, *shot.unseen)) if self.doubts else shot,)

    def rediscover(self) -> None:
        """New ranks appear with a restart or another job."""
        known = {(t.pid, t.start_ticks) for t in self.targets}
        discovery = masked(discover(self.pids or None))
        found, self.doubts = tuple(filter(self._ours, discovery.targets)), discovery.doubts
        fresh = [t for t in found if (t.pid, t.start_ticks) not in known]
        if fresh:
            here = {(t.job, t.rank) for t in fresh}
            kept = [t for t in self.targets if t.pid > 0 or (t.job, t.rank) not in here]
            agents = {t.pid for t in found if t.role == "agent"}  # one that has its ranks waits no more
            kept = [t for t in kept if t.role == "rank" or t.pid in agents]
            self.sampler.targets = (*_remembered(kept, fresh), *fresh)

    def _ours(self, target: Target) -> bool:
        theirs = procfs.environ(target.pid) if self.slurm and target.pid > 0 else None
        return theirs is None or theirs.get("SLURM_JOB_ID", self.slurm) == self.slurm

    def forget(self, job: str) -> None:
        self.sampler.targets = tuple(t for t in self.targets if t.job != job)

    def drop(self, pids: Collection[int]) -> None:
        """Watch these no longer."""
        self.sampler.targets = tuple(t for t in self.targets if t.pid not in pids)

    def lost(self) -> dict[str, str]:
        return {}

    def wait(self, until_s: float) -> None:
        self.sampler.exits.wait(until_s)


def _remembered(kept: Sequence[Target], fresh: Sequence[Target]) -> list[Target]:
    """Without the dead of more than RESTARTS restarts: of each job the newest stay."""
    dead = [t for t in sorted(kept, key=lambda t: t.start_ticks) if t.pid > 0 and same_process(t) is False]
    lost = {(t.pid, t.start_ticks) for t in dead}
    living = Counter(t.job for t in (*kept, *fresh) if (t.pid, t.start_ticks) not in lost)
    left = Counter(t.job for t in dead)
    gone = set[tuple[int, int]]()
    for target in dead:
        if left[target.job] > RESTARTS * max(1, living[target.job]):
            left[target.job] -= 1
            gone.add((target.pid, target.start_ticks))
    return [t for t in kept if (t.pid, t.start_ticks) not in gone]


def _all(found: Discovery) -> tuple[Target, ...]:
    return (*found.targets, *match_zombies(found.absent, found.targets))
