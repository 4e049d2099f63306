"""Interned call paths; ranks on the same lines share one object.

The caches live as long as their case and are keyed by the identity of its records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.call_path import Plan, Step, build_path, plan, variables_of
from hangdoc.analysis.ranks.phases import Chain, chain_of
from hangdoc.evidence import Source, Stack, Stacks, Variable


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
    """The cache behind `judged_thread`; analysis `stack` fills it."""
    return case.once("judged_thread", dict)


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
