"""Analysis `compiling`: a rank compiles (torch.compile): for the first time, or in one iteration after the other?

The first steps of a compiled model take long and are healthy. A rank that was seen compiling in several iterations of
its training loop, past the first few, compiles again and again: shapes or values that the compiled code does not fit.
While torch compiles the same code once more, its own frames hold the guard that failed, and how many times before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.call_path import Step, is_library, user_step
from hangdoc.analysis.ranks.conditions import targets
from hangdoc.analysis.ranks.process import process_looks
from hangdoc.analysis.ranks.progress import Look, looks_at

ITERATIONS = 3  # seen compiling in so many
MORE = 5  # where it is not known, or early, how far the loop has come
FEWER = 2  # where the same code has been compiled so often: a step may take as long as we watch
OFTEN = 3
WARM_UP = 4  # iterations: the first shapes, then the dynamic ones, then what only comes now and then
BUSY_SHARE = 0.2  # of a core, of the compilers that a rank has started
RECENT_S = 3.0

RECOMPILED = re.compile(r"\d+/(\d+)[^:]*: (.+)")  # frame/compilation of the code that did not fit

Iteration = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class RecompilationFacts:
    """One rank; None: not seen."""

    share: float | None = None  # of the looks in which it compiled
    again: bool | None = None  # in one iteration after the other
    iterations: int | None = None  # of the loop around, in which it was seen compiling
    site: str | None = None  # innermost frame of the user's code around it
    loop: str | None = None  # source of that loop
    before: int | None = None  # times that the same code had been compiled before, by torch's count
    reason: str | None = None  # the guard that failed last, in torch's words
    shapes: tuple[str, ...] = ()  # what the loop's variables were while it compiled, where they differ
    advancing: bool | None = None  # it waits for compilers that work


UNSEEN = RecompilationFacts()
NEVER = RecompilationFacts(share=0.0, again=False, iterations=0, advancing=False)


@dataclass(slots=True)
class RecompilationAnalysis:
    name: str = "compiling"
    order: int = 43
    rank_facts: type | None = RecompilationFacts
    job_facts: type | None = None

    def derive(self, case: Case) -> tuple[dict[Key, RecompilationFacts], None]:
        return {key: _facts(case, key) for key in case.ranks}, None


def _facts(case: Case, key: Key) -> RecompilationFacts:
    looks = looks_at(case, key)
    if not looks or case.ranks[key].alive is False:
        return UNSEEN
    compiling = [look for look in looks if look.spot.phase == "compile"]
    if not compiling:
        return NEVER
    around = [(look, step) for look in compiling if (step := _looping(look)) is not None]
    turns = [_iteration(step) for _, step in around]
    different = list(dict.fromkeys(turn for turn in turns if turn))
    own = user_step(compiling[-1].story) if compiling else None
    told = [again for look in compiling if (again := _recompiled(look))]
    before = max((count for count, _ in told), default=None)
    wanted = (FEWER if (before or 0) >= OFTEN else ITERATIONS) if _warm(around) else MORE
    return RecompilationFacts(
        share=len(compiling) / len(looks),
        again=len(different) >= wanted,
        iterations=len(different),
        site=own.site if own else None,
        loop=around[-1][1].place.loops[-1].header if around and around[-1][1].place else None,
        before=before,
        reason=told[-1][1] if told else None,
        shapes=_shapes([step for _, step in around]),
        advancing=looks[-1].phase == "compile" and _helpers_work(case, key),
    )


def _recompiled(look: Look) -> tuple[int, str] | None:
    """What `recompile_reason` of torch._dynamo's frames says: `0/3: tensor 'x' size mismatch at index 1. ...`."""
    for step in look.story:
        said = step.variables.get("recompile_reason") if "/torch/_dynamo/" in step.file else None
        if said and (found := RECOMPILED.match(said.text.strip('"').replace('\\"', "'"))):
            return int(found[1]) + 1, found[2].partition("  #")[0]
    return None


def _looping(look: Look) -> Step | None:
    """The innermost frame of the user's code that stands in a loop: the training loop, or one within it."""
    own = [step for step in look.story if not is_library(step.file) and step.place and step.place.loops]
    return own[0] if own else None


def _bound(step: Step) -> list[str]:
    """The names that the loops around a line count with, or bind anew in every iteration."""
    loops = step.place.loops if step.place else ()
    return sorted({name for loop in loops for name in (*loop.counters, *targets(loop.header))})


def _iteration(step: Step) -> Iteration:
    values = {name: step.variables[name] for name in _bound(step) if name in step.variables}
    return tuple((name, (v.number, v.text, None if v.number is not None else v.address)) for name, v in values.items())


def _warm(around: Sequence[tuple[Look, Step]]) -> bool:
    """The first of these iterations came late enough."""
    for _, step in around[:1]:
        counts = (
            [v.number for loop in step.place.loops for n in loop.counters if (v := step.variables.get(n))]
            if step.place
            else []
        )
        return any(count is not None and count >= WARM_UP for count in counts)
    return False


def _shapes(steps: Sequence[Step]) -> tuple[str, ...]:
    """Tensors of the frame in the loop whose shapes changed while it compiled: "x: 8 x 37, 8 x 52"."""
    found: dict[str, dict[str, None]] = {}
    for step in steps:
        for name, variable in step.variables.items():
            if variable.tensor is not None:
                found.setdefault(name, {})[" x ".join(map(str, variable.tensor.shape))] = None
    return tuple(f"{name}: {', '.join(list(shapes)[:6])}" for name, shapes in found.items() if len(shapes) > 1)[:4]


def _helpers_work(case: Case, key: Key) -> bool:
    series = process_looks(case, key)
    recent = [(at, one) for at, one in series if series[-1][0] - at <= RECENT_S]
    if len(recent) < 2:
        return False
    used = {child.pid: child.cpu_s for child in recent[0][1].children}
    grown = sum(max(0.0, child.cpu_s - used.get(child.pid, 0.0)) for child in recent[-1][1].children)
    return grown >= BUSY_SHARE * (recent[-1][0] - recent[0][0])


ANALYSIS = RecompilationAnalysis()
