"""The thread that represents a rank: its call path and its variables."""

from __future__ import annotations

from collections.abc import Hashable

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.call_path import CallPath, Thread, is_library, threads_of
from hangdoc.analysis.ranks.conditions import NAME
from hangdoc.analysis.ranks.training_thread import training_thread
from hangdoc.evidence import Place


def judged_thread(case: Case, key: Key) -> Thread | None:
    """The thread that represents a rank; None if its stacks were not seen."""
    known: dict[Key, Thread | None] = case.once("judged threads", dict)
    if key not in known:
        at = training_thread(case, key)
        known[key] = None if at is None else threads_of(case, key)[at]
    return known[key]


def comparison_key(case: Case, key: Key, reference: frozenset[str]) -> Hashable:
    """Hashable key of the variables a comparison depends on: ranks on the same lines with equal keys compare equal.

    In user code, all variables except those that hold the rank; in library code, the loop counters and the names in
    conditions. `reference`: names of that kind on the reference side (`names_in`).
    """
    thread = judged_thread(case, key)
    if thread is None:
        return None
    rank, path = case.ranks[key].target.rank, thread.path
    compared = case.once(("compared names", path, reference), lambda: _compared_names(path, reference))
    values = []
    for depth, in_step in enumerate(compared):
        for v in thread.variables(depth):
            if in_step[v.name]:
                text = v.text if v.kind in ("none", "str") else None
                values.append((depth, v.name, v.number, v.length, v.kind, text, v.tensor is None, v.number == rank))
    return tuple(values)


def _compared_names(path: CallPath, reference: frozenset[str]) -> list[_ComparedNames]:
    return [_ComparedNames(_named_in(step.place) | reference, not is_library(step.file)) for step in path.steps]


class _ComparedNames(dict[str, bool]):
    """For one step, by variable name: whether a comparison depends on the variable."""

    def __init__(self, wanted: frozenset[str], own: bool) -> None:
        super().__init__()
        self.wanted, self.own = wanted, own

    def __missing__(self, name: str) -> bool:
        compared = self[name] = name in self.wanted or (self.own and "rank" not in name.lower())
        return compared


def names_in(path: CallPath) -> frozenset[str]:
    """The loop counters of a call path, and the names in the conditions around its lines."""
    return frozenset[str]().union(*(_named_in(step.place) for step in path.steps))


def _named_in(place: Place | None) -> frozenset[str]:
    if place is None:
        return frozenset()
    counters = [name for loop in (*place.loops, *place.passed) for name in loop.counters]
    return frozenset(counters).union(*(NAME.findall(branch.test) for branch in (*place.branches, *place.guards)))
