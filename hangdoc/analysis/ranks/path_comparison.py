"""How two ranks' call chains relate.

The deepest function that two ranks share is where they parted. The loops and branches around the two lines there say
how: one left the loop the other is in, one took a branch, or one is simply further on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hangdoc.analysis.ranks.call_path import CallPath, Step, is_library
from hangdoc.analysis.ranks.conditions import MODEL_PARTS, uniform
from hangdoc.evidence import Branch, Loop, Place


@dataclass(frozen=True, slots=True)
class Relation:
    """How rank `a` stands to rank `b`, seen from `a`.

    kind: same | left_loop | in_loop (the mirror of left_loop) | other_arm | in_branch | out_of_branch (its mirror) |
    other_call (one line, another function called) | ahead | behind | apart (no common function, or no source).
    """

    kind: str
    mine: Step | None = None  # a's frame where they parted
    other: Step | None = None  # b's frame there
    loop: Loop | None = None  # that one has left
    branch: Branch | None = None  # that only one is in, or the condition, within that loop, of what the other waits for
    common: tuple[Loop, ...] = ()  # loops around both


def relate(a: CallPath, b: CallPath) -> Relation:
    """How `a` stands to `b` (see `Relation`)."""
    depth = _divergence_depth(a, b)
    if depth is None:
        return Relation("same" if _lines(a) == _lines(b) else "apart")
    mine, other = a[depth], b[depth]
    if mine.place is None or other.place is None:
        return Relation("apart", mine, other)
    again = any(step.place is not None and step.place.loops for step in a[:depth])
    found = _by_lines(mine, other, mine.place, other.place, again)
    if found.kind == "other_call":
        found = replace(found, kind=_by_order(mine.place.calls, a[depth + 1 :], b[depth + 1 :]))
    return _by_callees(found, a, b, depth) if found.kind in ("ahead", "behind", "left_loop", "in_loop") else found


def _by_callees(found: Relation, a: CallPath, b: CallPath, depth: int) -> Relation:
    """What the functions called from there add: a loop one is in further down, a condition it went through."""
    it_is_in, i_am_in = _in_loop(b[depth + 1 :]), _in_loop(a[depth + 1 :])
    if it_is_in and _has_left(found, "ahead", it_is_in):
        found = replace(found, kind="left_loop", loop=it_is_in[1])
    elif i_am_in and _has_left(found, "behind", i_am_in):
        found = replace(found, kind="in_loop", loop=i_am_in[1])
    if found.loop is not None:
        return replace(found, branch=_condition_in(b if found.kind == "left_loop" else a, found.loop))
    mine, other = _condition_of(a[depth + 1 :]), _condition_of(b[depth + 1 :])
    if mine and not other:
        return replace(found, kind="in_branch", branch=mine)
    if other and not mine:
        return replace(found, kind="out_of_branch", branch=other)
    return found


def _condition_in(inside: CallPath, loop: Loop) -> Branch | None:
    """The innermost condition of its own, within the loop, under which a rank came to where it waits."""
    for step in reversed(inside):
        branch = next((b for b in _own_branches(step) if b.line > loop.first), None)
        if branch or (step.place and loop in step.place.loops):
            return branch
    return None


def _condition_of(rest: CallPath) -> Branch | None:
    return next((branch for step in rest for branch in _own_branches(step)), None)


def _own_branches(step: Step) -> list[Branch]:
    """Branches of the user's own code around a frame, innermost first, whose condition ranks need not agree on."""
    if step.place is None or is_library(step.file):
        return []
    return [b for b in reversed(step.place.branches) if b.test and uniform(b.test, step, None) is False]


def _in_loop(rest: CallPath) -> tuple[Step, Loop] | None:
    """The outermost of these frames that stands in a loop, and the innermost of its loops."""
    return next(
        ((step, of_data[-1]) for step in rest if step.place and (of_data := _data_loops(step.place.loops))), None
    )


def _data_loops(loops: Sequence[Loop]) -> tuple[Loop, ...]:
    """The loops that may run more often on one rank than on another: not those over the parts of a model."""
    return tuple(loop for loop in loops if not MODEL_PARTS.search(loop.header))


def _has_left(found: Relation, beyond: str, inside: tuple[Step, Loop]) -> bool:
    """The one outside a loop further down has passed the call that leads there, or has come round to it again."""
    return found.kind == beyond or (found.kind in ("ahead", "behind") and bool(found.common) and _under_way(inside))


