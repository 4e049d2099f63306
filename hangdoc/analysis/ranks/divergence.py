"""Analysis `position`: where each rank stands relative to the ranks that wait.

Ranks at the same place form a side. The reference is the largest side that waits (of equals, the one farthest back);
every other rank is odd, and its relation to the reference is how the two parted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.call_path import CallPath, Step, is_library
from hangdoc.analysis.ranks.call_path_cache import comparison_key, lines_of, names_in, path_of, variables_at
from hangdoc.analysis.ranks.path_comparison import Relation, relate
from hangdoc.analysis.ranks.phases import Chain
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import Loop, Variable

Signature = tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, slots=True)
class DivergenceFacts:
    """One rank against the reference side."""

    side: int | None = None  # number of its side, 0 is the reference; None: its stacks were not seen
    side_size: int | None = None
    odd: bool | None = None  # not on the reference side
    relation: str | None = None  # kind of path.Relation, seen from this rank; "same" on the reference side
    parted: str | None = None  # this rank's line in the function where they parted: "main (train.py:31)"
    parted_other: str | None = None  # the reference's line there
    loop: str | None = None  # source of the loop that one side has left: "for step, batch in enumerate(loader):"
    loop_line: int | None = None
    loop_counter: str | None = None  # its counter, and the value on the side that is in it
    loop_count: float | None = None
    branch: str | None = None  # condition of the branch that only one side is in
    branch_line: int | None = None
    guarded: bool | None = None  # the branch is around this rank's side
    will_arrive: bool | None = None  # it has yet to come to the place where the reference waits, and can
    passed: bool | None = None  # that counter is of a loop this rank is no longer in
    counter: str | None = None  # loop counter that differs between the two
    count: float | None = None  # here
    count_other: float | None = None  # on the reference side
    size: str | None = None  # another number, or the length of a list, that differs: "n", "len(shard)"
    size_here: float | None = None
    size_other: float | None = None
    same_operation: bool | None = None  # waits in the operation the reference waits in
    same_site: bool | None = None  # at the line of the user's own code where the reference is


@dataclass(frozen=True, slots=True)
class DivergenceJob:
    sides: int  # different places at which ranks stand
    reference: tuple[int, ...]  # ranks of the reference side
    odd: tuple[int, ...]
    tied: bool  # no side is larger than the others


MUST_DIFFER = (
    "rank",
    "pid",
    "port",
    "seed",
    "device",
    "addr",
    "host",
    "time",
    "elapsed",
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A number that two ranks do not agree on."""

    name: str
    here: float
    there: float
    passed: bool = False  # counts a loop that the first rank is no longer in


@dataclass(slots=True)
class DivergenceAnalysis:
    name: str = "position"
    order: int = 30
    rank_facts: type | None = DivergenceFacts
    job_facts: type | None = DivergenceJob

    def derive(self, case: Case) -> tuple[dict[Key, DivergenceFacts], DivergenceJob]:
        stack: dict[Key, StackFacts] = case.rank_facts["stack"]
        places = _cohorts(case, stack)
        sides = _sides(case, places)
        facts = dict.fromkeys(case.ranks, DivergenceFacts())
        if not sides:
            return facts, DivergenceJob(0, (), (), False)
        ranks = {key: evidence.target.rank for key, evidence in case.ranks.items()}
        model = Reference(case, [key for place in sides[0] for key in place.keys])
        for number, side in enumerate(sides):
            size = _size(side)
            for place in side:
                told: dict[Hashable, DivergenceFacts] = {}
                same = number == 0 and place.lines == model.lines  # nothing of theirs is compared
                for key in place.keys:
                    what = None if same else comparison_key(case, key, model.names)
                    if what not in told:
                        told[what] = _facts(key, number, size, model, stack, ranks)
                    facts[key] = told[what]
        return facts, DivergenceJob(
            sides=len(sides),
            reference=_numbers(model.keys, ranks),
            odd=_numbers([key for side in sides[1:] for place in side for key in place.keys], ranks),
            tied=len(sides) > 1 and _size(sides[1]) == _size(sides[0]),
        )


@dataclass(frozen=True, slots=True)
class Cohort:
    """Ranks that stand at the same lines, and do the same there."""

    keys: list[Key]
    lines: Chain
    facts: StackFacts


Side = Sequence[Cohort]


def _cohorts(case: Case, stack: dict[Key, StackFacts]) -> list[Cohort]:
    found: dict[tuple[int, int], Cohort] = {}  # by identity: the case has one object a place
    for key, facts in stack.items():
        lines = lines_of(case, key)
        if lines:
            at = (id(lines), id(facts))
            if at not in found:
                found[at] = Cohort([], lines, facts)
            found[at].keys.append(key)
    return list(found.values())


def _sides(case: Case, places: Sequence[Cohort]) -> list[Side]:
    """The sides, the reference first."""
    by_signature: dict[tuple[Signature, str | None], list[Cohort]] = {}
    for place in places:
        signature = _signature(path_of(case, place.keys[0]))
        by_signature.setdefault((signature, place.facts.op), []).append(place)
    fronts = {id(side): path_of(case, side[0].keys[0]) for side in by_signature.values()}

    def standing(side: Side) -> tuple[bool, int, int]:
        others = (front for number, front in fronts.items() if number != id(side))
        rear = sum(relate(fronts[id(side)], other).kind in ("in_loop", "behind", "out_of_branch") for other in others)
        return bool(side[0].facts.waits), _size(side), rear

    return sorted(by_signature.values(), key=standing, reverse=True)


def _size(side: Side) -> int:
    return sum(len(place.keys) for place in side)


