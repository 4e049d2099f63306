"""Interned call paths; ranks on the same lines share one object.

The caches live as long as their case and are keyed by the identity of its records.
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
    """The frames of a thread (name, file, line, native) from a record of the case; equal chains are one object."""
    known: dict[int, Chain] = case.once("chains", dict)
    found = known.get(id(stack))
    if found is None:
        places: dict[Chain, Chain] = case.once("places", dict)
        found = chain_of(stack)
        found = known[id(stack)] = places.setdefault(found, found)
    return found


def python_chain(case: Case, stack: Stack) -> Chain:
    """The Python frames of `chain_in`; equal chains are one object."""
    chain = chain_in(case, stack)
    known: dict[int, Chain] = case.once("python", dict)
    found = known.get(id(chain))
    if found is None:
        places: dict[Chain, Chain] = case.once("places", dict)
        found = tuple([frame for frame in chain if not frame[3] and frame[2] is not None])
        found = known[id(chain)] = places.setdefault(found, found)
    return found


class JudgedThread(NamedTuple):
    """The thread that represents a rank, and its call path."""

    stacks: Stacks
    stack: Stack
    lines: Chain  # Python frames
    plan: Plan

    def variables(self, depth: int) -> Sequence[Variable]:
        """The variables of one step of its call path."""
        return variables_of(self.stack.frames[self.plan[depth][0]], self.stacks.globals)


def judged_threads(case: Case) -> dict[Key, JudgedThread | None]:
    """The cache behind `judged_thread`."""
    return case.once("judged_thread", dict)


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


def thread_of(case: Case, key: Key) -> tuple[Stacks, Stack] | None:
    """The thread that represents a rank, with its record; None if its stacks were not seen."""
    stacks = case.record(key, "stacks")
    if not isinstance(stacks, Stacks) or not stacks.threads:
        return None
    return stacks, thread_named(stacks, case.rank_facts["stack"][key].thread)


def thread_named(stacks: Stacks, name: str | None) -> Stack:
    """The thread with this name, else the first thread."""
    for stack in stacks.threads:
        if stack.name == name:
            return stack
    return stacks.threads[0]


def path_in(case: Case, stack: Stack, source: Source | None, stacks: Stacks) -> list[Step]:
    """The call path of a thread of `stacks`, a record of the case."""
    return build_path(plan_in(case, stack, source), stack, stacks.globals, case.once("steps", dict))


def plan_in(case: Case, stack: Stack, source: Source | None) -> Plan:
    """The plan of a thread's call path; ranks on the same lines share one object."""
    known: dict[tuple[int, int], Plan] = case.once("plans", dict)
    at = (id(chain_in(case, stack)), id(source.places) if source else 0)
    found = known.get(at)
    if found is None:
        found = known[at] = plan(stack, source)
    return found