def _under_way(inside: tuple[Step, Loop]) -> bool:
    """A loop beyond its first iterations: a rank that is not in it any more has left it, and come round since."""
    step, loop = inside
    counts = [step.variables[name].number for name in loop.counters if name in step.variables]
    return any(count is not None and count >= 2 for count in counts)


def _lines(path: CallPath) -> list[tuple[str, str, int]]:
    return [(step.file, step.function, step.line) for step in path]


def _divergence_depth(a: CallPath, b: CallPath) -> int | None:
    """Depth of the deepest function both are in before their lines part; None where nothing differs or is shared."""
    common: int | None = None
    for depth, (mine, other) in enumerate(zip(a, b, strict=False)):
        if (mine.file, mine.function) != (other.file, other.function):
            return common
        common = depth
        if mine.line != other.line:
            return common
    return common if len(a) != len(b) else None


def _by_lines(mine: Step, other: Step, here: Place, there: Place, again: bool) -> Relation:
    """From the loops, the branches and the order of two lines of one function; `again`: it is called in a loop."""
    shared = _common_prefix([loop.first for loop in here.loops], [loop.first for loop in there.loops])
    common = here.loops[:shared]
    mine_in, other_in = _data_loops(here.loops[shared:]), _data_loops(there.loops[shared:])
    if mine_in and other_in:  # two loops one after the other: the later one's rank has left the earlier loop
        later = mine_in[0].first > other_in[0].first
        kind, loop = ("left_loop", other_in[0]) if later else ("in_loop", mine_in[0])
        return Relation(kind, mine, other, loop, common=common)
    if other_in:
        loop = other_in[0]
        left = mine.line > loop.last or ((again or bool(common)) and _under_way((other, loop)))
        return Relation("left_loop" if left else "behind", mine, other, loop if left else None, common=common)
    if mine_in:
        loop = mine_in[0]
        left = other.line > loop.last or ((again or bool(common)) and _under_way((mine, loop)))
        return Relation("in_loop" if left else "ahead", mine, other, loop if left else None, common=common)
    return _by_branches(mine, other, here, there, common)


def _by_order(calls: Sequence[str], mine: CallPath, other: CallPath) -> str:
    """Of two functions called in one line, which comes first."""
    names = [call.rsplit(".", 1)[-1] for call in calls]
    places = [names.index(rest[0].function) if rest and rest[0].function in names else -1 for rest in (mine, other)]
    if -1 in places or places[0] == places[1]:
        return "other_call"
    return "ahead" if places[0] > places[1] else "behind"


def _by_branches(mine: Step, other: Step, here: Place, there: Place, common: tuple[Loop, ...]) -> Relation:
    forks = _common_prefix([(b.line, b.arm) for b in here.branches], [(b.line, b.arm) for b in there.branches])
    my_branch = next((b for b in here.branches[forks:] if _may_diverge(b, mine, other)), None)
    its_branch = next((b for b in there.branches[forks:] if _may_diverge(b, other, mine)), None)
    if my_branch and its_branch and my_branch.line == its_branch.line:
        return Relation("other_arm", mine, other, branch=my_branch, common=common)
    if my_branch and my_branch.leaves and other.line > my_branch.line:
        return Relation("other_arm", mine, other, branch=my_branch, common=common)
    if its_branch and its_branch.leaves and mine.line > its_branch.line:
        return Relation("other_arm", mine, other, branch=its_branch, common=common)
    if my_branch and my_branch.test:
        return Relation("in_branch", mine, other, branch=my_branch, common=common)
    if its_branch and its_branch.test:
        return Relation("out_of_branch", mine, other, branch=its_branch, common=common)
    if mine.line == other.line:
        return Relation("other_call", mine, other, common=common)
    return Relation("ahead" if mine.line > other.line else "behind", mine, other, common=common)


def _may_diverge(branch: Branch, step: Step, other: Step) -> bool:
    """Whether ranks may part at a branch: a library's own conditions are uniform unless they are seen not to be."""
    alike = uniform(branch.test, step, other.variables)
    return alike is False or (alike is None and not (branch.test and is_library(step.file)))


def _common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the common beginning."""
    count = 0
    for mine, other in zip(a, b, strict=False):
        if mine != other:
            break
        count += 1
    return count
