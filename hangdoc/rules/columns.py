"""Facts as columns: a term is evaluated once for all ranks or links that agree on what it reads.

The library takes 20 us for a term: 10,000 ranks one by one would take a minute.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any

from hangdoc.rules.conditions import Condition, Joined, Members, Not, Path, Scope, Selected

MAX_SHARED = 64  # distinct objects of a fact group that counts as shared

Places = set[int]  # of ranks or links, in their order


class Columns:
    """Ranks or links, by column.

    `gaps`: the fact groups that were not seen of each. `groups`: fields that most may share, such as fact groups.
    """

    def __init__(self, things: Sequence[Any], gaps: Sequence[frozenset[str]], groups: Collection[str] = ()) -> None:
        self.things = things
        self._gaps = gaps
        self._columns: dict[Path, list[Any]] = {}
        first = things[: 4 * MAX_SHARED] if groups else ()
        maybe = [name for name in groups if len({id(getattr(thing, name)) for thing in first}) <= MAX_SHARED]
        ids = {name: list(map(id, map(attrgetter(name), things))) for name in maybe}
        self._shared = {name: column for name, column in ids.items() if len(set(column)) <= MAX_SHARED}
        alike: dict[tuple[Any, ...], list[int]] = {}
        for place, row in enumerate(zip(gaps, *self._shared.values(), strict=True)):
            alike.setdefault(row, []).append(place)
        self._alike = [set(places) for places in alike.values()]  # that agree on every shared group

    def members(self, condition: Condition, places: Places, scope: Scope) -> Members:
        """The ranks or links at these places by the condition's truth."""
        certain, unknown = (
            tuple([self.things[i] for i in sorted(found)]) for found in self._split(condition, places, scope)
        )
        return Members(certain, unknown)

    def _split(self, condition: Condition, places: Places, scope: Scope) -> tuple[Places, Places]:
        """The places where the condition is true, and where it is unknown.

        What ranks share is decided once for all that share it, and what differs only where it can still decide.
        """
        if not places:
            return set(), set()
        if self._is_shared(condition):
            return _by_truth(condition, self.things, filter(None, map(places.intersection, self._alike)), scope)
        if isinstance(condition, Selected):
            return self._split(condition.condition, places, scope)
        if isinstance(condition, Not):
            certain, unknown = self._split(condition.condition, places, scope)
            return places - certain - unknown, unknown
        if isinstance(condition, Joined):
            return self._joined(condition, places, scope)
        return _by_truth(condition, self.things, self._rows(condition, places), scope)

    def _joined(self, condition: Joined, places: Places, scope: Scope) -> tuple[Places, Places]:
        parts = sorted(condition.conditions, key=lambda part: not self._is_shared(part))
        if condition.word == "or":
            found, doubtful = set[int](), set[int]()
            for part in parts:
                certain, unknown = self._split(part, places - found, scope)
                found, doubtful = found | certain, doubtful | unknown
            return found, doubtful - found
        left, doubtful = places, set[int]()
        for part in parts:
            certain, unknown = self._split(part, left, scope)
            left, doubtful = certain | unknown, doubtful | unknown
        return left - doubtful, left & doubtful

    def _is_shared(self, condition: Condition) -> bool:
        return all(path[0] in self._shared for path in condition.reads)

    def _rows(self, condition: Condition, places: Places) -> Iterable[Places]:
        """The places by the values that the condition reads there."""
        columns = [self._gaps, *(self._column(path) for path in condition.reads if path[0] != "job")]
        rows: dict[tuple[Any, ...], Places] = {}
        values = zip(*([column[i] for i in places] for column in columns), strict=True)
        for place, row in zip(places, values, strict=True):
            rows.setdefault(row, set()).add(place)
        return rows.values()

    def _column(self, path: Path) -> list[Any]:
        if path not in self._columns:
            column = getattr(self.things, "column", None)  # of links that are built on access
            values: list[Any] = column(path[0]) if column else list(map(attrgetter(path[0]), self.things))
            for name in path[1:]:
                values = [None if value is None else getattr(value, name) for value in values]
            self._columns[path] = values
        return self._columns[path]


def _by_truth(
    condition: Condition, things: Sequence[Any], alike: Iterable[Places], scope: Scope
) -> tuple[Places, Places]:
    """The places where the condition is true and where it is unknown, decided once for each set of them."""
    found: dict[bool | None, list[Places]] = {True: [], None: [], False: []}
    for places in alike:
        found[condition.truth(things[next(iter(places))], scope)].append(places)
    return set().union(*found[True]), set().union(*found[None])
