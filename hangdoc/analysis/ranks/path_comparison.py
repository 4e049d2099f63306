"""How the call paths of two ranks relate.

Two ranks diverge in the deepest function that both are in. The loops and branches around their two lines there say how:
one left a loop that the peer is still in, one took a branch, or one is simply further along.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from hangdoc.analysis.ranks.call_path import Step, Steps, is_library
from hangdoc.analysis.ranks.conditions import MODEL_PARTS, names, negated, parts_by_rank, targets, uniform
from hangdoc.evidence import Branch, Loop, Place, Variable

COUNTED = re.compile(r"\bin\s+(?:\w+\.)?t?range\(")
CONDITIONAL = re.compile(r"\S\s+if\s.+\selse\s")
WHILE = re.compile(r"while (.+):$")
# Operations of torch.distributed that ranks often call from different arms of one `if`.
EACH_IN_ITS_WAY = re.compile(r"(i?send|i?recv|gather|scatter)(_object(_list)?)?|batch_isend_irecv")
COUNTS_DOWN = re.compile(r"\breversed\(|range\([^()]*,\s*-\d")


@dataclass(frozen=True, slots=True)
class Laps:
    """Iterations of a loop around both ranks: of the outermost in which they differ, else of the innermost counted."""

    counter: str
    own: float
    peer: float
    innermost: bool = True  # no loop without a counter is inside of it, around both ranks


@dataclass(frozen=True, slots=True)
class Relation:
    """How rank `a` relates to rank `b`, seen from `a`.

    kind: same | left_loop (b is still in the loop) | in_loop (its mirror image) | other_arm (of one `if`) | in_branch |
    out_of_branch (its mirror image) | other_call (same line, different function called) | ahead | behind | apart (no
    common function, or no source).
    """

    kind: str
    own: Step | None = None  # a's frame where they diverged
    peer: Step | None = None  # b's frame there
    loop: Loop | None = None  # the loop that one of them has left
    branch: Branch | None = None  # that only one is in; or, within `loop`, the condition around the call that waits
    common: tuple[Loop, ...] = ()  # loops around both, in the function where they diverged
    exit: str | None = None  # the condition under which one of them left `loop` before its last iteration
    equal_laps: bool = False  # both ran `loop` equally often, by its counter: one of them left out a call in it
    laps: Laps | None = None  # in the loops around both, in any function; None: no counter is visible
    skip: Branch | None = None  # the early return by which b may have left out the call that a waits in
    below: bool = False  # `branch` is in a function called after they diverged, in a place whose source was not seen


def relate(a: Steps, b: Steps) -> Relation:
    """How `a` relates to `b` (see `Relation`)."""
    a, b = _from_common_root(a, b)
    depth = _divergence_depth(a, b)
    if depth is None:
        return Relation("same") if _lines(a) == _lines(b) else _by_rank_below(Relation("apart"), a, b)
    own, peer = a[depth], b[depth]
    if own.place is None or peer.place is None or own.place.alone or peer.place.alone:
        return _by_rank_below(Relation("apart", own, peer), a[depth:], b[depth:])
    again = any(step.place is not None and step.place.loops for step in a[:depth])
    found = _by_lines(own, peer, own.place, peer.place, again)
    if found.kind == "other_call":
        found = replace(found, kind=_by_order(own.place, a[depth + 1 :], b[depth + 1 :]))
    if found.kind in ("ahead", "behind", "left_loop", "in_loop"):
        found = _by_callees(found, a, b, depth)
    found = replace(found, laps=_laps(a[: depth + 1], b[: depth + 1]))
    if found.kind in ("left_loop", "in_loop"):
        found = _by_laps(found, a[depth:], b[depth:])
    elif found.kind in ("ahead", "behind") and found.laps and found.laps.own != found.laps.peer:
        found = _overtaken(found, found.laps, a[depth:], b[depth:])
    if found.kind in ("in_branch", "out_of_branch"):
        found = _by_rank(found, *((a[depth:], peer) if found.kind == "in_branch" else (b[depth:], own)))
    return found


def _overtaken(found: Relation, laps: Laps, a: Steps, b: Steps) -> Relation:
    """A rank that its peer has overtaken waits in a call that only this rank may make."""
    behind, peer = (a, b[0]) if laps.own < laps.peer else (b, a[0])
    branch = _rank_test(behind, peer)
    return replace(found, kind="in_branch" if behind is a else "out_of_branch", branch=branch) if branch else found


def _by_rank(found: Relation, inside: Steps, outside: Step) -> Relation:
    """The condition that parted them is one that tests the rank, unless that at the split is seen to differ."""
    own = next((step for step in inside if step.place and found.branch in step.place.branches), None)
    if found.branch is None or own is None or uniform(found.branch.test, own, outside.variables) is False:
        return found
    branch = _rank_test(inside, outside)
    return replace(found, branch=branch) if branch else found


def _by_rank_below(found: Relation, a: Steps, b: Steps) -> Relation:
    """Without the source of the split: only one of the two is under a condition that tests the rank."""
    own, peer = _rank_test(a), _rank_test(b)
    if own is not None and peer is None:
        return replace(found, kind="in_branch", branch=own, below=True)
    if peer is not None and own is None:
        return replace(found, kind="out_of_branch", branch=peer, below=True)
    return found


def _rank_test(steps: Steps, beside: Step | None = None) -> Branch | None:
    """The innermost condition that tests the rank, in user code, else in a framework; not one around `beside`."""
    shared = _conditions(beside) if beside else ()
    found = [
        (branch, step)
        for step in reversed(steps)
        for branch in reversed(_conditions(step))
        if parts_by_rank(branch.test) and branch not in shared and "/torch/" not in step.file
    ]
    own = (branch for branch, step in found if not is_library(step.file))
    return next(own, found[0][0] if found else None)


def _laps(a: Steps, b: Steps) -> Laps | None:
    """The laps of two ranks that are in the same functions."""
    found = None
    for own, peer in zip(a, b, strict=True):
        if own.place and peer.place:
            loops = own.place.loops
            for loop in loops[: _common_prefix([at.first for at in loops], [at.first for at in peer.place.loops])]:
                counted = _laps_of(loop, own, peer)
                if counted and counted.own != counted.peer:
                    return counted
                found = counted or (replace(found, innermost=False) if found else None)
    return found


def _laps_of(loop: Loop, own: Step, peer: Step) -> Laps | None:
    """By the loop's target; else by the names that its body increments, if they agree on who is ahead."""
    if COUNTS_DOWN.search(loop.header):
        return None
    named = [name for name in loop.counters if name in targets(loop.header)]
    laps = [
        Laps(name, here.number, there.number)
        for name in named or loop.counters
        if (here := own.variables.get(name)) and (there := peer.variables.get(name))
        if here.number is not None and there.number is not None
    ]
    ahead = {(lap.own > lap.peer) - (lap.own < lap.peer) for lap in laps}
    return laps[0] if len(ahead) == 1 else None


