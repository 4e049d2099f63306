"""Analysis `compiling`: does a rank compile (torch.compile) once, or again in iteration after iteration?

Slow first steps of a compiled model are healthy. A rank that still compiles in several iterations past warm-up keeps
recompiling: its shapes or values fail the guards of the compiled code. During a recompilation, torch's own frames hold
the failed guard and the number of earlier compilations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.ranks.call_path import Step
from hangdoc.analysis.ranks.conditions import targets
from hangdoc.analysis.ranks.process import process_looks
from hangdoc.analysis.ranks.progress import Look, looks_at
from hangdoc.analysis.thresholds import (
    BUSY_HELPER,
    RECENT_S,
    RECOMPILATIONS,
    RECOMPILING,
    RECOMPILING_COUNTED,
    RECOMPILING_EARLY,
    WARM_UP,
)
from hangdoc.evidence import Process

RECOMPILED = re.compile(r"\d+/(\d+)[^:]*: (.+)")  # frame/compilation: the guard that failed
# Guards on the shape of a tensor: torch/csrc/dynamo/guards.cpp, and the symbolic shapes of torch/fx.
SHAPE_GUARD = re.compile(r"\b(size|stride|rank) mismatch\b|\.(size|stride)\(\)|\b(Eq|Ne|Mod)\(|\bs\d+\b")

Iteration = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class RecompilationFacts:
    """Compilation on one rank. None: not seen."""

    share: float | None = None  # share of the looks that found the rank compiling, 0..1
    again: bool | None = None  # it compiles in iteration after iteration of its loop
    iterations: int | None = None  # number of loop iterations that it was seen compiling in
    site: str | None = None  # innermost user frame during the newest compilation: "train (train.py:31)"
    loop: str | None = None  # source line of the loop around it: "for x, y in loader:"
    before: int | None = None  # earlier compilations of the same code, as counted by torch
    reason: str | None = None  # the guard that failed last, in torch's words
    kind: str | None = None  # what changes between compilations: shape | value; None: unknown
    shapes: tuple[str, ...] = ()  # tensors whose shape changed between compilations: "x: 8 x 37, 8 x 52"
    advancing: bool | None = None  # it waits for compiler processes that use CPU time


UNSEEN = RecompilationFacts()
NEVER = RecompilationFacts(share=0.0, again=False, iterations=0, advancing=False)


class RecompilationAnalysis(Analysis[RecompilationFacts, None]):
    rank_facts = RecompilationFacts
    seen_by = ("source", "aftermath")

    def derive(self, case: Case) -> tuple[dict[Key, RecompilationFacts], None]:
        return {key: _facts(case, key) for key in case.ranks}, None


def _facts(case: Case, key: Key) -> RecompilationFacts:
    looks = looks_at(case, key)
    if not looks or case.ranks[key].alive is False:
        return UNSEEN
    compiling = [look for look in looks if look.activity.phase == "compile"]
    if not compiling:
        return NEVER
    around = [(look, step) for look in compiling if (step := _loop_step(look)) is not None]
    iterations = {iteration for _, step in around if (iteration := _iteration(step))}
    own = compiling[-1].path.user
    recompilations = [found for look in compiling if (found := _recompiled(look))]
    reason = recompilations[-1][1] if recompilations else None
    shapes = _shapes([step for _, step in around])
    before = max((count for count, _ in recompilations), default=None)
    past_warm_up = RECOMPILING_COUNTED if (before or 0) >= RECOMPILATIONS else RECOMPILING
    enough = past_warm_up if _warm(around) else RECOMPILING_EARLY
    return RecompilationFacts(
        share=len(compiling) / len(looks),
        again=len(iterations) >= enough,
        iterations=len(iterations),
        site=own.site if own else None,
        loop=around[-1][1].place.loops[-1].header if around and around[-1][1].place else None,
        before=before,
        reason=reason,
        kind=_kind(reason, shapes),
        shapes=shapes,
        advancing=looks[-1].phase == "compile" and _helpers_work(case, key),
    )


def _recompiled(look: Look) -> tuple[int, str] | None:
    """Compilations before, and the failed guard: from `recompile_reason` in torch._dynamo's frames.

    For example `0/3: tensor 'x' size mismatch at index 1. ...`.
    """
    for step in look.thread:
        reason = step.variables.get("recompile_reason") if "/torch/_dynamo/" in step.file else None
        if reason and (found := RECOMPILED.match(reason.text.strip('"').replace('\\"', "'"))):
            return int(found[1]) + 1, found[2].partition("  #")[0]
    return None


def _kind(reason: str | None, shapes: Sequence[str]) -> str | None:
    if shapes or (reason and SHAPE_GUARD.search(reason)):
        return "shape"
    return "value" if reason else None


def _loop_step(look: Look) -> Step | None:
    """The outermost user frame inside a loop: usually the training loop."""
    own = [step for step in look.own if step.place and step.place.loops]
    return own[0] if own else None


def _loop_variables(step: Step) -> list[str]:
    """Loop counters and loop targets of the loops around a line."""
    loops = step.place.loops if step.place else ()
    return sorted({name for loop in loops for name in (*loop.counters, *targets(loop.header))})


def _iteration(step: Step) -> Iteration:
    values = {name: step.variables[name] for name in _loop_variables(step) if name in step.variables}
    return tuple((name, (v.number, v.text, None if v.number is not None else v.address)) for name, v in values.items())


def _warm(around: Sequence[tuple[Look, Step]]) -> bool:
    """The first compilation seen came after warm-up."""
    for _, step in around[:1]:
        counts = (
            [v.number for loop in step.place.loops for n in loop.counters if (v := step.variables.get(n))]
            if step.place
            else []
        )
        return any(count is not None and count >= WARM_UP for count in counts)
    return False


def _shapes(steps: Sequence[Step]) -> tuple[str, ...]:
    """Tensors in the loop's frame whose shape changed between compilations: "x: 8 x 37, 8 x 52"."""
    found: dict[str, dict[str, None]] = {}
    for step in steps:
        for name, variable in step.variables.items():
            if variable.tensor is not None:
                found.setdefault(name, {})[" x ".join(map(str, variable.tensor.shape))] = None
    return tuple(f"{name}: {', '.join(list(shapes)[:6])}" for name, shapes in found.items() if len(shapes) > 1)[:4]


def _helpers_work(case: Case, key: Key) -> bool:
    """Descendants, such as compilers, used CPU time in the last seconds, or since the look before the newest."""
    series = process_looks(case, key)
    recent = [(at, process) for at, process in series if series[-1][0] - at <= RECENT_S]
    if len(recent) < 2:
        recent = list(series[-2:])
    if len(recent) < 2:
        return False
    (began_s, before), (ended_s, now) = recent[0], recent[-1]
    used = {child.pid: child.cpu_s for child in before.children}
    living = sum(max(0.0, child.cpu_s - used.get(child.pid, 0.0)) for child in now.children)
    # A compiler that ended between the looks counts for its parent, unless the parent ignores its children.
    grown = max(living, _descendants_s(now) - _descendants_s(before))
    return grown >= BUSY_HELPER * (ended_s - began_s)


def _descendants_s(process: Process) -> float:
    """CPU time that the descendants of a rank have used so far, with those that have ended."""
    return process.reaped_s + sum(child.cpu_s + child.reaped_s for child in process.children)


ANALYSIS = RecompilationAnalysis()
