"""Where a rank stands: its call chain with the source around each line, and how two ranks' chains relate.

The deepest function that two ranks share is where they parted. The loops and branches around the two lines there say
how: one left the loop the other is in, one took a branch, or one is simply further on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hangdoc.evidence import Branch, Frame, Loop, Place, Source, Stack, Variable

ROOT_FUNCTIONS = ("<module>",)
KEYWORDS = frozenset({"and", "or", "not", "in", "is", "None", "True", "False", "if", "else", "len", "int"})


@dataclass(frozen=True, slots=True)
class Step:
    """One frame of a story."""

    function: str
    file: str
    line: int
    short: str
    place: Place | None
    variables: Mapping[str, Variable]

    @property
    def site(self) -> str:
        return f"{self.function} ({self.short.rsplit('/', 1)[-1]}:{self.line})"


Story = Sequence[Step]  # outermost first


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
    branch: Branch | None = None  # that only one is in, or within the loop the condition of what the other waits for
    common: tuple[Loop, ...] = ()  # loops around both


def tell(stack: Stack, source: Source | None, module: Sequence[Variable] | None) -> list[Step]:
    """The story of a thread: its Python frames, outermost first, without the interpreter's own start-up frames."""
    places = source.places if source else {}
    frames = [frame for frame in reversed(stack.frames) if not frame.native and frame.line is not None]
    first = next((i for i, frame in enumerate(frames) if not _launching(frame)), 0)
    return [
        Step(
            frame.function,
            frame.file,
            frame.line or 0,
            frame.short or frame.file,
            places.get(f"{frame.file}:{frame.line}"),
            {v.name: v for v in _variables(frame, module)},
        )
        for frame in frames[first:]
    ]


def is_library(file: str) -> bool:
    """True for torch, site-packages, the standard library and frozen modules: not the user's own code."""
    return "/site-packages/" in file or "/dist-packages/" in file or "/lib/python3" in file or file.startswith("<")


def user_step(story: Story) -> Step | None:
    """The innermost frame of the user's own code, or the innermost of all where there is none."""
    own = [step for step in story if not is_library(step.file)]
    return own[-1] if own else (story[-1] if story else None)


def relate(a: Story, b: Story) -> Relation:
    """How `a` stands to `b` (see `Relation`)."""
    depth = _parting(a, b)
    if depth is None:
        return Relation("same" if _lines(a) == _lines(b) else "apart")
    mine, other = a[depth], b[depth]
    if mine.place is None or other.place is None:
        return Relation("apart", mine, other)
    found = _relate_lines(mine, other, mine.place, other.place)
    # further on in the caller, while the other is in a loop of a function called before: it has left that loop too
    if found.kind == "ahead" and (inner := _in_loop(b[depth + 1 :])):
        found = replace(found, kind="left_loop", loop=inner.loops[-1])
    elif found.kind == "behind" and (inner := _in_loop(a[depth + 1 :])):
        found = replace(found, kind="in_loop", loop=inner.loops[-1])
    if found.kind in ("left_loop", "in_loop"):
        return replace(found, branch=_condition(b if found.kind == "left_loop" else a, found.loop, mine, other))
    return found


def _condition(inside: Story, loop: Loop | None, mine: Step, other: Step) -> Branch | None:
    """The innermost condition, within the loop, under which the rank inside it came to where it waits."""
    for step in reversed(inside):
        for branch in reversed(step.place.branches if step.place else ()):
            if branch.test and loop and branch.line > loop.first and not _uniform(branch, step, mine, other):
                return branch
        if step.place and loop in step.place.loops:
            return None
    return None


def _uniform(branch: Branch, step: Step, mine: Step, other: Step) -> bool:
    """A condition on loop counters, and on numbers that agree, comes out alike on every rank at the same iteration."""
    counters = {name for loop in (step.place.loops if step.place else ()) for name in loop.counters}
    names = set(re.findall(r"(?<![\w.])[A-Za-z_][\w.]*", branch.test)) - KEYWORDS
    agreed = {
        name
        for name, variable in mine.variables.items()
        if name in other.variables and variable.number is not None and variable.number == other.variables[name].number
    }
    return bool(names & counters) and names <= counters | agreed


def _lines(story: Story) -> list[tuple[str, str, int]]:
    return [(step.file, step.function, step.line) for step in story]


def _in_loop(rest: Story) -> Place | None:
    """The outermost of these frames that stands in a loop."""
    return next((step.place for step in rest if step.place and step.place.loops), None)


def _parting(a: Story, b: Story) -> int | None:
    """Depth of the deepest function both are in before their lines part; None where nothing differs or is shared."""
    common: int | None = None
    for depth, (mine, other) in enumerate(zip(a, b, strict=False)):
        if (mine.file, mine.function) != (other.file, other.function):
            return common
        common = depth
        if mine.line != other.line:
            return common
    return common if len(a) != len(b) else None


def _relate_lines(mine: Step, other: Step, here: Place, there: Place) -> Relation:
    shared = _shared(here.loops, there.loops)
    common = here.loops[:shared]
    my_loops, other_loops = here.loops[shared:], there.loops[shared:]
    if other_loops and not my_loops:
        loop = other_loops[0]
        kind = "left_loop" if mine.line > loop.last else "behind" if mine.line < loop.first else "apart"
        return Relation(kind, mine, other, loop, common=common)
    if my_loops and not other_loops:
        loop = my_loops[0]
        kind = "in_loop" if other.line > loop.last else "ahead" if other.line < loop.first else "apart"
        return Relation(kind, mine, other, loop, common=common)
    if my_loops and other_loops:  # two loops one after the other: the later one's rank has left the earlier loop
        mine_first, other_first = my_loops[0], other_loops[0]
        if mine_first.first > other_first.first:
            return Relation("left_loop", mine, other, other_first, common=common)
        return Relation("in_loop", mine, other, mine_first, common=common)
    forks = _shared_branches(here.branches, there.branches)
    my_branch = next((b for b in here.branches[forks:] if not _uniform(b, mine, mine, other)), None)
    other_branch = next((b for b in there.branches[forks:] if not _uniform(b, other, mine, other)), None)
    if my_branch and other_branch and my_branch.line == other_branch.line:
        return Relation("other_arm", mine, other, branch=my_branch, common=common)
    if my_branch and my_branch.test:
        return Relation("in_branch", mine, other, branch=my_branch, common=common)
    if other_branch and other_branch.test:
        return Relation("out_of_branch", mine, other, branch=other_branch, common=common)
    if mine.line == other.line:
        return Relation("other_call", mine, other, common=common)
    return Relation("ahead" if mine.line > other.line else "behind", mine, other, common=common)


def _shared(a: Sequence[Loop], b: Sequence[Loop]) -> int:
    count = 0
    for mine, other in zip(a, b, strict=False):
        if mine.first != other.first:
            break
        count += 1
    return count


def _shared_branches(a: Sequence[Branch], b: Sequence[Branch]) -> int:
    count = 0
    for mine, other in zip(a, b, strict=False):
        if (mine.line, mine.arm) != (other.line, other.arm):
            break
        count += 1
    return count


def _launching(frame: Frame) -> bool:
    """Frames of runpy, multiprocessing.spawn and the like, which stand above the user's code and say nothing."""
    return (
        frame.file.startswith("<frozen runpy") or "/multiprocessing/" in frame.file or frame.file.endswith("runpy.py")
    )


def _variables(frame: Frame, module: Sequence[Variable] | None) -> Sequence[Variable]:
    if frame.function in ROOT_FUNCTIONS and not frame.variables:
        return module or ()
    return frame.variables or ()
