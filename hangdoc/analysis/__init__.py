"""Analysis: facts across ranks, each module small and pure; it derives, it does not judge.

A module has an `ANALYSIS` that satisfies `Analysis`. Its facts appear in the rules of playbooks under its name
(`stack.phase`, `progress.cpu_share`). Adding one is adding a file: `load()` finds it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

from hangdoc.evidence import RankEvidence, Snapshot

Key = tuple[str, int]  # (host, pid): one process
T = TypeVar("T")
_NEVER: Any = object()  # in the place of what was not worked out yet


@dataclass(slots=True)
class Case:
    """The evidence of one judgement, and the facts derived so far, which later analyses may use."""

    history: Sequence[Snapshot]  # oldest first, of any number of hosts
    ranks: Mapping[Key, RankEvidence]  # newest evidence, records of earlier snapshots carried over
    rank_facts: dict[str, dict[Key, Any]] = field(default_factory=dict)  # group -> rank -> facts
    job_facts: dict[str, Any] = field(default_factory=dict)  # group -> facts
    looks: dict[Key, Any] = field(default_factory=dict)  # rank -> what `progress` made of each look at it
    _rounds: Mapping[Key, Sequence[tuple[Snapshot, RankEvidence]]] | None = None
    _probes: frozenset[str] = field(init=False)  # that have seen any rank
    _kept: dict[Any, Any] = field(default_factory=dict)  # what was worked out once, see `once`

    def __post_init__(self) -> None:
        self._probes = frozenset().union(*[rank.records for rank in self.ranks.values()])

    def record(self, key: Key, probe: str) -> Any:
        """The newest record of `probe` on one rank, or None."""
        return self.ranks[key].records.get(probe) if probe in self._probes else None

    def once(self, name: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns, worked out at the first call with this name and kept for the life of the case."""
        kept: T = self._kept.get(name, _NEVER)
        if kept is _NEVER:
            kept = self._kept[name] = make()
        return kept

    def rounds(self, key: Key) -> Sequence[tuple[Snapshot, RankEvidence]]:
        """The snapshots that one rank is in, oldest first, with what was seen of it."""
        if self._rounds is None:
            self._rounds = rounds(self.history)
        return self._rounds.get(key, ())

    def shots(self, host: str) -> Sequence[Snapshot]:
        """The snapshots of one host, oldest first."""
        return self.once("shots", self._shots).get(host, ())

    def series(self, key: Key, probe: str) -> Sequence[tuple[float, Any]]:
        """All records of `probe` on one rank with their instants (s, that host's clock), oldest first."""
        if probe not in self._probes:
            return ()
        return [(shot.at_s, rank.records[probe]) for shot, rank in self.rounds(key) if probe in rank.records]

    def distinct(self, key: Key, probe: str) -> Sequence[Any]:
        """The same records without their instants, oldest first; what several looks have found is there once."""
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
    """By rank the snapshots that it is in, in their order, with what was seen of it."""
    found: dict[Key, list[tuple[Snapshot, RankEvidence]]] = {}
    for shot in history:
        for rank in shot.ranks:
            found.setdefault((rank.target.host, rank.target.pid), []).append((shot, rank))
    return found


@runtime_checkable
class Analysis(Protocol):
    """One kind of derived fact.

    `rank_facts` and `job_facts` are frozen dataclasses of nullable scalars and tuples (None: not seen), or None
    where the module yields no such facts. `order`: analyses with a lower one have run before.

    Two names mean something in the rank facts of any analysis (below order 60, where `stall` reads them):
    `stuck: bool | None`, the rank cannot go on by itself, whatever its stack seems to do; `advancing: bool | None`,
    the rank stands still but something works for it (a child, a file that grows).

    Where there is an `on_demand`, true, the facts are derived when a rule first asks for them, after all others: no
    analysis may read them, and there are none for the job.
    """

    name: str
    order: int
    rank_facts: type | None
    job_facts: type | None

    def derive(self, case: Case) -> tuple[dict[Key, Any], Any]:
        """Facts by rank (one for every rank of the case) and for the job; never raises on missing evidence."""
        ...


def load() -> tuple[Analysis, ...]:
    """Every analysis in this package, in order."""
    found: list[Analysis] = []
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        analysis = getattr(importlib.import_module(module.name), "ANALYSIS", None)
        if isinstance(analysis, Analysis):
            found.append(analysis)
    return tuple(sorted(found, key=lambda analysis: (analysis.order, analysis.name)))
