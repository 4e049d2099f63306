"""Analysis `progress`: what changed between the looks at each rank."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hangdoc.analysis import Case, Key
from hangdoc.analysis.phases import WAITING, Circumstances, phase_of
from hangdoc.analysis.stack import circumstances, is_busy, main_story
from hangdoc.analysis.story import Step, is_library
from hangdoc.evidence import Process, Source, Stacks

SHORTEST_S = 0.002  # what is counted faster is no step of a training loop
MIN_RECENT = 6  # looks that tell how long a step takes now


@dataclass(frozen=True, slots=True)
class ProgressFacts:
    """One rank over the time we watched; shares are 0..1, times seconds."""

    looks: int
    window_s: float | None  # from the first look to the newest
    changed: bool | None  # its stack or its variables changed between two looks; None: fewer than two looks
    standing_s: float | None  # since the newest change seen
    standing_looks: int  # looks that found it unchanged, with the one that saw the newest change
    pause_s: float | None  # longest time it stood still and went on
    cpu_share: float | None  # cores used by the process, 1.0 = one core
    wait_share: float | None  # share of the looks in which it waited for other ranks
    compute_share: float | None  # share of the looks in which it computed
    input_share: float | None  # share of the looks in which it waited for input
    sites: int  # different lines of the user's own code it was seen at
    counter: str | None  # the loop counter that grew: "step"
    period_s: float | None  # how long one of its steps takes
    recent_s: float | None = None  # the same in the newest third of the window


@dataclass(frozen=True, slots=True)
class ProgressJob:
    looks: int  # of the rank looked at least
    window_s: float | None
    changed: bool | None  # any rank changed
    all_changed: bool | None  # every rank changed
    period_s: float | None  # how long a step takes, over the ranks
    recent_s: float | None = None  # the same in the newest third of the window


@dataclass(frozen=True, slots=True)
class Look:
    at_s: float
    story: list[Step]
    phase: str
    op: str | None = None


@dataclass(slots=True)
class ProgressAnalysis:
    name: str = "progress"
    order: int = 20
    rank_facts: type | None = ProgressFacts
    job_facts: type | None = ProgressJob

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
    """Every look at one rank, oldest first."""
    if key not in case.looks:
        case.looks[key] = _looks(case, key)
    found: list[Look] = case.looks[key]
    return found


def _looks(case: Case, key: Key) -> list[Look]:
    thread = case.rank_facts["stack"][key].thread
    host, pid = key
    found: list[Look] = []
    for shot in case.history:
        rank = next((r for r in shot.ranks if shot.host == host and r.target.pid == pid), None)
        stacks = rank.records.get("stacks") if rank else None
        if rank and isinstance(stacks, Stacks) and stacks.threads:
            process = rank.records.get("cpu")
            about = circumstances(case, key, is_busy(process) if isinstance(process, Process) else None, stacks)
            found.append(_look(shot.at_s, stacks, rank.records.get("source"), thread, about))
    return found


def _look(at_s: float, stacks: Stacks, source: Source | None, thread: str | None, about: Circumstances) -> Look:
    story = main_story(stacks, source, thread)
    stack = next((s for s in stacks.threads if s.name == thread), stacks.threads[0])
    return Look(at_s, story, *phase_of(stack, story, about))


def rank_facts(case: Case, key: Key) -> ProgressFacts:
    """What changed on one rank."""
    looks = looks_at(case, key)
    changes = [b.at_s for a, b in pairwise(looks) if _signature(a.story) != _signature(b.story)]
    window = looks[-1].at_s - looks[0].at_s if len(looks) > 1 else None
    last = changes[-1] if changes else looks[0].at_s if looks else None
    counter, period = _step(looks)
    ended = [b - a for a, b in pairwise([looks[0].at_s, *changes])] if changes else []
    return ProgressFacts(
        looks=len(looks),
        window_s=window,
        changed=bool(changes) if len(looks) > 1 else None,
        standing_s=looks[-1].at_s - last if last is not None else None,
        standing_looks=sum(look.at_s >= last for look in looks) if last is not None else 0,
        pause_s=max(ended, default=None),
        cpu_share=_cpu_share(case, key),
        wait_share=_share(looks, WAITING),
        compute_share=_share(looks, {"compute"}),
        input_share=_share(looks, {"input"}),
        sites=len({_signature(look.story)[0] for look in looks}),
        counter=counter,
        period_s=period,
        recent_s=_step(looks[-max(MIN_RECENT, len(looks) // 3) :])[1],
    )


def _signature(
    story: list[Step],
) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, float | None], ...]]:
    """Lines of the whole chain, and the numbers in its variables."""
    lines = tuple((step.function, step.line) for step in story)
    numbers = tuple(
        (name, v.number) for step in story for name, v in sorted(step.variables.items()) if v.number is not None
    )
    return lines, numbers


def _step(looks: list[Look]) -> tuple[str | None, float | None]:
    """The loop counter that grew most over the looks, and the seconds one of its steps takes."""
    grown: dict[str, float] = {}
    for before, after in pairwise(looks):
        old, new = _counters(before.story), _counters(after.story)
        for name, value in new.items():
            grown[name] = grown.get(name, 0.0) + max(0.0, value - old.get(name, value))
    seconds = looks[-1].at_s - looks[0].at_s if looks else 0.0
    periods = {name: seconds / steps for name, steps in grown.items() if 0 < steps <= seconds / SHORTEST_S}
    name = min(periods, key=lambda n: periods[n], default="")
    return (name, periods[name]) if name else (None, None)


def _counters(story: list[Step]) -> dict[str, float]:
    """Values of the counters of the loops a rank is in, outside libraries."""
    return {
        name: variable.number
        for step in story
        if step.place and not is_library(step.file)
        for loop in step.place.loops
        for name in loop.counters
        if (variable := step.variables.get(name)) and variable.number is not None
    }


def _share(looks: list[Look], phases: frozenset[str] | set[str]) -> float | None:
    return sum(look.phase in phases for look in looks) / len(looks) if looks else None


def _cpu_share(case: Case, key: Key) -> float | None:
    series = [(at, record) for at, record in case.series(key, "cpu") if isinstance(record, Process)]
    if len(series) < 2 or series[-1][0] <= series[0][0]:
        return None
    (start, first), (end, last) = series[0], series[-1]
    return max(0.0, last.cpu_s - first.cpu_s) / (end - start)


ANALYSIS = ProgressAnalysis()
