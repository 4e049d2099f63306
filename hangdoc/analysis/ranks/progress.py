"""Analysis `progress`: what changed between the looks at each rank.

A look is one snapshot of a rank's stacks; a rank that does not change between looks stands still.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.fast_dataclass import fast_dataclass
from hangdoc.analysis.ranks.call_path import CallPath, Step, Thread, per_path
from hangdoc.analysis.ranks.judged_thread import judged_thread
from hangdoc.analysis.ranks.phases import WAITING, ProcessContext
from hangdoc.analysis.ranks.process import process_looks
from hangdoc.analysis.ranks.process_context import POLLERS, is_busy, process_context
from hangdoc.analysis.ranks.training_thread import in_look, phase
from hangdoc.analysis.thresholds import MIN_STEP_S, WATCHED_LOOKS
from hangdoc.evidence import Process, Stacks, Variable

COMPUTES = frozenset({"compute", "gpu"})
WORKS = frozenset({"compute", "gpu", "input", "checkpoint"})


@fast_dataclass(frozen=True, slots=True)
class ProgressFacts:
    """One rank over the window in which it was watched; shares are 0..1, times in seconds."""

    looks: int  # snapshots of its stacks
    window_s: float | None  # from the first look to the newest
    changed: bool | None  # its stack or a number in its variables changed between looks; None: fewer than two looks
    standing_s: float | None  # time since the newest change, or since the first look
    standing_looks: int  # looks since the newest change, including the one that saw it
    pause_s: float | None  # longest pause that has ended: from the first to the last look at the same
    cpu_share: float | None  # CPU used by the process: 1.0 is one core
    wait_share: float | None  # share of looks in which it waited for other ranks
    compute_share: float | None  # share of looks in which it computed, or waited for its GPU to compute
    sites: int  # distinct call paths (by line) it was seen on
    period_s: float | None  # time per step, by the loop counter in user code that grew most
    recent_s: float | None = None  # the same in the newest third of the window
    # That counter is of a loop around the waits for other ranks, and counts steps, not epochs or parts of a step. None:
    # it was not seen to wait.
    steps_counted: bool | None = None
    completed: bool | None = None  # it left a collective, send or receive between two looks; None: fewer than two looks
    # The counter of a `for` loop grew, and fell back only when that of an outer loop grew. None: fewer than two looks.
    advanced: bool | None = None


@dataclass(frozen=True, slots=True)
class ProgressJob:
    """All ranks over the window in which they were watched."""

    looks: int  # looks at the rank with the fewest
    window_s: float | None  # of the rank watched for the shortest time
    changed: bool | None  # any rank changed; None: no rank was seen twice
    period_s: float | None  # time per step of the slowest rank
    recent_s: float | None = None  # the same in the newest third of the window
    steps_counted: bool = True  # False: nothing shows that `period_s` is the time of a step

    @property
    def step_s(self) -> float | None:
        """Time per step of the slowest rank. None: no counter shows it."""
        return self.period_s if self.steps_counted else None


@dataclass(frozen=True, slots=True, eq=False)
class Activity:
    """What a thread does and where; ranks and looks of a case with the same activity share one object."""

    phase: str
    op: str | None
    path: CallPath


class Look(NamedTuple):
    """One snapshot of the thread that represents a rank."""

    at_s: float
    thread: Thread
    activity: Activity

    @property
    def path(self) -> CallPath:
        return self.activity.path

    @property
    def own(self) -> Sequence[Step]:
        """The steps in user code."""
        return [self.thread[depth] for depth in self.path.own]

    @property
    def phase(self) -> str:
        return self.activity.phase

    @property
    def op(self) -> str | None:
        return self.activity.op


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
            period_s=max((facts.period_s for facts in known if facts.period_s is not None), default=None),
            recent_s=max((facts.recent_s for facts in known if facts.recent_s is not None), default=None),
            steps_counted=_steps_counted(known),
        )


def looks_at(case: Case, key: Key) -> list[Look]:
    """All looks at one rank, oldest first."""
    known: dict[Key, list[Look]] = case.once("looks", dict)
    if key not in known:
        known[key] = _looks(case, key)
    return known[key]


def own_steps(looks: Sequence[Look]) -> list[Step]:
    """The steps in user code over all looks, in order, each object once."""
    return list(dict.fromkeys(step for look in distinct(looks) for step in look.own))


def distinct(looks: Sequence[Look]) -> list[Look]:
    """The looks without those that saw nothing new."""
    found: dict[Thread, Look] = {}
    for look in looks:
        found.setdefault(look.thread, look)
    return list(found.values())


def _looks(case: Case, key: Key) -> list[Look]:
    judged = judged_thread(case, key)
    found: list[Look] = []
    before: tuple[Any, Any, bool | None] = (None, None, None)
    for shot, rank in case.rounds(key):
        records = rank.records
        stacks, source, process = records.get("stacks"), records.get("source"), records.get("cpu")
        if judged and isinstance(stacks, Stacks) and stacks.threads:
            busy = is_busy(process)
            if stacks is before[0] and source is before[1] and busy is before[2]:  # unchanged evidence
                found.append(Look(shot.at_s, found[-1].thread, found[-1].activity))
                continue
            before = stacks, source, busy
            thread = in_look(case, judged, stacks, source)
            if found and thread.is_same(found[-1].thread):
                thread = found[-1].thread
            context = process_context(case, key, busy, stacks)
            found.append(Look(shot.at_s, thread, _activity(case, thread.path, context)))
    return found


def _activity(case: Case, path: CallPath, context: ProcessContext) -> Activity:
    return case.once(("activity", path, context), lambda: Activity(*phase(case, path, context), path))


def activities(looks: Sequence[Look]) -> tuple[Activity, ...]:
    """The activity in each look: a cache key, equal for ranks that did the same throughout."""
    return tuple([look.activity for look in looks])


def rank_facts(case: Case, key: Key) -> ProgressFacts:
    """The facts of one rank."""
    looks = looks_at(case, key)
    changes = [b.at_s for a, b in pairwise(looks) if a.thread is not b.thread and _differ(a, b)]
    window = looks[-1].at_s - looks[0].at_s if len(looks) > 1 else None
    last = changes[-1] if changes else looks[0].at_s if looks else None
    seen = activities(looks)
    shares = case.once(("shares", seen), lambda: _shares(seen))
    period_s, counter = _period(looks)
    recent = looks[-max(int(WATCHED_LOOKS), len(looks) // 3) :]
    ended = _pauses([look.at_s for look in looks], changes)
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
        sites=shares.sites,
        period_s=period_s,
        recent_s=period_s if len(recent) == len(looks) else _period(recent)[0],
        steps_counted=_counts_steps(looks, counter),
        completed=any(map(_has_completed, looks, looks[1:])) if len(looks) > 1 else None,
        advanced=_has_advanced(looks) if len(looks) > 1 else None,
    )


def _pauses(looks: Sequence[float], changes: Sequence[float]) -> list[float]:
    """For how long nothing changed, between one change and the last look before the next.

    What happened between two looks that differ is not known; looks at a calm job are far apart.
    """
    return [
        max(at for at in looks if at < end) - begin for begin, end in pairwise([*looks[:1], *changes]) if begin < end
    ]


def _has_completed(before: Look, after: Look) -> bool:
    """True if a rank left a collective for work or another collective: one that only sleeps may be about to retry."""
    if before.phase not in WAITING or before.activity is after.activity or before.path.lines == after.path.lines:
        return False
    return after.phase in WORKS or after.phase in WAITING


def _differ(a: Look, b: Look) -> bool:
    """True if the lines of the call path or the numbers in its variables differ."""
    if a.path is not b.path and a.path.lines != b.path.lines:
        return True
    return any(_count_on(old, new) for old, new in a.thread.beside(b.thread))


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


def _period(looks: Sequence[Look]) -> tuple[float | None, str | None]:
    """Time per step (s), by the loop counter that grew most over the looks, and its name."""
    grown: dict[str, float] = {}
    moved = _moved(looks)
    if len(moved) < 2:
        return None, None
    for old, new in pairwise(map(_counters, moved)):
        for name, value in new.items():
            grown[name] = grown.get(name, 0.0) + max(0.0, value - old.get(name, value))
    seconds = looks[-1].at_s - looks[0].at_s
    return min(
        ((seconds / steps, name) for name, steps in grown.items() if 0 < steps <= seconds / MIN_STEP_S),
        default=(None, None),
    )


def _counts_steps(looks: Sequence[Look], counter: str | None) -> bool | None:
    """True if a counter is of a loop around most waits for other ranks. None: no wait.

    No loop inside of that one may be without a number: it makes the steps, and the counter counts epochs.
    """
    waits = [look for look in distinct(looks) if look.phase in WAITING]
    return 2 * sum(_is_around(counter, look) for look in waits) >= len(waits) if waits else None


def _is_around(counter: str | None, look: Look) -> bool:
    loops = _loops(look.path)
    own = next((at for at in reversed(range(len(loops))) if counter in loops[at]), None)
    return own is not None and all(not _counters(look).keys().isdisjoint(names) for names in loops[own + 1 :])


@per_path
def _loops(path: CallPath) -> Sequence[Collection[str]]:
    """The names that count in each loop of user code, outermost first."""
    return [loop.counters for at in path.own if (place := path.steps[at].place) for loop in place.loops]


def _steps_counted(ranks: Sequence[ProgressFacts]) -> bool:
    """Whether the slowest rank's counter counts steps. If that rank never waited, its peers' counters decide."""
    slowest = max((facts for facts in ranks if facts.period_s), key=lambda facts: facts.period_s or 0.0, default=None)
    if slowest is None or slowest.steps_counted is None:
        return all(facts.steps_counted is not False for facts in ranks)
    return slowest.steps_counted


def _has_advanced(looks: Sequence[Look]) -> bool:
    """True if the rank goes through a `for` loop once: a loop that starts again and again may do so for ever.

    A counter is compared with its newest value, which may be that of an earlier look: a loop of a generator, or of a
    function that is called again and again, is on the stack now and then.
    """
    grown, fallen = set[str](), set[str]()
    newest: dict[str, float] = {}
    before: Mapping[str, float] = {}
    for look in _moved(looks):
        new, again = _counters(look), False
        for name, value in new.items():  # outermost loop first
            if value > newest.get(name, value):
                again = True
                if name in before and name in look.path.targets:
                    grown.add(name)
            elif value < newest.get(name, value) and not again:
                fallen.add(name)
        newest = dict(new) if again else newest | new  # what is inside of a loop that went on may start again
        before = new
    return not grown <= fallen


def _moved(looks: Sequence[Look]) -> list[Look]:
    """The first look, and each that saw another state than the one before it."""
    return [*looks[:1], *[b for a, b in pairwise(looks) if a.thread is not b.thread]]


def _counters(look: Look) -> dict[str, float]:
    """Values of the counters of the user-code loops that a rank is in, outermost first."""
    return {
        name: variable.number
        for depth, name in look.path.counters
        for variable in look.thread.variables(depth)
        if variable.name == name and variable.number is not None
    }


class _Shares(NamedTuple):
    """Shares of the looks, and the number of distinct call paths."""

    waits: float | None
    computes: float | None
    sites: int


def _shares(seen: Sequence[Activity]) -> _Shares:
    sites = len({activity.path.lines for activity in seen})
    return _Shares(_share(seen, WAITING), _share(seen, COMPUTES), sites)


def _share(seen: Sequence[Activity], phases: Collection[str]) -> float | None:
    return sum([activity.phase in phases for activity in seen]) / len(seen) if seen else None


def _cpu_share(case: Case, key: Key) -> float | None:
    series = process_looks(case, key)
    if len(series) < 2 or series[-1][0] <= series[0][0]:
        return None
    (start, first), (end, last) = series[0], series[-1]
    polled = _polled_s(last) - _polled_s(first)
    return max(0.0, last.cpu_s - first.cpu_s - polled) / (end - start)


def _polled_s(process: Process) -> float:
    """CPU time of the threads that poll whether there is work or not."""
    return sum([thread.cpu_s for thread in process.threads if POLLERS.match(thread.comm)])


ANALYSIS = ProgressAnalysis()