def _by_laps(found: Relation, a: Steps, b: Steps) -> Relation:
    """Correct `left_loop` and `in_loop` by the loops around both ranks; `a` and `b` from the function of the split on.

    A rank past a nested loop has left it earlier than its peers, unless they are an iteration ahead in the loops around
    both, or only this rank may enter the call in which it waits: then they went on without that call. The same holds
    for a rank inside the loop: it may still be there only because its peers skipped the call it waits in.
    """
    outside, inside = (a, b) if found.kind == "left_loop" else (b, a)
    lead = 0.0  # iterations by which the rank past the loop is ahead
    if found.laps:
        lead = (found.laps.own - found.laps.peer) * (1 if outside is a else -1)
    if lead < 0 or not found.laps:
        branch = _parting_condition(outside, inside[0], overtaken=lead < 0)
        if branch:
            kind = "in_branch" if outside is a else "out_of_branch"
            return replace(found, kind=kind, loop=None, branch=branch)
        if lead < 0:
            return replace(found, kind="behind" if outside is a else "ahead", loop=None, branch=None)
    if lead == 0 and found.loop and (branch := _rank_test_in(inside, found.loop, outside[0])):
        return replace(found, kind="out_of_branch" if outside is a else "in_branch", loop=None, branch=branch)
    if found.branch and parts_by_rank(found.branch.test):
        found = replace(found, branch=None)
    if found.loop and _ran_equally_often(found.loop, outside[0], inside):
        return replace(found, equal_laps=True, branch=found.branch or _condition_in(inside, found.loop, certain=False))
    return replace(found, exit=_early_exit(found.loop, outside, inside) if found.loop else None)


