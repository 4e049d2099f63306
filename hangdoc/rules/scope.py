"""What conditions, lists and templates are evaluated over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hangdoc.analysis.facts import Facts
from hangdoc.rules.columns import Columns
from hangdoc.rules.conditions import OBSERVED, UNOBSERVED, Aggregate, Condition, Kind, Members, Path, Selected, every
from hangdoc.rules.coverage import Coverage
from hangdoc.rules.library import Playbook


class View:
    """The facts of a job, as all playbooks read them."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.coverage = Coverage(facts)
        links = facts.job.network.links
        self.places: Mapping[Kind, set[int]] = {"ranks": set(range(len(facts.ranks))), "links": set(range(len(links)))}
        fields = facts.ranks[0].__dataclass_fields__ if facts.ranks else ()
        groups = [name for name in fields if name not in facts.deferred]
        self.columns: Mapping[Kind, Columns] = {
            "ranks": Columns(facts.ranks, self.coverage.gaps, groups),
            "links": Columns(links, [frozenset()] * len(links)),
        }


class PlaybookScope(Mapping[str, Any]):
    """What one playbook is evaluated over: the job's facts and its selections, by name; selections are lazy."""

    def __init__(self, playbook: Playbook, view: View) -> None:
        facts = view.facts
        lacking = view.coverage.lacking(playbook.envelope.needs).places
        self._view, self._selections = view, playbook.selections
        self.job = {"job": facts.job}
        self._places = {**view.places, "ranks": view.places["ranks"].difference(lacking)} if lacking else view.places
        self._members: dict[int, Members] = {}
        self._made: dict[str, Any] = {
            **self.job,
            OBSERVED: tuple([facts.ranks[i] for i in sorted(self._places["ranks"])]) if lacking else facts.ranks,
            UNOBSERVED: tuple([facts.ranks[i] for i in lacking]),
        }

    def members(self, condition: Condition, kind: Kind) -> Members:
        while isinstance(condition, Selected):
            condition = condition.condition
        if id(condition) not in self._members:
            self._members[id(condition)] = self._view.columns[kind].members(condition, self._places[kind], self)
        return self._members[id(condition)]

    def everything(self, kind: Kind) -> Sequence[Any]:
        found: Sequence[Any] = self[OBSERVED] if kind == "ranks" else self._view.columns["links"].things
        return found

    def unseen(self, thing: Any, reads: Iterable[Path]) -> bool:
        return self._view.coverage.unseen(thing, reads)

    def holds(self, condition: Condition) -> bool:
        """True if the condition over the job is certain."""
        return condition.truth(self.job, self) is True

    def missing(self, condition: Condition) -> str:
        """The evidence that would decide a condition over the job: `io of ranks 0-3 not seen`."""
        over = (pair for one in every(condition) if isinstance(one, Aggregate) for pair in one.over)
        asked = ((inner, self.members(inner, kind).unknown) for kind, inner in over)
        return "; ".join(self._view.coverage.missing(asked).values())

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            kind: Kind = "ranks" if name in self._selections.ranks else "links"
            self._made[name] = self.members(self._selections.of(kind)[name], kind).certain
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self.job, OBSERVED, UNOBSERVED, *self._selections.links, *self._selections.ranks))

    def __len__(self) -> int:
        return len([*self])
