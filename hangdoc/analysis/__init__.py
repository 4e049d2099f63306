"""Analysis: facts derived from evidence, per rank and for the job. Facts say what is; playbooks say what it means.

A module that defines `ANALYSIS` (see `Analysis`) adds a group of facts. Playbook rules read them under its name
(`stack.phase`, `progress.cpu_share`). To add an analysis, add a file: `load()` finds it. An analysis is a pure function
of the evidence: it calls no probe, reads no file and keeps no state.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, TypeVar, runtime_checkable

from hangdoc.evidence import RankEvidence, Snapshot

Key = tuple[str, int]  # (host, pid): one process
T = TypeVar("T")
_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Suspect:
    """A culprit that was not observed as a rank: one that never started, a foreign process, an unwatched host.

    A rule names a list of these under `blame`. None: unknown; `host` is a host name or an address.
    """

    rank: int | None
    pid: int | None = None
    host: str | None = None


class FactsCircle(RuntimeError):
    """Analyses that ask for the facts of each other: "StackFacts -> StallFacts -> StackFacts"."""

    def __init__(self, kinds: Sequence[type]) -> None:
        super().__init__(" -> ".join(kind.__name__ for kind in kinds))


@dataclass(slots=True)
class Case:
    """The evidence of one diagnosis, and the facts derived from it when they are first asked for."""

    history: Sequence[Snapshot]  # oldest first, from any number of hosts
    ranks: Mapping[Key, RankEvidence]  # newest evidence of each rank, with records carried over from earlier snapshots
    analyses: Mapping[type, Analysis] = field(default_factory=dict)  # by the types of facts
    rank_facts: dict[str, dict[Key, Any]] = field(default_factory=dict)  # name of the analysis -> rank -> facts
    job_facts: dict[str, Any] = field(default_factory=dict)  # name of the analysis -> facts
    looks: dict[Key, Any] = field(default_factory=dict)  # rank -> its looks, as analysed by `ranks.progress`
    _of_ranks: dict[type, dict[Key, Any]] = field(default_factory=dict)  # facts of ranks, by type
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
        self._of_ranks[kind] = dict(facts)

    def give_job(self, facts: object) -> None:
        """Take these facts of the job; no analysis derives them."""
        self._of_job[type(facts)] = facts

    def _derive(self, kind: type) -> None:
        analyses = self.analyses or _by_kind()
        analysis = analyses[kind]
        running = [analyses[asked] for asked in self._asked]
        if analysis in running:
            raise FactsCircle([*self._asked[running.index(analysis) :], kind])
        self._asked.append(kind)
        try:
            of_ranks, of_job = analysis.derive(self)
        finally:
            self._asked.pop()
        if analysis.rank_facts is not None:
            self.rank_facts[analysis.name] = self._of_ranks.setdefault(analysis.rank_facts, of_ranks)
        if analysis.job_facts is not None:
            self.job_facts[analysis.name] = self._of_job.setdefault(analysis.job_facts, of_job)

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


@runtime_checkable
class Analysis(Protocol):
    """One group of derived facts.

    `name`: the group's name in rules. `order`: an analysis runs after all analyses with a lower `order`, and may read
    their facts from the case. `rank_facts` and `job_facts`: frozen dataclasses of nullable scalars and tuples, or None
    if the analysis derives no such facts. None in a field means unknown: the evidence was not seen. The comment of a
    field is its documentation for rule authors: meaning, unit, and allowed values.

    The `stall` analysis (order 60) reads two fields of any rank facts derived before it:
    `stuck: bool | None`, the rank cannot go on by itself, whatever its stack shows;
    `advancing: bool | None`, the stack does not change but work goes on for the rank (a child process, a growing file).

    An optional attribute `seen_by = ("io", "sockets")` names the probes of which one must have seen a rank: without it,
    a rule takes every field of the group for unknown. Groups of evidence that is there only when something happened
    (logs, dumps, exits) have none: there, nothing seen means that nothing happened.

    An optional attribute `on_demand = True` defers `derive` until a rule first reads the facts. No other analysis may
    read them, and there are no job facts.
    """

    name: str
    order: int
    rank_facts: type | None
    job_facts: type | None

    def derive(self, case: Case) -> tuple[dict[Key, Any], Any]:
        """Facts by rank (for every rank of the case) and for the job. Missing evidence gives None and never raises."""
        ...


def load() -> tuple[Analysis, ...]:
    """Every analysis in this package and its subpackages, in order."""
    found: list[Analysis] = []
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        analysis = getattr(importlib.import_module(module.name), "ANALYSIS", None)
        if isinstance(analysis, Analysis):
            found.append(analysis)
    return tuple(sorted(found, key=lambda analysis: (analysis.order, analysis.name)))


@cache
def _by_kind() -> Mapping[type, Analysis]:
    """Every analysis, by the types of facts that it derives."""
    kinds = {kind: analysis for analysis in load() for kind in (analysis.rank_facts, analysis.job_facts)}
    return {kind: analysis for kind, analysis in kinds.items() if kind is not None}