def depth_of(loop: Loop, path: Steps) -> int | None:
    """The outermost of these frames that is inside the loop; None: none is."""
    return next((depth for depth, step in enumerate(path) if step.place and loop in step.place.loops), None)


def _ran_equally_often(loop: Loop, outside: Step, inside: Steps) -> bool:
    """True if the counter of a `for` loop has the same value on the rank that has left it, after its last iteration.

    One that waits in the loop's own line has begun another iteration, which is not counted yet. Loops within it may
    have run more often on one of them.
    """
    depth = depth_of(loop, inside)
    if depth is None or inside[depth].function != outside.function or inside[depth].line == loop.first:
        return False
    step = inside[depth]
    if (step.place and _data_loops(step.place.loops)[-1:] != (loop,)) or _in_loop(inside[depth + 1 :]):
        return False
    if _is_each_in_its_way(inside[depth:]):
        return False
    ended = _ran_out(loop, outside.variables)
    if ended is False or (ended is None and (loop.exits or loop.unconditional_exit)):
        return False
    counts = [
        (here.number, there.number)
        for name in loop.counters
        if name in targets(loop.header)
        if (here := outside.variables.get(name)) and (there := step.variables.get(name))
    ]
    return bool(counts) and all(here is not None and here == there for here, there in counts)


def _rank_test_in(inside: Steps, loop: Loop, outside: Step) -> Branch | None:
    """The test of the rank, inside a loop, that guards the call a rank waits in.

    None if the test proves nothing: every rank may make the call from an arm of its own (a send and its receive, a
    gather and its root), or the ranks past the loop ran fewer iterations.
    """
    depth = depth_of(loop, inside)
    if depth is None or _is_each_in_its_way(inside[depth:]):
        return None
    counts = inside[depth].variables
    for name in loop.counters if outside.function == inside[depth].function else ():
        here, there = counts.get(name), outside.variables.get(name)
        if here and there and here.number is not None and there.number is not None and there.number < here.number:
            return None
    return _rank_test([_within_loop(inside[depth], loop), *inside[depth + 1 :]], outside)


def _is_each_in_its_way(steps: Steps) -> bool:
    return any("/torch/" in step.file and EACH_IN_ITS_WAY.fullmatch(step.function) for step in steps)


def _within_loop(step: Step, loop: Loop) -> Step:
    """A step with only those conditions that are in the body of a loop."""
    place = step.place
    assert place is not None
    branches = tuple([branch for branch in place.branches if branch.line > loop.first])
    guards = tuple([branch for branch in place.guards if branch.line > loop.first])
    place = msgspec.structs.replace(place, branches=branches, guards=guards)
    return Step(step.function, step.file, step.line, place, step.variables)


def _early_exit(loop: Loop, outside: Steps, inside: Steps) -> str | None:
    """The condition under which a rank left a loop around the loop that its peers are in: early stopping.

    That loop counts, or ends by a condition that is no comparison of numbers. A loop over data may just have fewer
    iterations. A condition with the same result on every rank parts none.
    """
    depth = depth_of(loop, inside)
    if depth is None:
        return None
    step = inside[depth]
    ends = _end_of_while(loop, step)
    if not ends and not COUNTED.search(loop.header):
        return None
    innermost = step.place is not None and step.place.loops[-1] == loop
    if innermost and not _in_loop(inside[depth + 1 :]):
        return None  # the loop over the batches
    own = outside[0].variables if outside[0].function == step.function else None
    bounds = [name for name in names(loop.header.partition(" in ")[2]) if name in step.variables]
    if own is not None and any(name in own and own[name].length != step.variables[name].length for name in bounds):
        return None
    if any(uniform(name, step, own) is False for name in bounds):
        return None
    if own is not None and _ran_out(loop, own):
        return None
    tests = (*loop.exits, *ends)
    return next((test for test in tests if " None" not in test and not _equal(test, step, own)), None)


