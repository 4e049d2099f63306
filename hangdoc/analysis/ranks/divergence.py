"""Analysis `position`: where each rank's call path diverges from that of the ranks that wait.

Ranks on the same lines form a side. The reference is the largest side that waits; on a tie, the one that is behind.
Every rank on another side is an outlier, and its relation to the reference says how the two diverged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.ranks.call_path import CallPath, Frames, Step, Steps, Thread, is_library, per_path
from hangdoc.analysis.ranks.conditions import negated, parts_by_rank
from hangdoc.analysis.ranks.judged_thread import comparison_key, judged_thread, names_in
from hangdoc.analysis.ranks.path_comparison import Relation, depth_of, relate
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import Branch, Loop, Variable

Signature = tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, slots=True)
class DivergenceFacts:
    """One rank compared with the reference side; None: its stacks were not seen, or the field does not apply."""

    side: int | None = None  # number of its side; 0 is the reference
    outlier: bool | None = None  # it is not on the reference side
    relation: str | None = None  # `path_comparison.Relation.kind`, seen from this rank; "same" on the reference side
    parted: str | None = None  # its line in the function where they diverged: "main (train.py:31)"
    parted_other: str | None = None  # the reference's line in that function
    loop: str | None = None  # header of the loop that one side has left: "for step, batch in enumerate(loader):"
    loop_line: int | None = None  # line of that header
    loop_site: str | None = None  # function and line of that header: "fit (trainer.py:214)"
    loop_counter: str | None = None  # counter of that loop
    loop_count: float | None = None  # its value on the side that is still in the loop
    equal_laps: bool | None = None  # both sides ran that loop equally often, by its counter
    in_try: bool | None = None  # the call in that loop is in the body of a `try`: a swallowed exception leaves it out
    exit: str | None = None  # condition under which a side left that loop before its last iteration
    branch: str | None = None  # condition of the branch that only one side is in
    branch_line: int | None = None
    branch_site: str | None = None  # function and line of that condition: "report (train.py:49)"
    branch_in_framework: bool | None = None  # a framework decides by that condition, and calls no user code there
    branch_below: bool | None = None  # it is below the place where they diverged, whose source was not seen
    skip: str | None = None  # condition under which the reference may have returned before the call of this rank
    skip_site: str | None = None  # function and line of that condition: "loss (criterion.py:61)"
    by_rank: bool | None = None  # `branch` tests the rank: "rank == 0"
    outer: str | None = None  # counter of a loop around both sides: the outermost that differs, else the innermost
    outer_count: float | None = None  # its value on this rank
    outer_count_other: float | None = None  # its value on the reference side
    same_lap: bool | None = None  # both are in the same iteration of the innermost loop around both
    will_arrive: bool | None = None  # it can still reach the line where the reference waits; None: unknown
    passed: bool | None = None  # `counter` counts a loop that this rank has left
    counter: str | None = None  # a loop counter that differs from the reference
    count: float | None = None  # its value on this rank
    count_other: float | None = None  # its value on the reference side
    size: str | None = None  # another number or length that differs from the reference: "n", "len(shard)"
    size_here: float | None = None  # its value on this rank
    size_other: float | None = None  # its value on the reference side
    size_bounds: bool | None = None  # `loop` runs as often as that says: "for m in range(n):"
    same_operation: bool | None = None  # it waits in the same operation as the reference
    beside_gpu: bool | None = None  # the reference waits for the GPU: what for is not seen
    same_site: bool | None = None  # it is at the same line of user code as the reference
    aside: str | None = None  # a save or an evaluation that no other side is in: "maybe_save (train.py:288)"
    inner: str | None = None  # its innermost library frame, if its line of user code is also on another side's path


@dataclass(frozen=True, slots=True)
class DivergenceJob:
    """The sides of the job."""

    sides: int  # number of sides: distinct lines at which ranks are
    outlier: tuple[int, ...]  # ranks of the other sides
    tied: bool  # another side is as large as the reference
    uncertain: bool  # ranks that were not seen could make another side as large as the reference


CORE = re.compile(r"/(?:site|dist)-packages/torch/|/lib/python3[.\d]*/(?!(?:site|dist)-packages/)|^<")  # no framework

# Names of functions that a script often calls on some ranks only. `torch.utils.checkpoint` is part of a forward pass.
ASIDE = re.compile(
    r"^(?!.*(?:load|resume|restore)).*?(?:_checkpoint$|^checkpoint_|(?:^|_)(?:save|saves|saving|savecheckpoint|ckpt"
    r"|eval|evaluat\w{1,9}|validat(?:e|ion)\w{0,9}|export|upload|push_to_hub|visuali[sz]e)(?:_|$))"
)

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
    """A number that differs between two ranks."""

    name: str
    here: float
    there: float
    passed: bool = False  # it counts a loop that the first rank has left


class DivergenceAnalysis(Analysis[DivergenceFacts, DivergenceJob]):
    rank_facts = DivergenceFacts
    job_facts = DivergenceJob
    seen_by = ("stacks", "aftermath")

    def derive(self, case: Case) -> tuple[dict[Key, DivergenceFacts], DivergenceJob]:
        stack = case.facts(StackFacts)
        sides = _sides(_cohorts(case, stack))
        facts = dict.fromkeys(case.ranks, DivergenceFacts())
        if not sides:
            return facts, DivergenceJob(0, (), False, False)
        ranks = {key: evidence.target.rank for key, evidence in case.ranks.items()}
        reference = Reference(case, sides[0])
        shared = _shared_lines(sides)
        aside = _aside(sides)
        for number, side in enumerate(sides):
            for cohort in side:
                known: dict[Hashable, DivergenceFacts] = {}
                # On the same lines there is nothing to compare.
                same = number == 0 and cohort.thread.path.python == reference.thread.path.python
                # Ranks that compile are at many places of the compiler, none of which explains anything.
                compiles = stack[cohort.keys[0]].phase == "compile"
                inner = None if compiles else _inner(cohort.thread.path, shared)
                for key in cohort.keys:
                    variables = None if same else comparison_key(case, key, reference.names)
                    if variables not in known:
                        found = _facts(key, number, reference, stack, ranks, inner)
                        known[variables] = replace(found, aside=aside.get(number))
                    facts[key] = known[variables]
        unseen = _unseen(case)
        return facts, DivergenceJob(
            sides=len(sides),
            outlier=_numbers([key for side in sides[1:] for cohort in side for key in cohort.keys], ranks),
            tied=len(sides) > 1 and _size(sides[1]) == _size(sides[0]),
            uncertain=len(sides) > 1 and 0 < unseen >= _size(sides[0]) - _size(sides[1]),
        )


@dataclass(slots=True)
class Cohort:
    """Ranks on the same lines in the same operation."""

    keys: list[Key]
    thread: Thread  # of the first of them
    op: str | None
    waits: bool | None


Side = Sequence[Cohort]


def _cohorts(case: Case, stack: Mapping[Key, StackFacts]) -> list[Cohort]:
    by_lines: dict[tuple[Frames, str | None, bool | None], Cohort] = {}
    by_path: dict[tuple[CallPath, str | None, bool | None], Cohort] = {}  # few are looked up by their lines
    threads = {key: judged_thread(case, key) for key in stack}
    # Without any Python frame, ranks differ by their operations. A dump of another tool beside would differ by itself.
    python = any(thread is not None and thread.path.python for thread in threads.values())
    for key, facts in stack.items():
        thread = threads[key]
        if thread is not None and (thread.path.python or (not python and facts.op is not None)):
            at = thread.path, facts.op, facts.waits
            cohort = by_path.get(at)
            if cohort is None:
                new = Cohort([], thread, facts.op, facts.waits)
                cohort = by_path[at] = by_lines.setdefault((thread.path.python, facts.op, facts.waits), new)
            if thread.path.source and not cohort.thread.path.source:  # the first rank stands for all
                cohort.keys.insert(0, key)
                cohort.thread = thread
            else:
                cohort.keys.append(key)
    return list(by_lines.values())


def _sides(cohorts: Sequence[Cohort]) -> list[Side]:
    """The sides, the reference first."""
    by_signature: dict[tuple[Signature, str | None], list[Cohort]] = {}
    for cohort in cohorts:
        signature = _signature(cohort.thread.path)
        by_signature.setdefault((signature, cohort.op), []).append(cohort)

    def priority(side: Side) -> tuple[bool, int, int]:
        peers = (peer[0].thread for peer in by_signature.values() if peer is not side)
        ahead = sum(relate(side[0].thread, peer).kind in ("in_loop", "behind", "out_of_branch") for peer in peers)
        return bool(side[0].waits), _size(side), ahead

    return sorted(by_signature.values(), key=priority, reverse=True)


def _size(side: Side) -> int:
    return sum(len(cohort.keys) for cohort in side)


def _unseen(case: Case) -> int:
    """Number of living ranks that could be on any side: their stacks, or the source of these, were not seen."""
    records = [rank.records for rank in case.ranks.values() if rank.alive is not False]
    needed = {"stacks"}.union(*[record.keys() & {"source"} for record in records])
    return sum(not needed <= record.keys() for record in records)


@per_path
def _signature(path: CallPath) -> Signature:
    """The lines in user code and frameworks; lines inside torch vary without meaning."""
    lines = [(step.file, step.function, step.line) for step in path.steps]
    return tuple([line for line in lines if "/torch/" not in line[0]] or lines)


def _aside(sides: Sequence[Side]) -> dict[int, str]:
    """The only side of several that is in a function of a save, an evaluation or the like, with its outermost one."""
    found: dict[int, str] = {}
    for number, side in enumerate(sides):
        if site := _aside_at(side[0].thread.path):
            found[number] = site
    return found if len(found) == 1 < len(sides) else {}


@per_path
def _aside_at(path: CallPath) -> str | None:
    found = (step for step in path.steps if ASIDE.search(step.function) and "/torch/" not in step.file)
    return next((step.site for step in found), None)


def _shared_lines(sides: Sequence[Side]) -> Collection[Signature]:
    """Call paths down to a line of user code, that more than one side has in common."""
    found: Counter[Signature] = Counter()
    for side in sides:
        found.update({prefix for one in side for prefix in _down_to_own(one.thread.path)})
    return {prefix for prefix, count in found.items() if count > 1}


@per_path
def _down_to_own(path: CallPath) -> Sequence[Signature]:
    """The call path down to each line of user code, outermost first."""
    lines = [(step.file, step.function, step.line) for step in path.steps]
    return [tuple(lines[: depth + 1]) for depth in path.own]


def _inner(path: CallPath, shared: Collection[Signature]) -> str | None:
    """The innermost frame in a framework, if ranks of another side are at the same line of user code."""
    own = _down_to_own(path)
    if not own or own[-1] not in shared:
        return None
    below = path.steps[path.own[-1] + 1 :]
    return next((step.site for step in reversed(below) if not CORE.search(step.file)), None)


class Reference:
    """The reference side, and the variables on which its ranks agree."""

    def __init__(self, case: Case, side: Side) -> None:
        self.case, self.keys = case, [key for cohort in side for key in cohort.keys]
        self.thread = side[0].thread
        self.names = names_in(self.thread.path)
        self._agreed: dict[tuple[int, str], bool] = {}

    def agreed(self, depth: int, label: str) -> bool:
        """True if the number, or the length, is equal on all its ranks."""
        if (depth, label) not in self._agreed:
            threads = (thread for key in self.keys if (thread := judged_thread(self.case, key)))
            values = (_value(thread.variables(depth) if depth < len(thread) else (), label) for thread in threads)
            first = next(values)
            self._agreed[depth, label] = all(value == first for value in values)
        return self._agreed[depth, label]


def _facts(
    key: Key,
    number: int,
    reference: Reference,
    stack: Mapping[Key, StackFacts],
    ranks: dict[Key, int | None],
    inner: str | None,
) -> DivergenceFacts:
    own, peer, first = judged_thread(reference.case, key) or (), reference.thread, reference.keys[0]
    relation = relate(own, peer)
    outlier = number > 0
    arm = _within(relation.branch, own, peer) if relation.branch else ()
    within = peer if relation.kind == "left_loop" else own
    inside = _count(relation.loop, within) if relation.loop else None
    counter = next(_counters(own, peer), None) if outlier else None
    laps = relation.laps if outlier else None
    own_ranks = (ranks[key], ranks[first])  # a variable that holds the rank differs by design
    sizes = (d for d in _sizes(own, reference) if (d.here, d.there) != own_ranks) if outlier else iter(())
    length = next((d for d in sizes if counter is None or d.name != counter.name), None)
    kind = "apart" if outlier and relation.kind == "same" and not own else relation.kind  # native frames alone
    return DivergenceFacts(
        side=number,
        outlier=outlier,
        relation=kind if outlier else "same",
        parted=relation.own.site if relation.own else None,
        parted_other=relation.peer.site if relation.peer else None,
        loop=relation.loop.header if relation.loop else None,
        loop_line=relation.loop.first if relation.loop else None,
        loop_site=_site_of(relation.loop, own, peer) if relation.loop else None,
        loop_counter=inside[0] if inside else None,
        loop_count=inside[1] if inside else None,
        equal_laps=relation.equal_laps if relation.loop else None,
        in_try=_is_in_try(relation.loop, within) if relation.loop else None,
        exit=relation.exit,
        branch=_condition(relation.branch) if relation.branch else None,
        branch_line=relation.branch.line if relation.branch else None,
        branch_site=f"{arm[0].function} ({arm[0].base}:{relation.branch.line})" if relation.branch and arm else None,
        branch_in_framework=all(is_library(step.file) for step in arm) if arm else None,
        branch_below=relation.below if relation.branch else None,
        skip=relation.skip.test if relation.skip and outlier else None,
        skip_site=_skip_site(relation.skip, own) if relation.skip and outlier else None,
        by_rank=parts_by_rank(relation.branch.test) if relation.branch else None,
        outer=laps.counter if laps else None,
        outer_count=laps.own if laps else None,
        outer_count_other=laps.peer if laps else None,
        same_lap=laps.innermost and laps.own == laps.peer if laps else None,
        will_arrive=_will_arrive(relation) if outlier else None,
        passed=counter.passed if counter else None,
        counter=counter.name if counter else None,
        count=counter.here if counter else None,
        count_other=counter.there if counter else None,
        size=length.name if length else None,
        size_here=length.here if length else None,
        size_other=length.there if length else None,
        size_bounds=_names(relation.loop.header, length.name) if length and relation.loop else None,
        same_operation=stack[key].op == stack[first].op and bool(stack[key].waits),
        beside_gpu=stack[first].on_gpu,
        same_site=_at_one_site(stack[key], stack[first], relation, own),
        inner=inner,
    )


def _skip_site(skip: Branch, path: Steps) -> str | None:
    """Function and line of an early return, which is in one of these frames."""
    within = (step for step in path if step.place and skip in step.place.guards)
    return next((f"{step.function} ({step.base}:{skip.line})" for step in within), None)


def _at_one_site(own: StackFacts, peer: StackFacts, relation: Relation, path: Steps) -> bool:
    """True if both are at one line of user code; without such code, in frameworks, if their paths did not split."""
    if (own.site, own.file) != (peer.site, peer.file):
        return False
    if not path:
        return own.op == peer.op
    split = relation.own is not None and relation.peer is not None and relation.own.line != relation.peer.line
    return not split or any(not is_library(step.file) for step in path)


def _names(header: str, variable: str) -> bool:
    """True if the header of a loop names this variable, or the one whose length it is."""
    variable = variable.removeprefix("len(").removesuffix(")")
    return re.search(rf"(?<![\w.]){re.escape(variable)}(?!\w)", header) is not None


def _condition(branch: Branch) -> str:
    """What holds in this arm."""
    return negated(branch.test) if branch.arm == "else" and branch.test else branch.test


def _within(branch: Branch, *paths: Steps) -> Steps:
    """The steps from the one in this arm on."""
    for path in paths:
        for depth, step in enumerate(path):
            if step.place and branch in (*step.place.branches, *step.place.guards):
                return path[depth:]
    return ()


def _site_of(loop: Loop, *paths: Steps) -> str | None:
    steps = (step for path in paths for step in path if step.place and loop in step.place.loops)
    return next((f"{step.function} ({step.base}:{loop.first})" for step in steps), None)


def _count(loop: Loop, path: Steps) -> tuple[str, float] | None:
    """Name and value of the loop's counter on the rank that is inside the loop."""
    for step in path:
        if step.place and loop in step.place.loops:
            values = ((name, step.variables[name].number) for name in loop.counters if name in step.variables)
            return next(((name, value) for name, value in values if value is not None), None)
    return None


