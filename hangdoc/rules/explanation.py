"""Why a playbook applies to a job, or does not: every term of its rule with its value, as a tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hangdoc.analysis.facts import Facts
from hangdoc.formatting import name_processes
from hangdoc.rules.conditions import Aggregate, Condition, Kind, Not, Selected, Term, Truth, value
from hangdoc.rules.library import Library, Playbook
from hangdoc.rules.scope import PlaybookScope, View
from hangdoc.rules.time_limit import TooSlow, allowance, cpu_s
from hangdoc.verdict import Verdict

MAX_VALUES = 6  # distinct values of a field
MAX_VALUE = 120  # characters of a value
MAX_NODES = 2_000  # of one tree

OUTCOMES: Mapping[Truth, str] = {True: "yes", False: "no", None: "unknown"}


@dataclass(frozen=True, slots=True)
class Node:
    """One condition: its outcome for the job, or for each rank or link, and the conditions that it joins."""

    condition: str
    outcome: str | None  # yes | no | unknown, for the job; None: it is a condition over ranks or links
    certain: str = ""  # the ranks or links of which it is true
    unknown: str = ""  # the ranks of which it is unknown, with the evidence that is missing
    values: tuple[str, ...] = ()  # `storage.share = 0.93 on rank 0`
    parts: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one playbook applies to one job, or does not."""

    playbook: str
    title: str
    outcome: str  # yes | no | unknown
    because: str  # empty: because of its condition
    tree: tuple[Node, ...]  # `when`, the steps of the confidence, and the lines of evidence that have a condition


def explain(library: Library, facts: Facts, verdict: Verdict, id: str) -> Explanation:
    """The explanation of one playbook of the library, by the verdict on these facts; raises KeyError for another id."""
    playbook = {one.id: one for one in library.playbooks}[id]
    other = next((one for one in verdict.considered if one.playbook == id), None)  # None: it is a finding
    outcome, because = (other.outcome, other.why) if other else ("yes", "")
    tree: list[Node] = []
    try:
        with allowance(cpu_s(len(facts.ranks))):
            writer = _Writer(playbook, View(facts))
            for at, condition in playbook.conditions.items():
                tree.append(writer.over_job(condition, ".".join(map(str, at))))
    except TooSlow:
        because = "its conditions take too long"
    return Explanation(id, playbook.envelope.title, outcome, because, tuple(tree))


class _Writer:
    """Builds the tree of one playbook's conditions."""

    def __init__(self, playbook: Playbook, view: View) -> None:
        self._scope, self._coverage = PlaybookScope(playbook, view), view.coverage
        self._left = MAX_NODES
        self._written: set[tuple[str, Kind]] = set()  # selections that the tree shows further up

    def over_job(self, condition: Condition, name: str = "") -> Node:
        """A condition over the job."""
        if not self._has_room():
            return Node("...", None)
        text = f"{name}: {condition}" if name else str(condition)
        outcome = OUTCOMES[condition.truth(self._scope.job, self._scope)]
        if isinstance(condition, Aggregate):
            parts = tuple(self.over_things(inner, kind) for kind, inner in condition.over)
            return Node(text, outcome, parts=parts)
        if term := _term(condition):
            return Node(text, outcome, values=_values(term, [self._scope.job], "ranks"))
        return Node(text, outcome, parts=tuple(self.over_job(part) for part in condition.parts()))

    def over_things(self, condition: Condition, kind: Kind) -> Node:
        """A condition over ranks or links."""
        if not self._has_room():
            return Node("...", None)
        if isinstance(condition, Selected) and (condition.name, kind) not in self._written:
            self._written.add((condition.name, kind))
            inner = self.over_things(condition.condition, kind)
            return replace(inner, condition=f"{condition.name}: {inner.condition}")
        members = self._scope.members(condition, kind)
        values: tuple[str, ...] = ()
        parts: tuple[Node, ...] = ()
        if term := _term(condition):
            values = _values(term, self._scope.everything(kind), kind)
        elif not isinstance(condition, Selected):
            parts = tuple(self.over_things(part, kind) for part in condition.parts())
        certain, unknown = _named(members.certain, kind), self._unknown(condition, members.unknown)
        return Node(str(condition), None, certain, unknown, values, parts)

    def _has_room(self) -> bool:
        self._left -= 1
        return self._left >= 0

    def _unknown(self, condition: Condition, ranks: Sequence[Any]) -> str:
        if not ranks:
            return ""
        missing = self._coverage.missing([(condition, ranks)])
        return name_processes(ranks) + (f" ({'; '.join(missing)} not seen)" if missing else "")


def _term(condition: Condition) -> Term | None:
    """The term of a condition that is a term or its opposite."""
    inner = condition.condition if isinstance(condition, Not) else condition
    return inner if isinstance(inner, Term) else None


def _values(term: Term, things: Sequence[Any], kind: Kind) -> tuple[str, ...]:
    """What the term reads: one text for each distinct value of each field."""
    found: list[str] = []
    for path in term.reads:
        groups: dict[str, list[Any]] = {}
        for thing in things:
            groups.setdefault(_text(value(thing, path)), []).append(thing)
        for shown, members in list(groups.items())[:MAX_VALUES]:
            whom = "" if len(groups) == 1 else f" on {_named(members, kind)}"
            found.append(f"{'.'.join(path)} = {shown}{whom}")
        if len(groups) > MAX_VALUES:
            found.append(f"{'.'.join(path)}: {len(groups) - MAX_VALUES} more values")
    return tuple(found)


def _named(things: Sequence[Any], kind: Kind) -> str:
    if kind == "ranks":
        return name_processes(things)
    return f"{len(things)} link{'s' if len(things) > 1 else ''}" if things else "no link"


def _text(found: Any) -> str:
    shown = "null" if found is None else str(found).lower() if isinstance(found, bool) else repr(found)
    return shown if len(shown) <= MAX_VALUE else f"{shown[:MAX_VALUE]} ..."