def _ran_out(loop: Loop, variables: Mapping[str, Variable]) -> bool | None:
    """True if a counted loop was not left before its last iteration: its counter has reached the end of its range.

    None: the end is not known.
    """
    over = loop.header.partition(" in ")[2]
    counts = [variables[name].number for name in loop.counters if name in targets(loop.header) and name in variables]
    ends = [number for name in names(over) if name in variables and (number := variables[name].number) is not None]
    ends += [float(number) for number in re.findall(r"(?<![\w.])\d{1,15}(?![\w.])", over)]
    return any(at is not None and at + 1 == end for at in counts for end in ends) if ends else None


def _end_of_while(loop: Loop, step: Step) -> tuple[str, ...]:
    """The condition that ends a `while` loop by a flag or by a state; empty for an endless loop, and if it counts."""
    header = WHILE.match(loop.header)
    if header is None or not names(header[1]):
        return ()
    values = [step.variables.get(name) for name in names(header[1])]
    counted = all(value is not None and value.number is not None and value.kind == "int" for value in values)
    if counted or "<" in header[1]:  # self.epoch < self.epochs
        return ()
    return (negated(header[1]),)


def _equal(test: str, step: Step, peer: Mapping[str, Variable] | None) -> bool:
    """True if every name in a condition is a number that is equal on both ranks."""
    roots = {name.split(".")[0] for name in names(test)}
    pairs = [(step.variables.get(root), peer.get(root) if peer else None) for root in roots]
    return all(here and there and here.number is not None and here.number == there.number for here, there in pairs)


def _conditions(step: Step) -> Sequence[Branch]:
    """The conditions under which a step is reached."""
    return (*step.place.guards, *step.place.branches) if step.place else ()


def _parting_condition(outside: Steps, inside: Step, overtaken: bool) -> Branch | None:
    """The condition under which a rank waits and its peers do not: by its rank; if overtaken, any that may differ."""
    shared = inside.place.branches if inside.place else ()
    other = (
        branch
        for step in reversed(outside)
        for branch in reversed(step.place.branches if step.place else ())
        if overtaken and branch.test and branch not in shared
        if not is_library(step.file) and not uniform(branch.test, step, None)
    )
    return _rank_test(outside, inside) or next(other, None)


def _by_callees(found: Relation, a: Steps, b: Steps, depth: int) -> Relation:
    """Refine a relation with the functions called below: a loop one of the ranks is in, a condition it passed."""
    peer_loop, own_loop = _in_loop(b[depth + 1 :]), _in_loop(a[depth + 1 :])
    if peer_loop and _has_left(found, "ahead", peer_loop):
        found = replace(found, kind="left_loop", loop=peer_loop[1])
    elif own_loop and _has_left(found, "behind", own_loop):
        found = replace(found, kind="in_loop", loop=own_loop[1])
    if found.loop is not None:
        return replace(found, branch=_condition_in(b if found.kind == "left_loop" else a, found.loop))
    own, peer = _condition_of(a[depth + 1 :]), _condition_of(b[depth + 1 :])
    if own and not peer:
        return replace(found, kind="in_branch", branch=own)
    if peer and not own:
        return replace(found, kind="out_of_branch", branch=peer)
    return replace(found, skip=_early_return(a[depth + 1 :])) if found.kind == "behind" else found


def _early_return(rest: Steps) -> Branch | None:
    """The `if` that returns before the call in which a rank waits, where no other condition decides on that call."""
    own = [(step, step.place) for step in rest if step.place is not None and not is_library(step.file)]
    if any(_own_branches(step, certain=False) for step, _ in own):
        return None
    returns = (
        guard
        for step, place in own
        for guard in place.guards
        if not any(loop.first < guard.line for loop in place.loops) and uniform(guard.test, step, None) is not True
    )
    return next(returns, None)


