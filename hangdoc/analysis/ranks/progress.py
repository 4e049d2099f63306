"""Analysis `progress`: what changed between the looks at each rank.

A look is one snapshot of a rank's stacks; a rank that does not change between looks stands still.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.fast_dataclass import fast_dataclass
from hangdoc.analysis.ranks.call_path import Code, LazyCallPath, Step, code_of, is_library
from hangdoc.analysis.ranks.call_path_cache import chain_in, plan_in, thread_named
from hangdoc.analysis.ranks.phases import WAITING, Chain, ProcessContext, phase_of
from hangdoc.analysis.ranks.process import process_looks
from hangdoc.analysis.ranks.stack import StackFacts, is_busy, process_context
from hangdoc.evidence import Process, Source, Stacks, Variable

SHORTEST_S = 0.002  # per iteration: a faster counter does not count training steps
COMPUTES, READS = frozenset({"compute"}), frozenset({"input"})
WORKS = COMPUTES | READS | {"checkpoint"}
MIN_RECENT = 6  # looks, at least, from which the current step time is computed


@fast_dataclass(frozen=True, slots=True)
class ProgressFacts:
    """One rank over the window in which it was watched; shares are 0..1, times in seconds."""

    looks: int  # snapshots of its stacks
    window_s: float | None  # from the first look to the newest
    changed: bool | None  # its stack or a number in its variables changed between looks; None: fewer than two looks
    standing_s: float | None  # time since the newest change, or since the first look
    standing_looks: int  # looks since the newest change, including the one that saw it
    pause_s: float | None  # longest pause between two changes
    cpu_share: float | None  # CPU used by the process: 1.0 is one core
    wait_share: float | None  # share of looks in which it waited for other ranks
    compute_share: float | None  # share of looks in which it computed
    input_share: float | None  # share of looks in which it waited for input
    sites: int  # distinct call paths (by line) it was seen on
    counter: str | None  # the fastest loop counter in user code: "step"
    period_s: float | None  # time per step, from that counter
    recent_s: float | None = None  # the same in the newest third of the window
    completed: bool | None = None  # it left a collective, send or receive between two looks; None: fewer than two looks


@dataclass(frozen=True, slots=True)
class ProgressJob:
    """All ranks over the window in which they were watched."""

    looks: int  # looks at the rank with the fewest
    window_s: float | None  # of the rank watched for the shortest time
    changed: bool | None  # any rank changed; None: no rank was seen twice
    all_changed: bool | None  # every rank changed
    period_s: float | None  # time per step of the slowest rank
    recent_s: float | None = None  # the same in the newest third of the window


@dataclass(frozen=True, slots=True, eq=False)
class Activity:
    """What a thread does and where; ranks and looks of a case with the same activity share one object."""

    phase: str
    op: str | None
    code: Code
    lines: tuple[tuple[str, int], ...]  # function and line of each step
    own: tuple[int, ...]  # indices of the steps in user code
    counters: tuple[tuple[int, str], ...]  # loop counters in user code: index of the step, name


class Look(NamedTuple):
    """One snapshot of the thread that represents a rank."""

    at_s: float
    path: LazyCallPath
    activity: Activity

    @property
    def own(self) -> Sequence[Step]:
        """The steps in user code."""
        return [self.path[at] for at in self.activity.own]

    @property
    def phase(self) -> str:
        return self.activity.phase

    @property
    def op(self) -> str | None:
        return self.activity.op

    @property
    def code(self) -> Code:
        return self.activity.code


class ProgressAnalysis(Analysis[ProgressFacts, ProgressJob]):
    rank_facts = ProgressFacts
    job_facts = ProgressJob
    seen_by = ("stacks", "cpu")

    def derive(self, case: Case) -> tuple[dict[Key, ProgressFacts], ProgressJob]:
        ranks = {key: rank_facts(case, key) for key in case.ranks}
        known = [facts for facts in ranks.values() if facts.changed is not None]
        windows = [facts.window_s for facts in ranks.values() if facts.window_s is not None]
        return ranks, ProgressJob(
            looks=min((facts.looks for facts in ranks.values()), default=0),
            window_s=min(windows, default=None),
            changed=any(facts.changed for facts in known) if known else None,
            all_changed=all(facts.changed for facts in known) if known else None,
            period_s=max((facts.period_s for facts in known if facts.period_s is not None), default=None),
            recent_s=max((facts.recent_s for facts in known if facts.recent_s is not None), default=None),
        )


def looks_at(case: Case, key: Key) -> list[Look]:
    """All looks at one rank, oldest first."""
    known: dict[Key, list[Look]] = case.once("looks", dict)
    if key not in known:
        known[key] = _looks(case, key)
    return known[key]


def own_steps(looks: Sequence[Look]) -> list[Step]:
    """The steps in user code over all looks, in order, each object once."""
    return list({id(step): step for look in distinct(looks) for step in look.own}.values())


def distinct(looks: Sequence[Look]) -> list[Look]:
    """The looks without repetitions of the same call path object."""
    found: dict[int, Look] = {}
    for look in looks:
        found.setdefault(id(look.path), look)
    return list(found.values())


def _looks(case: Case, key: Key) -> list[Look]:
    thread = case.facts(StackFacts)[key].thread
    found: list[Look] = []
    seen: tuple[object, ...] = ()
    for shot, rank in case.rounds(key):
        records = rank.records
        stacks, source, process = records.get("stacks"), records.get("source"), records.get("cpu")
        if isinstance(stacks, Stacks) and stacks.threads:
            busy = is_busy(process) if isinstance(process, Process) else None
            before, seen = seen, (id(stacks), id(source), busy)
            if seen == before:  # unchanged evidence
                found.append(Look(shot.at_s, found[-1].path, found[-1].activity))
            else:
                context = process_context(case, key, busy, stacks)
                found.append(_look(case, shot.at_s, stacks, source, thread, context, found[-1] if found else None))
    return found


def _look(
    case: Case,
    at_s: float,
    stacks: Stacks,
    source: Source | None,
    thread: str | None,
    context: ProcessContext,
    before: Look | None,
) -> Look:
    """One look; it shares the call path object with the previous look if nothing changed."""
    stack = thread_named(stacks, thread)
    chain, plan = chain_in(case, stack), plan_in(case, stack, source)
    path = LazyCallPath(plan, stack, stacks.globals, case.once("steps", dict))
    activity = case.once((id(chain), id(plan), context), lambda: _spot(chain, path, context))
    return Look(at_s, before.path if before and path.is_same(before.path) else path, activity)


def _spot(chain: Chain, path: Sequence[Step], context: ProcessContext) -> Activity:
    counters = [
        (at, name)
        for at, step in enumerate(path)
        if step.place and not is_library(step.file)
        for loop in step.place.loops
        for name in loop.counters
    ]
    lines = tuple([(step.function, step.line) for step in path])
    own = tuple([at for at, step in enumerate(path) if not is_library(step.file)])
    return Activity(*phase_of(chain, path, context), code_of(path), lines, own, tuple(counters))


def activities(looks: Sequence[Look]) -> tuple[Activity, ...]:
    """The activity in each look: a cache key, equal for ranks that did the same throughout."""
    return tuple([look.activity for look in looks])


def rank_facts(case: Case, key: Key) -> ProgressFacts:
    """The facts of one rank."""
    looks = looks_at(case, key)
    changes = [b.at_s for a, b in pairwise(looks) if a.path is not b.path and _differ(a, b)]
    window = looks[-1].at_s - looks[0].at_s if len(looks) > 1 else None
    last = changes[-1] if changes else looks[0].at_s if looks else None
    seen = activities(looks)
    shares = case.once(("shares", seen), lambda: _shares(seen))
    counter, period = _step(looks)
    recent = looks[-max(MIN_RECENT, len(looks) // 3) :]
    ended = [b - a for a, b in pairwise([looks[0].at_s, *changes])] if changes else []
    return ProgressFacts(
        looks=len(looks),
        window_s=window,
        changed=bool(changes) if len(looks) > 1 else None,
        standing_s=looks[-1].at_s - last if last is not None else None,
        standing_looks=sum([look.at_s >= last for look in looks]) if last is not None else 0,
        pause_s=max(ended, default=None),
        cpu_share=_cpu_share(case, key),
        wait_share=shares.waits,
        compute_share=shares.computes,
        input_share=shares.reads,
        sites=shares.sites,
        counter=counter,
        period_s=period,
        recent_s=period if len(recent) == len(looks) else _step(recent)[1],
        completed=any(map(_has_completed, looks, looks[1:])) if len(looks) > 1 else None,
    )


def _has_completed(before: Look, after: Look) -> bool:
    """True if a rank left a collective for work or another collective: one that only sleeps may be about to retry."""
    old, new = before.activity, after.activity
    if before.phase not in WAITING or old is new or old.lines == new.lines:
        return False
    return after.phase in WORKS or after.phase in WAITING


def _differ(a: Look, b: Look) -> bool:
    """True if the lines of the call path or the numbers in its variables differ."""
    if a.activity is not b.activity and a.activity.lines != b.activity.lines:
        return True
    return any(_count_on(old, new) for old, new in a.path.beside(b.path))


def _count_on(old: Sequence[Variable], new: Sequence[Variable]) -> bool:
    """True if a number among the variables of a step changed."""
    if old is new:
        return False
    if len(old) != len(new):
        return _numbers(old) != _numbers(new)
    for before, now in zip(old, new, strict=True):
        if before is not now:
            if before.name != now.name:  # in another order
                return _numbers(old) != _numbers(new)
            if before.number != now.number:
                return True
    return False


def _numbers(variables: Sequence[Variable]) -> dict[str, float]:
    return {v.name: v.number for v in variables if v.number is not None}


def _step(looks: Sequence[Look]) -> tuple[str | None, float | None]:
    """The loop counter that grew most over the looks, and its time per step (s)."""
    grown: dict[str, float] = {}
    moved = [*looks[:1], *[b for a, b in pairwise(looks) if a.path is not b.path]]
    if len(moved) < 2:
        return None, None
    for old, new in pairwise(map(_counters, moved)):
        for name, value in new.items():
            grown[name] = grown.get(name, 0.0) + max(0.0, value - old.get(name, value))
    seconds = looks[-1].at_s - looks[0].at_s
    periods = {name: seconds / steps for name, steps in grown.items() if 0 < steps <= seconds / SHORTEST_S}
    name = min(periods, key=lambda n: periods[n], default="")
    return (name, periods[name]) if name else (None, None)


def _counters(look: Look) -> dict[str, float]:
    """Values of the counters of the user-code loops that a rank is in."""
    return {
        name: variable.number
        for at, name in look.activity.counters
        for variable in look.path.variables(at)
        if variable.name == name and variable.number is not None
    }


class _Shares(NamedTuple):
    """Shares of the looks, and the number of distinct call paths."""

    waits: float | None
    computes: float | None
    reads: float | None
    sites: int


def _shares(seen: Sequence[Activity]) -> _Shares:
    waits, computes, reads = (_share(seen, phases) for phases in (WAITING, COMPUTES, READS))
    return _Shares(waits, computes, reads, len({activity.lines for activity in seen}))


def _share(seen: Sequence[Activity], phases: Collection[str]) -> float | None:
    return sum([activity.phase in phases for activity in seen]) / len(seen) if seen else None


def _cpu_share(case: Case, key: Key) -> float | None:
    series = process_looks(case, key)
    if len(series) < 2 or series[-1][0] <= series[0][0]:
        return None
    (start, first), (end, last) = series[0], series[-1]
    return max(0.0, last.cpu_s - first.cpu_s) / (end - start)


ANALYSIS = ProgressAnalysis()