def _is_in_try(loop: Loop, path: Steps) -> bool:
    """True if user code of the rank inside the loop is in the body of a `try` within it."""
    depth = depth_of(loop, path)
    return depth is not None and any(
        not branch.test and branch.arm == "body" and (below or branch.line > loop.first)
        for below, step in enumerate(path[depth:])
        if step.place and not is_library(step.file)
        for branch in step.place.branches
    )


def _will_arrive(relation: Relation) -> bool | None:
    if relation.kind == "apart" or relation.own is None or relation.peer is None:
        return None
    if relation.kind in ("left_loop", "other_arm"):
        return False
    return relation.own.line <= relation.peer.line or bool(relation.common)


def _aligned(a: Steps, b: Steps) -> Iterator[tuple[Step, Step]]:
    """Pairs of steps in the same function at the same depth, outermost first."""
    for own, peer in zip(a, b, strict=False):
        if (own.file, own.function) != (peer.file, peer.function):
            return
        yield own, peer


def _counters(a: Steps, b: Steps) -> Iterator[Difference]:
    """Loop counters that differ between two ranks, of current and past loops; past loops first."""
    found: list[Difference] = []
    for own, peer in _aligned(a, b):
        if own.place is None or peer.place is None:
            continue
        inside = {name for loop in own.place.loops for name in loop.counters}
        loops = (*own.place.loops, *peer.place.loops, *own.place.passed, *peer.place.passed)
        for name in dict.fromkeys(name for loop in loops for name in loop.counters):
            here, there = own.variables.get(name), peer.variables.get(name)
            if here and there and here.number is not None and there.number is not None and here.number != there.number:
                found.append(Difference(name, here.number, there.number, name not in inside))
    yield from sorted(found, key=lambda difference: not difference.passed)


def _sizes(path: Steps, reference: Reference) -> Iterator[Difference]:
    """Other numbers and lengths that are equal on the reference side and differ on this rank."""
    for depth, (own, peer) in enumerate(_aligned(path, reference.thread)):
        if is_library(own.file):
            continue
        for name, variable in own.variables.items():
            if any(word in name.lower() for word in MUST_DIFFER) or name not in peer.variables:
                continue
            for label, here, there in (
                (
                    name,
                    variable.number if variable.kind == "int" else None,
                    peer.variables[name].number,
                ),
                (
                    f"len({name})",
                    variable.length if variable.kind != "str" else None,
                    peer.variables[name].length,
                ),
            ):
                if here is not None and there is not None and here != there and reference.agreed(depth, label):
                    yield Difference(label, here, there)


def _value(variables: Sequence[Variable], label: str) -> float | None:
    name = label[4:-1] if label.startswith("len(") else label
    for variable in variables:
        if variable.name == name:
            return variable.length if label.startswith("len(") else variable.number
    return None


def _numbers(keys: Sequence[Key], ranks: dict[Key, int | None]) -> tuple[int, ...]:
    return tuple(sorted(rank for key in keys if (rank := ranks[key]) is not None))


ANALYSIS = DivergenceAnalysis()
