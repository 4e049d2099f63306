"""Sources of snapshots: the ranks of this host, or of a fleet (`hangdoc.fleet`)."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from hangdoc.analysis import Key
from hangdoc.discovery.dead_ranks import match_zombies
from hangdoc.discovery.ranks import Discovery, discover, same_process
from hangdoc.evidence import Snapshot, Target, Unseen
from hangdoc.introspect.joining import joins_children
from hangdoc.redaction.records import masked
from hangdoc.system import procfs
from hangdoc.watch.sampler import Sampler
from probes import Tier

OPT_OUT = "HANGDOC"  # set to `off`, this environment variable keeps hangdoc away from a job
RESTARTS = 4  # of a living job whose dead ranks are kept: an elastic job may restart for weeks


class Source(Protocol):
    """What a session needs from a source."""

    @property
    def targets(self) -> Sequence[Target]:
        """The watched ranks."""

    def round(self, tier: Tier, still: Collection[Key] = ()) -> Sequence[Snapshot]:
        """One observation of every rank, a snapshot from each host. Ranks in `still` may be paused briefly."""

    def rediscover(self) -> None:
        """Look for new ranks; known ranks stay, so their exit is noticed."""

    def forget(self, job: str) -> None:
        """Stop watching the ranks of a job."""

    def lost(self) -> Mapping[str, str]:
        """Lost hosts, with the reason."""

    def wait(self, until_s: float) -> None:
        """Sleep until this instant (time.monotonic()), or until a look is worth it."""


@dataclass(slots=True)
class LocalSource:
    """The ranks of this host."""

    pids: tuple[int, ...] = ()  # empty: every rank
    sampler: Sampler = field(default_factory=lambda: Sampler(platform.node(), ()))
    below: bool = False  # only ranks below `pids`, see `discover`
    slurm: str | None = None  # job ID: ranks of another Slurm job are not watched
    skip: frozenset[int] = frozenset()  # PIDs that another agent watches
    opt_out: bool = True  # respect the wish of a job to be left alone (OPT_OUT)
    admit: Callable[[Target, Mapping[str, str]], bool] | None = None  # by target and environment; None: every rank
    problems: tuple[Unseen, ...] = ()  # why ranks were not found in the first search
    doubts: tuple[Unseen, ...] = ()  # see `Discovery`
    starting: tuple[int, ...] = ()  # likewise

    def find(self) -> LocalSource:
        """Look for the ranks; there may be none."""
        found = self._discover()
        self.sampler.targets = tuple(filter(self._ours, _all(found)))
        self.problems, self.doubts, self.starting = found.problems, found.doubts, found.starting
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
        discovery = self._discover()
        found, self.doubts = tuple(filter(self._ours, discovery.targets)), discovery.doubts
        fresh = [t for t in found if (t.pid, t.start_ticks) not in known]
        if fresh:
            here = {(t.job, t.rank) for t in fresh}
            kept = [t for t in self.targets if t.pid > 0 or (t.job, t.rank) not in here]
            agents = {t.pid for t in found if t.role == "agent"}  # a launcher with ranks no longer waits
            parents = {t.launcher_pid for t in fresh}  # one was looked at before it had started any
            kept = [t for t in kept if (t.role == "rank" and t.pid not in parents) or t.pid in agents]
            self.sampler.targets = (*_remembered(kept, fresh), *fresh)

    def _discover(self) -> Discovery:
        return masked(discover(self.pids or None, self.below, joins_children))

    def _ours(self, target: Target) -> bool:
        """True unless the rank belongs to another Slurm job, opted out, or is not admitted."""
        if target.pid <= 0:
            return True
        theirs = procfs.environ(target.pid) or {}
        if self.slurm and theirs.get("SLURM_JOB_ID", self.slurm) != self.slurm:
            return False
        if self.opt_out and not self.pids and theirs.get(OPT_OUT, "").lower() == "off":
            return False
        return self.admit is None or self.admit(target, theirs)

    def forget(self, job: str) -> None:
        self.sampler.targets = tuple(t for t in self.targets if t.job != job)

    def drop(self, pids: Collection[int]) -> None:
        """Stop watching these processes."""
        self.sampler.targets = tuple(t for t in self.targets if t.pid not in pids)

    def lost(self) -> dict[str, str]:
        return {}

    def wait(self, until_s: float) -> None:
        self.sampler.exits.wait(until_s)


def _remembered(kept: Sequence[Target], fresh: Sequence[Target]) -> list[Target]:
    """The targets without the dead of more than RESTARTS restarts; the newest of each job stay."""
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
