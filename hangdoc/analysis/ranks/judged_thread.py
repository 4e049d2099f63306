"""The thread that represents a rank, which analysis `stack` chooses: its call path and its variables."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.call_path import Step, build_path, is_library
from hangdoc.analysis.ranks.call_path_cache import JudgedThread, judged_threads, plan_in, python_chain, thread_named
from hangdoc.analysis.ranks.conditions import NAME
from hangdoc.analysis.ranks.phases import Chain
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import Place, Stack, Stacks, Variable


def thread_of(case: Case, key: Key) -> tuple[Stacks, Stack] | None:
    """The thread that represents a rank, with its record; None if its stacks were not seen."""
    stacks = case.record(key, "stacks")
    if not isinstance(stacks, Stacks) or not stacks.threads:
        return None
    return stacks, thread_named(stacks, case.facts(StackFacts)[key].thread)


def judged_thread(case: Case, key: Key) -> JudgedThread | None:
    """The thread that represents a rank; None if its stacks were not seen."""
    known = judged_threads(case)
    if key not in known:
        found = thread_of(case, key)
        known[key] = found and JudgedThread(
            *found, python_chain(case, found[1]), plan_in(case, found[1], case.record(key, "source"))
        )
    return known[key]


def path_of(case: Case, key: Key) -> list[Step]:
    """The call path of the thread that represents a rank; empty if its stacks were not seen."""
    found = judged_thread(case, key)
    return build_path(found.plan, found.stack, found.stacks.globals, case.once("steps", dict)) if found else []


def lines_of(case: Case, key: Key) -> Chain:
    """The Python frames of the same thread; empty if its stacks were not seen."""
    found = judged_thread(case, key)
    return found.lines if found else ()


def variables_at(case: Case, key: Key, depth: int) -> Sequence[Variable]:
    """The variables of one step of the same call path; empty if there is no such step."""
    found = judged_thread(case, key)
    return found.variables(depth) if found and depth < len(found.plan) else ()


def comparison_key(case: Case, key: Key, reference: frozenset[str]) -> Hashable:
    """Hashable key of the variables a comparison depends on: ranks on the same lines with equal keys compare equal.

    In user code, all variables except those that hold the rank; in library code, the loop counters and the names in
    conditions. `reference`: names of that kind on the reference side (`names_in`).
    """
    found = judged_thread(case, key)
    if found is None:
        return None
    rank = case.ranks[key].target.rank
    known: dict[tuple[int, frozenset[str]], list[_ComparedNames]] = case.once("compared names", dict)
    compared = known.get((id(found.plan), reference))
    if compared is None:
        frames = [(found.stack.frames[i], place) for i, place in found.plan]
        compared = [_ComparedNames(_named_in(place) | reference, not is_library(frame.file)) for frame, place in frames]
        known[id(found.plan), reference] = compared
    values = []
    for depth, in_step in enumerate(compared):
        for v in found.variables(depth):
            if in_step[v.name]:
                text = v.text if v.kind in ("none", "str") else None
                values.append((depth, v.name, v.number, v.length, v.kind, text, v.tensor is None, v.number == rank))
    return tuple(values)


class _ComparedNames(dict[str, bool]):
    """For one step, by variable name: whether a comparison depends on the variable."""

    def __init__(self, wanted: frozenset[str], own: bool) -> None:
        super().__init__()
        self.wanted, self.own = wanted, own

    def __missing__(self, name: str) -> bool:
        compared = self[name] = name in self.wanted or (self.own and "rank" not in name.lower())
        return compared


def names_in(path: Sequence[Step]) -> frozenset[str]:
    """The loop counters of a call path, and the names in the conditions around its lines."""
    return frozenset[str]().union(*(_named_in(step.place) for step in path))


def _named_in(place: Place | None) -> frozenset[str]:
    if place is None:
        return frozenset()
    counters = [name for loop in (*place.loops, *place.passed) for name in loop.counters]
    return frozenset(counters).union(*(NAME.findall(branch.test) for branch in place.branches))
