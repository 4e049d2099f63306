"""Where the threads of the ranks stand. Many ranks stand at few places: what a place tells is told once for all there.

What is kept here is kept for one case, by the identity of its records.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.call_path import Plan, Step, build_path, is_library, plan, variables_of
from hangdoc.analysis.ranks.conditions import NAME
from hangdoc.analysis.ranks.phases import Chain, chain_of
from hangdoc.evidence import Place, Source, Stack, Stacks, Variable


def chain_in(case: Case, stack: Stack) -> Chain:
    """Where a thread stands, of a stack in a record of the case; one object for all that stand there."""
    known: dict[int, Chain] = case.once("chains", dict)
    found = known.get(id(stack))
    if found is None:
        places: dict[Chain, Chain] = case.once("places", dict)
        found = chain_of(stack)
        found = known[id(stack)] = places.setdefault(found, found)
    return found


def python_chain(case: Case, stack: Stack) -> Chain:
    """The same without native frames; one object for all that stand there."""
    chain = chain_in(case, stack)
    known: dict[int, Chain] = case.once("python", dict)
    found = known.get(id(chain))
    if found is None:
        places: dict[Chain, Chain] = case.once("places", dict)
        found = tuple([one for one in chain if not one[3] and one[2] is not None])
        found = known[id(chain)] = places.setdefault(found, found)
    return found


class JudgedThread(NamedTuple):
    """Where the thread stands that a rank is judged by."""

    stacks: Stacks
    stack: Stack
    lines: Chain  # of Python
    plan: Plan

    def variables(self, depth: int) -> Sequence[Variable]:
        """Those of one of its steps."""
        return variables_of(self.stack.frames[self.plan[depth][0]], self.stacks.globals)


def judged_threads(case: Case) -> dict[Key, JudgedThread | None]:
    """Of each rank what is known so far."""
    return case.once("judged_thread", dict)


def judged_thread(case: Case, key: Key) -> JudgedThread | None:
    """Of one rank; None where its stacks were not seen."""
    known = judged_threads(case)
    if key not in known:
        found = thread_of(case, key)
        known[key] = found and JudgedThread(
            *found, python_chain(case, found[1]), plan_in(case, found[1], case.record(key, "source"))
        )
    return known[key]


def path_of(case: Case, key: Key) -> list[Step]:
    """The path of the thread a rank is judged by; empty where its stacks were not seen."""
    found = judged_thread(case, key)
    return build_path(found.plan, found.stack, found.stacks.globals, case.once("steps", dict)) if found else []


def lines_of(case: Case, key: Key) -> Chain:
    """The lines of Python at which that thread stands; none where there is no path."""
    found = judged_thread(case, key)
    return found.lines if found else ()


def variables_at(case: Case, key: Key, depth: int) -> Sequence[Variable]:
    """The variables of one step of it."""
    found = judged_thread(case, key)
    return found.variables(depth) if found and depth < len(found.plan) else ()


def comparison_key(case: Case, key: Key, model: frozenset[str]) -> Hashable:
    """What of a rank's variables a comparison can turn on: of two ranks at one place where it is equal, one tells all.

    Of the user's own code all variables but those that say which rank it is; of a library's, those that its loops count
    with and its conditions name. `model`: the names of that kind on the other side (`names_in`).
    """
    found = judged_thread(case, key)
    if found is None:
        return None
    rank = case.ranks[key].target.rank
    known: dict[tuple[int, frozenset[str]], list[_ComparedNames]] = case.once("comparison_key names", dict)
    turns = known.get((id(found.plan), model))
    if turns is None:
        frames = [(found.stack.frames[i], place) for i, place in found.plan]
        turns = [_ComparedNames(_named_in(place) | model, not is_library(frame.file)) for frame, place in frames]
        known[id(found.plan), model] = turns
    told = []
    for depth, on in enumerate(turns):
        for v in found.variables(depth):
            if on[v.name]:
                text = v.text if v.kind in ("none", "str") else None
                told.append((depth, v.name, v.number, v.length, v.kind, text, v.tensor is None, v.number == rank))
    return tuple(told)


class _ComparedNames(dict[str, bool]):
    """By the name of a variable of one step: whether a comparison can turn on it."""

    def __init__(self, wanted: frozenset[str], own: bool) -> None:
        super().__init__()
        self.wanted, self.own = wanted, own

    def __missing__(self, name: str) -> bool:
        told = self[name] = name in self.wanted or (self.own and "rank" not in name.lower())
        return told


def names_in(path: Sequence[Step]) -> frozenset[str]:
    """The names that the loops of a path count with, and those in the conditions around its lines."""
    return frozenset[str]().union(*(_named_in(step.place) for step in path))


def _named_in(place: Place | None) -> frozenset[str]:
    if place is None:
        return frozenset()
    counters = [name for loop in (*place.loops, *place.passed) for name in loop.counters]
    return frozenset(counters).union(*(NAME.findall(branch.test) for branch in place.branches))


def thread_of(case: Case, key: Key) -> tuple[Stacks, Stack] | None:
    """The thread a rank is judged by, among all of its threads."""
    stacks = case.record(key, "stacks")
    if not isinstance(stacks, Stacks) or not stacks.threads:
        return None
    return stacks, thread_named(stacks, case.rank_facts["stack"][key].thread)


def thread_named(stacks: Stacks, name: str | None) -> Stack:
    """The thread of this name, or the first."""
    for stack in stacks.threads:
        if stack.name == name:
            return stack
    return stacks.threads[0]


def path_in(case: Case, stack: Stack, source: Source | None, stacks: Stacks) -> list[Step]:
    """The path of one of the threads of `stacks`, which is a record of the case."""
    return build_path(plan_in(case, stack, source), stack, stacks.globals, case.once("steps", dict))


def plan_in(case: Case, stack: Stack, source: Source | None) -> Plan:
    """The plan of a thread's path; one object for all ranks that stand at the same place."""
    known: dict[tuple[int, int], Plan] = case.once("plans", dict)
    at = (id(chain_in(case, stack)), id(source.places) if source else 0)
    found = known.get(at)
    if found is None:
        found = known[at] = plan(stack, source)
    return found
