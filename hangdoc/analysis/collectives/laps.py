"""Analysis `laps`: a rank that goes round a loop whose collective all its peers stand in, and that it never joins.

In each lap of such a loop all ranks meet, unless the source makes the collective in some laps only: gradients that are
accumulated, an evaluation every N steps. It takes a dropped batch, an exception that the loop swallows, a `continue`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.ranks.call_path import CallPath, is_library, per_path
from hangdoc.analysis.ranks.phases import WAITING
from hangdoc.analysis.ranks.progress import Look, looks_at
from hangdoc.analysis.thresholds import MIN_LOOKS
from hangdoc.evidence import Loop, Place

# Libraries that make a collective in some of the calls only: at the end of an accumulation, every N steps.
_IN_SOME_CALLS = re.compile(r"/torch/distributed/algorithms/")
# Accelerate's accumulation is a context manager, which the user's source shows.
_IN_EACH_CALL = re.compile(r"/torch/|/accelerate/|/lib/python3\.\d+/(?!(?:site|dist)-packages/)")
# Conditions and context managers of loops that make a collective in some of their laps only.
_SOME_LAPS = re.compile(r"%|accum|sync|interval|every|freq|divmod")
_CONTEXTS = re.compile(r"(?:^|\.)(?:no_sync|accumulate)$")

LoopPlace = tuple[str, int]  # file and line of the statement


@dataclass(frozen=True, slots=True)
class LapsFacts:
    """One rank over the window. None: its peers moved, or stand in no collective of one loop."""

    count: int | None = None  # laps that it began, at least, while all its peers stood
    loop: str | None = None  # header of that loop: "for batch in loader:"
    at: str | None = None  # its place: "main (train.py:58)"


class LapsDetector(Detector[LapsFacts, None]):
    rank_facts = LapsFacts

    def derive(self, case: Case) -> tuple[dict[Key, LapsFacts], None]:
        found = dict.fromkeys(case.ranks, LapsFacts())
        looks = {key: looks_at(case, key) for key in case.ranks}
        runners = [key for key, own in looks.items() if any(look.phase not in WAITING for look in own)]
        if len(runners) != 1 or len(looks) < 2:
            return found, None
        (runner,) = runners
        own = looks.pop(runner)
        if len(own) < MIN_LOOKS or not all(map(_stands, looks.values())):
            return found, None
        loops = [_loop_around(seen[-1].path) for seen in looks.values()]
        if (loop := loops[0]) is not None and len(set(loops)) == 1:
            found[runner] = _laps(own, loop)
        return found, None


def _stands(looks: Sequence[Look]) -> bool:
    """True if a rank was found in one collective, at the same lines, in every look."""
    return bool(looks) and all(look.phase == "collective" and look.path.lines == looks[0].path.lines for look in looks)


@per_path
def _loop_around(path: CallPath) -> LoopPlace | None:
    """The innermost loop around a collective. None: there is none, or it makes the collective in some laps only."""
    steps = [path.steps[depth] for depth in path.own]
    around = [at for at, step in enumerate(steps) if step.place and step.place.loops]
    if not around:
        return None
    step, inside = steps[around[-1]], path.steps[path.own[around[-1]] + 1 :]
    if any(one.place is None or _may_pass_by(one.place) for one in steps[around[-1] :]):
        return None
    if any(is_library(one.file) and not _meets_in_each_call(one.file) for one in inside):
        return None
    return (step.file, step.place.loops[-1].first) if step.place else None


def _meets_in_each_call(library: str) -> bool:
    return _IN_EACH_CALL.search(library) is not None and not _IN_SOME_CALLS.search(library)


def _may_pass_by(place: Place) -> bool:
    """True if a condition in front of a line, or a context manager in its function, is not met in every lap."""
    first = place.loops[-1].first if place.loops else 0
    tests = [branch.test for branch in (*place.branches, *place.guards) if branch.line > first]
    return any(map(_SOME_LAPS.search, tests)) or any(map(_CONTEXTS.search, place.around))


def _laps(looks: Sequence[Look], place: LoopPlace) -> LapsFacts:
    """The laps of a rank: by the numbers that its loop counts, or by its returns to a line further up."""
    numbers: dict[str, list[float]] = {}
    lines: list[int] = []
    loop: Loop | None = None
    site = None
    for look in looks:
        for depth in look.path.own:
            step = look.thread[depth]
            loops = step.place.loops if step.place else ()
            at = next((at for at, one in enumerate(loops) if (step.file, one.first) == place), None)
            if at is None:
                continue
            loop, site = loops[at], f"{step.function} ({step.base}:{place[1]})"
            if at == len(loops) - 1:
                lines.append(step.line)
            for name in loop.counters:
                variable = step.variables.get(name)
                if variable is not None and variable.kind == "int" and variable.number is not None:
                    numbers.setdefault(name, []).append(variable.number)
    if loop is None:
        return LapsFacts()
    counted = max((len(set(seen)) for seen in numbers.values() if seen == sorted(seen)), default=0)
    returned = sum(after < before for before, after in pairwise(lines))
    return LapsFacts(max(counted - 1, returned), loop.header, site)


ANALYSIS = LapsDetector()