def _signature(path: CallPath) -> Signature:
    """The lines of the user's own code and its frameworks; torch's inner lines vary without meaning."""
    lines = [(step.file, step.function, step.line) for step in path]
    return tuple([line for line in lines if "/torch/" not in line[0]] or lines)


class Reference:
    """The reference side, with what its ranks agree on."""

    def __init__(self, case: Case, keys: Sequence[Key]) -> None:
        self.case, self.keys = case, keys
        self.path, self.lines = path_of(case, keys[0]), lines_of(case, keys[0])
        self.names = names_in(self.path)
        self._agreed: dict[tuple[int, str], bool] = {}

    def agreed(self, depth: int, label: str) -> bool:
        """All of them have the same number, or length, there."""
        if (depth, label) not in self._agreed:
            values = (_value(variables_at(self.case, key, depth), label) for key in self.keys)
            first = next(values)
            self._agreed[depth, label] = all(value == first for value in values)
        return self._agreed[depth, label]


def _facts(
    key: Key, number: int, size: int, reference: Reference, stack: dict[Key, StackFacts], ranks: dict[Key, int | None]
) -> DivergenceFacts:
    mine, model, first = path_of(reference.case, key), reference.path, reference.keys[0]
    relation = relate(mine, model)
    odd = number > 0
    inside = _count(relation.loop, model if relation.kind == "left_loop" else mine) if relation.loop else None
    counter = next(_counters(mine, model), None) if odd else None
    itself = (ranks[key], ranks[first])  # a variable that holds the rank differs by right
    sizes = (one for one in _sizes(mine, reference) if (one.here, one.there) != itself) if odd else iter(())
    length = next((one for one in sizes if counter is None or one.name != counter.name), None)
    return DivergenceFacts(
        side=number,
        side_size=size,
        odd=odd,
        relation=relation.kind if odd else "same",
        parted=relation.mine.site if relation.mine else None,
        parted_other=relation.other.site if relation.other else None,
        loop=relation.loop.header if relation.loop else None,
        loop_line=relation.loop.first if relation.loop else None,
        loop_counter=inside[0] if inside else None,
        loop_count=inside[1] if inside else None,
        branch=relation.branch.test if relation.branch else None,
        branch_line=relation.branch.line if relation.branch else None,
        guarded=relation.kind in ("in_branch", "other_arm") if relation.branch else None,
        will_arrive=_will_arrive(relation) if odd else None,
        passed=counter.passed if counter else None,
        counter=counter.name if counter else None,
        count=counter.here if counter else None,
        count_other=counter.there if counter else None,
        size=length.name if length else None,
        size_here=length.here if length else None,
        size_other=length.there if length else None,
        same_operation=stack[key].op == stack[first].op and bool(stack[key].waits),
        same_site=stack[key].site == stack[first].site and stack[key].file == stack[first].file,
    )


def _count(loop: Loop, path: CallPath) -> tuple[str, float] | None:
    """How far the rank inside a loop has come, by the loop's counter."""
    for step in path:
        if step.place and loop in step.place.loops:
            values = ((name, step.variables[name].number) for name in loop.counters if name in step.variables)
            return next(((name, value) for name, value in values if value is not None), None)
    return None


def _will_arrive(relation: Relation) -> bool | None:
    if relation.kind == "apart" or relation.mine is None or relation.other is None:
        return None
    if relation.kind in ("left_loop", "other_arm"):
        return False
    return relation.mine.line <= relation.other.line or bool(relation.common)


def _aligned(a: CallPath, b: CallPath) -> Iterator[tuple[Step, Step]]:
    """Frames of the same function at the same depth, from the outermost inwards."""
    for mine, other in zip(a, b, strict=False):
        if (mine.file, mine.function) != (other.file, other.function):
            return
        yield mine, other


def _counters(a: CallPath, b: CallPath) -> Iterator[Difference]:
    """Loop counters, of loops they are in or have passed, that differ between two ranks; passed loops first."""
    found: list[Difference] = []
    for mine, other in _aligned(a, b):
        if mine.place is None or other.place is None:
            continue
        inside = {name for loop in mine.place.loops for name in loop.counters}
        loops = (*mine.place.loops, *other.place.loops, *mine.place.passed, *other.place.passed)
        for name in dict.fromkeys(name for loop in loops for name in loop.counters):
            here, there = mine.variables.get(name), other.variables.get(name)
            if here and there and here.number is not None and there.number is not None and here.number != there.number:
                found.append(Difference(name, here.number, there.number, name not in inside))
    yield from sorted(found, key=lambda difference: not difference.passed)


def _sizes(path: CallPath, reference: Reference) -> Iterator[Difference]:
    """Other numbers and lengths that the reference side agrees on and this rank does not."""
    for depth, (mine, other) in enumerate(_aligned(path, reference.path)):
        if is_library(mine.file):
            continue
        for name, variable in mine.variables.items():
            if any(word in name.lower() for word in MUST_DIFFER) or name not in other.variables:
                continue
            for label, here, there in (
                (
                    name,
                    variable.number if variable.kind == "int" else None,
                    other.variables[name].number,
                ),
                (
                    f"len({name})",
                    variable.length if variable.kind != "str" else None,
                    other.variables[name].length,
                ),
            ):
                if here is not None and there is not None and here != there and reference.agreed(depth, label):
                    yield Difference(label, here, there)


def _value(variables: Sequence[Variable], label: str) -> float | None:
    name = label[4:-1] if label.startswith("len(") else label
    for one in variables:
        if one.name == name:
            return one.length if label.startswith("len(") else one.number
    return None


def _numbers(keys: Sequence[Key], ranks: dict[Key, int | None]) -> tuple[int, ...]:
    return tuple(sorted(rank for key in keys if (rank := ranks[key]) is not None))


ANALYSIS = DivergenceAnalysis()
