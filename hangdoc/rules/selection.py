"""The facts as rules read them, thing by thing: what many agree in is asked once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from hangdoc.analysis.facts import Facts
from hangdoc.formatting import name_ranks

if TYPE_CHECKING:
    from hangdoc.rules.expressions import Expression, Path

MAX_SHARED = 64  # different objects of a group of facts that is shared by many ranks

Lacking = tuple[Mapping[int, Sequence[str]], str]  # by rank, as its index, which probes have not seen it; the same told


class View:
    """The facts of a job, with what expressions read of them."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.links: Sequence[Any] = facts.job.network.links if hasattr(facts.job, "network") else ()
        self._columns: dict[tuple[int, Path], list[Any]] = {}
        self._lacking: dict[tuple[str, ...], Lacking] = {}

    @cached_property
    def seen(self) -> Mapping[frozenset[str], list[int]]:
        """The ranks, by index, by the probes that saw them or their host.

        Of a rank whose process is gone nothing is hidden: there is nothing left to see. It is in none of these.
        """
        of_host: dict[str, set[str]] = {}
        for shot in self.facts.case.history:
            of_host.setdefault(shot.host, set()).update(shot.records)
        found: dict[frozenset[str], list[int]] = {}
        for i, rank in enumerate(self.facts.ranks):
            if rank.alive is not False:
                found.setdefault(frozenset(rank.seen).union(of_host.get(rank.host, ())), []).append(i)
        return found

    def lacking(self, needs: tuple[str, ...]) -> Lacking:
        """The ranks that not all of the probes needed have seen; the text is empty where all were seen."""
        if needs not in self._lacking:
            missed = {seen: [probe for probe in needs if seen.isdisjoint(probe.split("|"))] for seen in self.seen}
            ranks = sorted((i, missed[seen]) for seen, some in self.seen.items() if missed[seen] for i in some)
            self._lacking[needs] = dict(ranks), self._told(dict(ranks)) if ranks else ""
        return self._lacking[needs]

    def _told(self, lacking: Mapping[int, Sequence[str]]) -> str:
        probes = dict.fromkeys(need.removesuffix("|aftermath") for missed in lacking.values() for need in missed)
        ranks = [self.facts.ranks[i] for i in lacking]
        numbers = [r.rank for r in ranks if r.rank >= 0]
        who = name_ranks(numbers) if numbers else f"pid {', '.join(str(r.pid) for r in ranks)}"
        return f"{' and '.join(probes).replace('|', ' or ')} not seen of {who}"

    def select(self, expression: Expression, things: Sequence[Any], indices: Sequence[int]) -> tuple[Any, ...]:
        """Those things, of the ranks or the links, of which the expression is true."""
        if things is self.facts.ranks and self._kinds.tell(expression):
            return self._kinds.select(expression, indices)
        columns = [self._column(things, path) for path in expression.reads if path[0] != "job"]
        if len(indices) < len(things):
            columns = [[column[i] for i in indices] for column in columns]
        rows = list(zip(*columns, strict=True)) if columns else [()] * len(indices)
        one_of = dict(zip(rows, indices, strict=True))
        chosen = {row for row, i in one_of.items() if expression.holds(things[i])}
        return tuple([things[i] for i, row in zip(indices, rows, strict=True) if row in chosen]) if chosen else ()

    @cached_property
    def _kinds(self) -> Kinds:
        return Kinds.of(self.facts.ranks)

    def _column(self, things: Sequence[Any], path: Path) -> list[Any]:
        at = (id(things), path)
        if at not in self._columns:
            column = getattr(things, "column", None)  # of what is made when it is asked for
            values: list[Any] = column(path[0]) if column else list(map(attrgetter(path[0]), things))
            for name in path[1:]:
                values = [None if value is None else getattr(value, name) for value in values]
            self._columns[at] = values
        return self._columns[at]


@dataclass(frozen=True, slots=True)
class Kinds:
    """The ranks by those of their groups of facts that many of them share."""

    ranks: Sequence[Any]
    shared: frozenset[str]  # the names of these groups
    kinds: Sequence[int]  # of each rank
    one_of: Mapping[int, Any]  # of each kind, a rank

    @classmethod
    def of(cls, ranks: Sequence[Any]) -> Kinds:
        """Of the ranks of `Facts`."""
        names = [name for name in ranks[0].__dataclass_fields__ if name not in ranks[0].ON_DEMAND] if ranks else []
        first = ranks[: 4 * MAX_SHARED]
        maybe = [name for name in names if len({id(getattr(rank, name)) for rank in first}) <= MAX_SHARED]
        few = {name: list(map(id, map(attrgetter(name), ranks))) for name in maybe}
        shared = {name: ids for name, ids in few.items() if len(set(ids)) <= MAX_SHARED}
        numbers: dict[tuple[int, ...], int] = {}
        kinds = [numbers.setdefault(row, len(numbers)) for row in zip(*shared.values(), strict=True)]
        return cls(ranks, frozenset(shared), kinds, dict(zip(kinds, ranks, strict=True)))

    def tell(self, expression: Expression) -> bool:
        """Whether ranks of one kind agree in all that an expression reads."""
        return all(path[0] in self.shared for path in expression.reads)

    def select(self, expression: Expression, indices: Sequence[int]) -> tuple[Any, ...]:
        """Those of these ranks, by index, of which it is true."""
        kinds = self.kinds if len(indices) == len(self.ranks) else [self.kinds[i] for i in indices]
        chosen = {kind for kind in set(kinds) if expression.holds(self.one_of[kind])}
        told = zip(indices, kinds, strict=True) if chosen else ()
        return tuple([self.ranks[i] for i, kind in told if kind in chosen])
