"""Where the threads of the ranks stand. Many ranks stand at few places: what a place tells is told once for all there.

What is kept here is kept for one case, by the identity of its records.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache

from hangdoc.analysis import Case, Key
from hangdoc.analysis.condition import NAME
from hangdoc.analysis.phases import Chain, chain_of
from hangdoc.analysis.story import Plan, Step, follow, is_library, plan, variables_of
from hangdoc.evidence import Place, Source, Stack, Stacks, Variable


def chain_in(case: Case, stack: Stack) -> Chain:
    """Where a thread stands, of a stack in a record of the case; one object for all that stand there."""
    known: dict[int, Chain] = case.once("chains", dict)
    found = known.get(id(stack))
    if found is None:
        found = chain_of(stack)
        found = known[id(stack)] = case.once("places", dict[Chain, Chain]).setdefault(found, found)
    return found


def python_in(case: Case, stack: Stack) -> Chain:
    """The same without native frames; one object for all that stand there."""
    chain = chain_in(case, stack)
    known: dict[int, Chain] = case.once("python", dict)
    found = known.get(id(chain))
    if found is None:
        found = tuple([one for one in chain if not one[3] and one[2] is not None])
        found = known[id(chain)] = case.once("places", dict[Chain, Chain]).setdefault(found, found)
    return found


def story_of(case: Case, key: Key) -> list[Step]:
    """The story of the thread a rank is judged by; empty where its stacks were not seen."""
    found = thread_of(case, key)
    return story_in(case, found[1], case.record(key, "source"), found[0]) if found else []


def lines_of(case: Case, key: Key) -> Chain:
    """The lines of Python at which that thread stands; none where there is no story."""
    found = thread_of(case, key)
    return python_in(case, found[1]) if found else ()


def variables_at(case: Case, key: Key, depth: int) -> Sequence[Variable]:
    """The variables of one step of it."""
    found = thread_of(case, key)
    frames = plan_in(case, found[1], case.record(key, "source")) if found else ()
    return variables_of(found[1].frames[frames[depth][0]], found[0].globals) if found and depth < len(frames) else ()


def compared(case: Case, key: Key, model: frozenset[str]) -> Hashable:
    """What of a rank's variables a comparison can turn on: of two ranks at one place where it is equal, one tells all.

    Of the user's own code all variables but those that say which rank it is; of a library's, those that its loops count
    with and its conditions name. `model`: the names of that kind on the other side (`names_in`).
    """
    found = thread_of(case, key)
    if found is None:
        return None
    stacks, stack = found
    rank = case.ranks[key].target.rank
    frames = plan_in(case, stack, case.record(key, "source"))
    known: dict[tuple[int, frozenset[str]], list[frozenset[str]]] = case.once("compared names", dict)
    names = known.get((id(frames), model))
    if names is None:
        names = known[id(frames), model] = [_named_in(place) | model for _, place in frames]
    told = []
    for depth, ((i, _), wanted) in enumerate(zip(frames, names, strict=True)):
        frame = stack.frames[i]
        own = not is_library(frame.file)
        for v in variables_of(frame, stacks.globals):
            if v.name in wanted or (own and not _of_rank(v.name)):
                text = v.text if v.kind in ("none", "str") else None
                told.append((depth, v.name, v.number, v.length, v.kind, text, v.tensor is None, v.number == rank))
    return tuple(told)


def names_in(story: Sequence[Step]) -> frozenset[str]:
    """The names that the loops of a story count with, and those in the conditions around its lines."""
    return frozenset[str]().union(*(_named_in(step.place) for step in story))


def _named_in(place: Place | None) -> frozenset[str]:
    if place is None:
        return frozenset()
    counters = [name for loop in (*place.loops, *place.passed) for name in loop.counters]
    return frozenset(counters).union(*(NAME.findall(branch.test) for branch in place.branches))


@lru_cache(maxsize=1024)
def _of_rank(name: str) -> bool:
    return "rank" in name.lower()


def thread_of(case: Case, key: Key) -> tuple[Stacks, Stack] | None:
    """The thread a rank is judged by, among all of its threads."""
    stacks = case.record(key, "stacks")
    if not isinstance(stacks, Stacks) or not stacks.threads:
        return None
    return stacks, named(stacks, case.rank_facts["stack"][key].thread)


def named(stacks: Stacks, name: str | None) -> Stack:
    """The thread of this name, or the first."""
    for stack in stacks.threads:
        if stack.name == name:
            return stack
    return stacks.threads[0]


def story_in(case: Case, stack: Stack, source: Source | None, stacks: Stacks) -> list[Step]:
    """The story of one of the threads of `stacks`, which is a record of the case."""
    return follow(plan_in(case, stack, source), stack, stacks.globals, case.once("steps", dict))


def plan_in(case: Case, stack: Stack, source: Source | None) -> Plan:
    """The plan of a thread's story; one object for all ranks that stand at the same place."""
    known: dict[tuple[int, int], Plan] = case.once("plans", dict)
    at = (id(chain_in(case, stack)), id(source.places) if source else 0)
    found = known.get(at)
    if found is None:
        found = known[at] = plan(stack, source)
    return found
