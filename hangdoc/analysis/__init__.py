"""Analysis: facts derived from evidence, per rank and for the job. Facts say what is; playbooks say what it means.

A module that defines `ANALYSIS` (see `Analysis`) adds a group of facts. `hangdoc.analysis.facts` names the groups as
playbook rules read them (`stack.phase`, `progress.cpu_share`). An analysis is a pure function of the evidence: it calls
no probe, reads no file and keeps no state.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, TypeVar

from hangdoc.evidence import RankEvidence, Snapshot

Key = tuple[str, int]  # (host, pid): one process
T = TypeVar("T")
RankT = TypeVar("RankT")
JobT = TypeVar("JobT")
_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Suspect:
    """A culprit that was not observed as a rank: one that never started, a foreign process, an unwatched host.

    A rule names a list of these under `blame`. None: unknown; `host` is a host name or an address.
    """

    rank: int | None
    pid: int | None = None
    host: str | None = None


class Analysis(ABC, Generic[RankT, JobT]):
    """One group of derived facts. A class attribute names each type of facts that it derives.

    The types are frozen dataclasses of nullable scalars and tuples. None in a field means unknown: the evidence was not
    seen. The comment of a field is its documentation for rule authors: meaning, unit, and allowed values.

    `seen_by`: the probes of which one must have seen a rank; without them, a rule takes every field of the group for
    unknown. Groups of evidence that is there only when something happened (logs, dumps, exits) name none: there,
    nothing seen means that nothing happened.
    """

    rank_facts: type[RankT] | None = None
    job_facts: type[JobT] | None = None
    seen_by: tuple[str, ...] = ()

    @abstractmethod
    def derive(self, case: Case) -> tuple[Mapping[Key, RankT], JobT]:
        """Facts by rank (for every rank of the case) and for the job. Missing evidence gives None and never raises.

        It asks the case for the facts of other analyses.
        """


class Detector(Analysis[RankT, JobT]):
    """An analysis that decides one question, with thresholds of its own: a straggler? a GIL that nobody releases?

    Several playbooks share the answer, or it takes more than a condition. Its fields: `stuck`, `late`, `blamed_for`,
    `culprits`. A detector knows no playbook and no remedy.
    """


@cache
def load() -> Mapping[type, Analysis[Any, Any]]:
    """Every analysis in this package and its subpackages, by the types of facts that it derives."""
    found: dict[type, Analysis[Any, Any]] = {}
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        analysis = getattr(importlib.import_module(module.name), "ANALYSIS", None)
        if isinstance(analysis, Analysis):
            found |= {kind: analysis for kind in (analysis.rank_facts, analysis.job_facts) if kind is not None}
    return found


class FactsCircle(RuntimeError):
    """Analyses that ask for the facts of each other: "StackFacts -> StallFacts -> StackFacts"."""

    def __init__(self, kinds: Sequence[type]) -> None:
        super().__init__(" -> ".join(kind.__name__ for kind in kinds))


@dataclass(slots=True)
class Case:
    """The evidence of one diagnosis, and the facts derived from it when they are first asked for."""

    history: Sequence[Snapshot]  # oldest first, from any number of hosts
    ranks: Mapping[Key, RankEvidence]  # newest evidence of each rank, with records carried over from earlier snapshots
    analyses: Mapping[type, Analysis[Any, Any]] = field(default_factory=load)  # by the types of facts
    _of_ranks: dict[type, Mapping[Key, Any]] = field(default_factory=dict)  # facts of ranks, by type
    _of_job: dict[type, Any] = field(default_factory=dict)  # facts of the job, by type
    _asked: list[type] = field(default_factory=list)  # types of the facts that are being derived, outermost first
    _rounds: Mapping[Key, Sequence[tuple[Snapshot, RankEvidence]]] | None = None
    _probes: frozenset[str] = field(init=False)  # probes with a record of any rank
    _kept: dict[Any, Any] = field(default_factory=dict)  # results of `once`, by name

    def __post_init__(self) -> None:
        self._probes = frozenset().union(*[rank.records for rank in self.ranks.values()])

    def facts(self, kind: type[T]) -> Mapping[Key, T]:
        """The facts of this type, of every rank; raises FactsCircle."""
        if kind not in self._of_ranks:
            self._derive(kind)
        return self._of_ranks[kind]

    def job(self, kind: type[T]) -> T:
        """The job's facts of this type; raises FactsCircle."""
        if kind not in self._of_job:
            self._derive(kind)
        found: T = self._of_job[kind]
        return found

    def has(self, kind: type) -> bool:
        """True if the facts of this type are derived."""
        return kind in self._of_ranks or kind in self._of_job

    def give(self, kind: type[T], facts: Mapping[Key, T]) -> None:
        """Take these facts of ranks; no analysis derives them."""
        self._of_ranks[kind] = facts

    def give_job(self, facts: object) -> None:
        """Take these facts of the job; no analysis derives them."""
        self._of_job[type(facts)] = facts

    def _derive(self, kind: type) -> None:
        analysis = self.analyses[kind]
        running = [self.analyses[asked] for asked in self._asked]
        if analysis in running:
            raise FactsCircle([*self._asked[running.index(analysis) :], kind])
        self._asked.append(kind)
        try:
            of_ranks, of_job = analysis.derive(self)
        finally:
            self._asked.pop()
        if analysis.rank_facts is not None:
            self._of_ranks.setdefault(analysis.rank_facts, of_ranks)
        if analysis.job_facts is not None:
            self._of_job.setdefault(analysis.job_facts, of_job)

    def record(self, key: Key, probe: str) -> Any:
        """The newest record of `probe` on one rank, or None."""
        return self.ranks[key].records.get(probe) if probe in self._probes else None

    def once(self, name: Hashable, make: Callable[[], T]) -> T:
        """The result of `make`, computed on the first call with this name and cached for the life of the case."""
        kept: T = self._kept.get(name, _MISSING)
        if kept is _MISSING:
            kept = self._kept[name] = make()
        return kept

    def rounds(self, key: Key) -> Sequence[tuple[Snapshot, RankEvidence]]:
        """The snapshots that contain one rank, oldest first, with its evidence in each."""
        if self._rounds is None:
            self._rounds = rounds(self.history)
        return self._rounds.get(key, ())

    def shots(self, host: str) -> Sequence[Snapshot]:
        """The snapshots of one host, oldest first."""
        return self.once("shots", self._shots).get(host, ())

    def series(self, key: Key, probe: str) -> Sequence[tuple[float, Any]]:
        """All records of `probe` on one rank with their times (s, its host's clock), oldest first."""
        if probe not in self._probes:
            return ()
        return [(shot.at_s, rank.records[probe]) for shot, rank in self.rounds(key) if probe in rank.records]

    def distinct(self, key: Key, probe: str) -> Sequence[Any]:
        """The records of `series` without times, oldest first; a record shared by several snapshots appears once."""
        if probe not in self._probes:
            return ()
        found = [rank.records[probe] for _, rank in self.rounds(key) if probe in rank.records]
        return list({id(record): record for record in found}.values())

    def _shots(self) -> dict[str, list[Snapshot]]:
        found: dict[str, list[Snapshot]] = {}
        for shot in self.history:
            found.setdefault(shot.host, []).append(shot)
        return found


def rounds(history: Sequence[Snapshot]) -> dict[Key, list[tuple[Snapshot, RankEvidence]]]:
    """By rank: the snapshots that contain it, in order, with its evidence in each."""
    found: dict[Key, list[tuple[Snapshot, RankEvidence]]] = {}
    for shot in history:
        for rank in shot.ranks:
            found.setdefault((rank.target.host, rank.target.pid), []).append((shot, rank))
    return found
