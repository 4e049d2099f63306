"""What was not seen of the ranks. Of a rank that has ended nothing is left to see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hangdoc.analysis.facts import Facts
from hangdoc.formatting import name_processes
from hangdoc.rules.conditions import Condition, Path

_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Lacking:
    """The ranks that a needed probe has not seen."""

    places: Sequence[int]  # of the ranks, in order
    text: str  # `io of ranks 0-3 not seen`; empty if there are none


class Coverage:
    """The probes that have seen each rank, or its host."""

    def __init__(self, facts: Facts) -> None:
        self._ranks, self._seen_by = facts.ranks, facts.seen_by
        of_host: dict[str, set[str]] = {}
        for shot in facts.case.history:
            of_host.setdefault(shot.host, set()).update(shot.records)
        self._places: dict[frozenset[str], list[int]] = {}  # of the ranks that run, by the probes that have seen them
        for i, rank in enumerate(facts.ranks):
            if rank.alive is not False:
                probes = frozenset(rank.seen).union(of_host.get(rank.host, ()))
                self._places.setdefault(probes, []).append(i)
        self.gaps = [_NONE] * len(facts.ranks)  # the fact groups that no probe has seen of each rank
        for probes, places in self._places.items():
            groups = frozenset(group for group, by in facts.seen_by.items() if by.isdisjoint(probes))
            for i in places:
                self.gaps[i] = groups
        self._gaps = {id(rank): gaps for rank, gaps in zip(facts.ranks, self.gaps, strict=True) if gaps}
        self._lacking: dict[Sequence[str], Lacking] = {}

    def lacking(self, needs: Sequence[str]) -> Lacking:
        """The ranks that one of the `needs` of a playbook (`io`, `sockets|aftermath`) has not seen."""
        if needs not in self._lacking:
            places: set[int] = set()
            missed: dict[str, None] = {}
            for need in needs:
                for probes, some in self._places.items():
                    if probes.isdisjoint(need.split("|")):
                        places.update(some)
                        missed[need.removesuffix("|aftermath").replace("|", " or ")] = None
            ranks = [self._ranks[i] for i in sorted(places)]
            self._lacking[needs] = Lacking(sorted(places), _not_seen(" and ".join(missed), ranks) if ranks else "")
        return self._lacking[needs]

    def unseen(self, thing: Any, reads: Iterable[Path]) -> bool:
        """True if evidence behind one of these fields was not seen of the rank."""
        gaps = self._gaps.get(id(thing))
        return gaps is not None and any(path[0] in gaps for path in reads)

    def missing(self, asked: Iterable[tuple[Condition, Sequence[Any]]]) -> Mapping[str, str]:
        """Of conditions that are unknown of some ranks, the probes that would decide, each with a sentence.

        `cpu or stacks`: `cpu or stacks of ranks 0-3 not seen`. What a job left behind (`aftermath`) is no probe.
        """
        found: dict[str, dict[int, Any]] = {}
        for condition, ranks in asked:
            groups = {path[0] for path in condition.reads}
            for rank in ranks:
                for group in groups & self._gaps.get(id(rank), _NONE):
                    probes = " or ".join(sorted(self._seen_by[group] - {"aftermath"}))
                    found.setdefault(probes, {})[id(rank)] = rank
        return {probes: _not_seen(probes, ranks.values()) for probes, ranks in sorted(found.items())}


def _not_seen(probes: str, ranks: Iterable[Any]) -> str:
    return f"{probes} of {name_processes(ranks)} not seen"
