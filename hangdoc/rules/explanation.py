"""Why a playbook applies to a job, or does not: every term of its rule with its value, as a tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hangdoc.analysis.facts import Facts
from hangdoc.formatting import name_ranks
from hangdoc.rules.conditions import Condition, Counted, Kind, Not, Quantified, Selected, Term, Truth, value
from hangdoc.rules.evaluate import CPU_S, CPU_S_PER_RANK, PlaybookScope, View, evaluate
from hangdoc.rules.loader import Library
from hangdoc.rules.time_limit import TooSlow, allowance

MAX_VALUES = 6  # distinct values of a field
MAX_VALUE = 120  # characters of a value
MAX_NODES = 2_000  # of one tree

Outcome = Literal["yes", "no", "unknown"]
OUTCOMES: dict[Truth, Outcome] = {True: "yes", False: "no", None: "unknown"}


@dataclass(frozen=True, slots=True)
class Node:
    """One condition: its outcome for the job, or for each rank or link, and the conditions that it joins."""

    condition: str
    outcome: Outcome | None  # for the job; None: it is a condition over ranks or links
    yes: str = ""  # the ranks or links of which it is true
    unknown: str = ""  # the ranks of which it is unknown, with the evidence that is missing
    values: tuple[str, ...] = ()  # `storage.share = 0.93 on rank 0`
    parts: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one playbook applies to one job, or does not."""

    playbook: str
    title: str
    outcome: Outcome
    because: str  # empty: because of its condition
    tree: tuple[Node, ...]  # `when`, the steps of the confidence, and the lines of evidence that have a condition


def explain(library: Library, facts: Facts, id: str) -> Explanation:
    """The explanation of one playbook of the library; raises KeyError for an unknown id."""
    playbook = {one.id: one for one in library.playbooks}[id]
    _, considered = evaluate(library, facts)
    other = next((one for one in considered if one.playbook == id), None)  # None: it is a finding
    because = other.why if other else ""
    view = View(facts)
    lacking, _ = view.lacking(tuple(playbook.envelope.needs))
    tree: list[Node] = []
    try:
        with allowance(CPU_S + CPU_S_PER_RANK * len(facts.ranks)):
            writer = _Writer(PlaybookScope(playbook, view, lacking), view)
            for at, condition in playbook.conditions.items():
                tree.append(writer.over_job(condition, ".".join(map(str, at))))
    except TooSlow:
        because = "its conditions take too long"
    return Explanation(id, playbook.envelope.title, _outcome(other.outcome if other else "yes"), because, tuple(tree))


def _outcome(text: str) -> Outcome:
    return "yes" if text == "yes" else "no" if text == "no" else "unknown"


class _Writer:
    """Builds the tree of one playbook's conditions."""

    def __init__(self, scope: PlaybookScope, view: View) -> None:
        self._scope, self._view = scope, view
        self._left = MAX_NODES
        self._written: set[tuple[str, Kind]] = set()  # selections that the tree shows further up

    def over_job(self, condition: Condition, name: str = "") -> Node:
        """A condition over the job."""
        text = f"{name}: {condition}" if name else str(condition)
        outcome = OUTCOMES[condition.truth(self._scope.job, self._scope)]
        self._left -= 1
        if self._left < 0:
            return Node("...", None)
        if isinstance(condition, Quantified):
            return Node(text, outcome, parts=(self.over_things(condition.condition, condition.kind),))
        if isinstance(condition, Counted):
            inner = tuple(self.over_things(one, kind) for _, kind, one in condition.counts)
            return Node(text, outcome, parts=inner)
        term = condition.condition if isinstance(condition, Not) else condition
        if isinstance(term, Term):
            return Node(text, outcome, values=self._values(term, [self._scope.job]))
        return Node(text, outcome, parts=tuple(self.over_job(part) for part in condition.parts()))

    def over_things(self, condition: Condition, kind: Kind) -> Node:
        """A condition over ranks or links."""
        self._left -= 1
        if self._left < 0:
            return Node("...", None)
        members = self._scope.members(condition, kind)
        yes = _named(members.certain, kind)
        unknown = self._unknown(condition, members.unknown)
        if isinstance(condition, Term):
            everything = self._scope.everything(kind)
            return Node(str(condition), None, yes, unknown, self._values(condition, everything))
        if isinstance(condition, Not) and isinstance(condition.condition, Term):
            return Node(str(condition), None, yes, unknown, self.over_things(condition.condition, kind).values)
        if isinstance(condition, Selected):
            if (condition.name, kind) in self._written:
                return Node(condition.name, None, yes, unknown)
            self._written.add((condition.name, kind))
            inner = self.over_things(condition.condition, kind)
            return Node(f"{condition.name}: {inner.condition}", None, yes, unknown, inner.values, inner.parts)
        return Node(
            str(condition), None, yes, unknown, parts=tuple(self.over_things(part, kind) for part in condition.parts())
        )

    def _unknown(self, condition: Condition, ranks: Sequence[Any]) -> str:
        if not ranks:
            return ""
        lacking = self._view.lacking_evidence(condition, ranks)
        return f"{_named(ranks, 'ranks')} ({'; '.join(lacking)} not seen)" if lacking else _named(ranks, "ranks")

    def _values(self, term: Term, things: Sequence[Any]) -> tuple[str, ...]:
        """What the term reads: one text for each distinct value of each field."""
        found: list[str] = []
        for path in term.reads:
            groups: dict[str, list[Any]] = {}
            for thing in things:
                groups.setdefault(_text(value(thing, path)), []).append(thing)
            for shown, members in list(groups.items())[:MAX_VALUES]:
                whom = "" if len(groups) == 1 else f" on {_named(members, 'ranks')}"
                found.append(f"{'.'.join(path)} = {shown}{whom}")
            if len(groups) > MAX_VALUES:
                found.append(f"{'.'.join(path)}: {len(groups) - MAX_VALUES} more values")
        return tuple(found)


def _named(things: Iterable[Any], kind: Kind) -> str:
    found = list(things)
    if not found:
        return "no rank" if kind == "ranks" else "no link"
    if kind == "links" or not hasattr(found[0], "pid"):
        return f"{len(found)} link{'s' if len(found) > 1 else ''}"
    numbers = [one.rank for one in found if one.rank >= 0]
    pids = [str(one.pid) for one in found if one.rank < 0]
    return " and ".join(([name_ranks(numbers)] if numbers else []) + ([f"pid {', '.join(pids)}"] if pids else []))


def _text(found: Any) -> str:
    shown = "null" if found is None else str(found).lower() if isinstance(found, bool) else repr(found)
    return shown if len(shown) <= MAX_VALUE else f"{shown[:MAX_VALUE]} ..."