def _condition_in(inside: Steps, loop: Loop, certain: bool = True) -> Branch | None:
    """The innermost user-code condition within the loop around the call in which a rank waits.

    `certain`: one whose parts are seen to differ between ranks.
    """
    for step in reversed(inside):
        around = step.place is not None and loop in step.place.loops
        branch = next((b for b in _own_branches(step, certain) if not around or b.line > loop.first), None)
        if branch or around:
            return branch
    return None


def _condition_of(rest: Steps) -> Branch | None:
    """The outermost condition that may differ between ranks, in user code; else one that tests the rank."""
    return next((branch for step in rest for branch in _own_branches(step)), None) or _rank_test(rest)


def _own_branches(step: Step, certain: bool = True) -> list[Branch]:
    """Branches around a user-code frame, innermost first, with a condition that may differ between ranks.

    If not `certain`, also those of which that is unknown, other than "every n-th iteration".
    An `if` before the frame that goes on with the next iteration of its innermost loop is one as well.
    """
    if step.place is None or is_library(step.file):
        return []
    first = step.place.loops[-1].first if step.place.loops else None
    skips = [guard for guard in step.place.guards if first is not None and guard.line > first]
    around = [one for one in reversed([*step.place.branches, *skips]) if one.test]
    found = [one for one in around if uniform(one.test, step, None) is False]
    if found or certain:
        return found
    counters = {name for loop in step.place.loops for name in loop.counters}
    unknown = (one for one in around if counters.isdisjoint(names(one.test)) and uniform(one.test, step, None) is None)
    return sorted(unknown, key=lambda one: -one.line)


def _in_loop(rest: Steps) -> tuple[Step, Loop] | None:
    """The outermost of these frames that is inside a loop, and its innermost loop."""
    return next(
        ((step, of_data[-1]) for step in rest if step.place and (of_data := _data_loops(step.place.loops))), None
    )


def _data_loops(loops: Sequence[Loop]) -> tuple[Loop, ...]:
    """Loops that may run more often on one rank than on another: all but those over parts of a model."""
    return tuple(loop for loop in loops if not MODEL_PARTS.search(loop.header))


def _has_left(found: Relation, beyond: str, inside: tuple[Step, Loop]) -> bool:
    """True if the rank outside a nested loop has passed it, or is before it in a later outer iteration."""
    return found.kind == beyond or (found.kind in ("ahead", "behind") and bool(found.common) and _under_way(inside))


def _under_way(inside: tuple[Step, Loop]) -> bool:
    """True if a loop is past its first iterations: a rank outside it has left it and is in a later outer iteration."""
    step, loop = inside
    counts = [step.variables[name].number for name in loop.counters if name in step.variables]
    return any(count is not None and count >= 2 for count in counts)


def _from_common_root(a: Steps, b: Steps) -> tuple[Steps, Steps]:
    """Both paths from their first common function on: the outermost frames of a pasted stack may be cut off."""
    if a and b and not _is_one_function(a[0], b[0]):
        for depth, step in enumerate(b):
            if _is_one_function(a[0], step):
                return a, b[depth:]
        for depth, step in enumerate(a):
            if _is_one_function(b[0], step):
                return a[depth:], b
    return a, b


def _is_one_function(own: Step, peer: Step) -> bool:
    return (own.file, own.function) == (peer.file, peer.function)


def _lines(path: Steps) -> list[tuple[str, str, int]]:
    return [(step.file, step.function, step.line) for step in path]


def _divergence_depth(a: Steps, b: Steps) -> int | None:
    """Depth of the deepest common function before the lines differ; None if nothing differs or nothing is common."""
    common: int | None = None
    for depth, (own, peer) in enumerate(zip(a, b, strict=False)):
        if not _is_one_function(own, peer):
            return common
        common = depth
        if own.line != peer.line:
            return common
    return common if len(a) != len(b) else None


def _by_lines(own: Step, peer: Step, here: Place, there: Place, again: bool) -> Relation:
    """Relation of two lines of one function, from loops, branches and order; `again`: it is called in a loop."""
    shared = _common_prefix([loop.first for loop in here.loops], [loop.first for loop in there.loops])
    common = here.loops[:shared]
    own_loops, peer_loops = _data_loops(here.loops[shared:]), _data_loops(there.loops[shared:])
    if own_loops and peer_loops:  # two loops in sequence: the rank in the later one has left the earlier one
        later = own_loops[0].first > peer_loops[0].first
        kind, loop = ("left_loop", peer_loops[0]) if later else ("in_loop", own_loops[0])
        return Relation(kind, own, peer, loop, common=common)
    if peer_loops:
        loop = peer_loops[0]
        left = own.line > loop.last or ((again or bool(common)) and _under_way((peer, loop)))
        return Relation("left_loop" if left else "behind", own, peer, loop if left else None, common=common)
    if own_loops:
        loop = own_loops[0]
        left = peer.line > loop.last or ((again or bool(common)) and _under_way((own, loop)))
        return Relation("in_loop" if left else "ahead", own, peer, loop if left else None, common=common)
    return _by_branches(own, peer, here, there, common)


def _by_order(place: Place, own: Steps, peer: Steps) -> str:
    """The relation of two ranks in different functions called on one line, from the order of the calls.

    Of the arms of a conditional expression, no rank goes through both.
    """
    if CONDITIONAL.search(place.text):
        return "other_call"
    names = [call.rsplit(".", 1)[-1] for call in place.calls]
    places = [names.index(rest[0].function) if rest and rest[0].function in names else -1 for rest in (own, peer)]
    if -1 in places or places[0] == places[1]:
        return "other_call"
    return "ahead" if places[0] > places[1] else "behind"


def _by_branches(own: Step, peer: Step, here: Place, there: Place, common: tuple[Loop, ...]) -> Relation:
    forks = _common_prefix([(b.line, b.arm) for b in here.branches], [(b.line, b.arm) for b in there.branches])
    own_branch = next((b for b in here.branches[forks:] if _may_diverge(b, own, peer)), None)
    peer_branch = next((b for b in there.branches[forks:] if _may_diverge(b, peer, own)), None)
    if own_branch and peer_branch and own_branch.line == peer_branch.line:
        return Relation("other_arm", own, peer, branch=own_branch, common=common)
    if own_branch and own_branch.leaves and peer.line > own_branch.line:
        return Relation("other_arm", own, peer, branch=own_branch, common=common)
    if peer_branch and peer_branch.leaves and own.line > peer_branch.line:
        return Relation("other_arm", own, peer, branch=peer_branch, common=common)
    own_branch = _certain(own_branch, here.branches[forks:], own, peer)
    peer_branch = _certain(peer_branch, there.branches[forks:], peer, own)
    if own_branch and own_branch.test:
        return Relation("in_branch", own, peer, branch=own_branch, common=common)
    if peer_branch and peer_branch.test:
        return Relation("out_of_branch", own, peer, branch=peer_branch, common=common)
    if own.line == peer.line:
        return Relation("other_call", own, peer, common=common)
    return Relation("ahead" if own.line > peer.line else "behind", own, peer, common=common)


def _certain(first: Branch | None, branches: Sequence[Branch], step: Step, peer: Step) -> Branch | None:
    """The outermost branch at which ranks are seen to diverge, else the first at which they may."""
    return next((b for b in branches if b.test and uniform(b.test, step, peer.variables) is False), first)


def _may_diverge(branch: Branch, step: Step, peer: Step) -> bool:
    """True if ranks may diverge at a branch; a library's conditions count as uniform unless seen to differ."""
    same = uniform(branch.test, step, peer.variables)
    return same is False or (same is None and not (branch.test and is_library(step.file)))


def _common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the common prefix."""
    count = 0
    for own, peer in zip(a, b, strict=False):
        if own != peer:
            break
        count += 1
    return count
