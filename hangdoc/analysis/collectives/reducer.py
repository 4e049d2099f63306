"""Analysis `reducer`: which ranks wait in backward for DDP's reducer, and which have left that backward without it.

DDP reduces gradients bucket by bucket, in the same order on all ranks. A bucket is ready when each of its parameters
has a gradient. On a rank where one got none, backward returns with buckets left over, and the rank goes on, while its
peers wait in backward for them (torch 2.13, Reducer::mark_variable_ready, finalize_backward).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.ranks.call_path import Step, Steps
from hangdoc.analysis.ranks.judged_thread import judged_thread
from hangdoc.analysis.ranks.path_comparison import relate
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence.parameters import Gradients, ReplicatedModel

_PAST = ("ahead", "left_loop", "in_branch")


@dataclass(frozen=True, slots=True)
class ReducerFacts:
    """One rank; None: not seen, or it does not apply."""

    waits: bool | None = None  # it waits in backward until DDP has reduced all gradients
    passed: bool | None = None  # its line is past that backward, and no loop counter contradicts
    step: str | None = None  # counter which shows that it has left the step's backward that others wait in: "i = 7"
    model: str | None = None  # variable that leads to its DDP model
    expected: int | None = None  # parameters of that model whose gradients DDP reduces
    missing: int | None = None  # of these, without gradient, while ranks that wait have all of them; None: unknown
    without: str | None = None  # names of the first of them
    find_unused: bool | None = None  # the model's find_unused_parameters
    static_graph: bool | None = None  # the model's static_graph


class ReducerAnalysis(Analysis[ReducerFacts, None]):
    rank_facts = ReducerFacts
    seen_by = ("stacks",)

    def derive(self, case: Case) -> tuple[dict[Key, ReducerFacts], None]:
        stack = case.facts(StackFacts)
        models = {
            key: record.models for key in case.ranks if isinstance(record := case.record(key, "gradients"), Gradients)
        }
        replicated = any(models.values()) or any("c10d::Reducer::" in (own.native_leaf or "") for own in stack.values())
        waiting = {key: None for key, own in stack.items() if replicated and _in_reducer(own)}
        complete = _complete([models[key] for key in waiting if key in models])
        peer = judged_thread(case, next(iter(waiting))) if waiting else None
        return {
            key: _facts(
                key in waiting,
                models.get(key, ()),
                complete,
                _progress(judged_thread(case, key) or (), peer) if peer and key not in waiting else (None, None),
            )
            for key in case.ranks
        }, None


def _in_reducer(stack: StackFacts) -> bool:
    """True in the wait of C++ code that autograd calls. In a job with DDP models, that is DDP's."""
    return (
        stack.phase == "collective"
        and bool(stack.in_backward)
        and (stack.leaf or "").startswith("_engine_run_backward ")
    )


def _complete(waiting: Sequence[Sequence[ReplicatedModel]]) -> frozenset[int]:
    """Numbers of parameters of the models that have all gradients on every rank that waits and was read.

    The number is what a model has in common on all ranks; variables may have other names.
    """
    counts = [
        {model.expected for model in models} - {model.expected for model in models if model.missing}
        for models in waiting
    ]
    return frozenset(set.intersection(*counts)) if counts else frozenset()


def _facts(
    waits: bool,
    models: Sequence[ReplicatedModel],
    complete: frozenset[int],
    progress: tuple[bool | None, str | None],
) -> ReducerFacts:
    same = [model for model in models if model.expected in complete]
    # Without any gradient, they were reset since.
    lacking = [model for model in same if 0 < model.missing < model.expected]
    model = lacking[0] if lacking else same[0] if same else models[0] if models else None
    if model is None:
        return ReducerFacts(waits, *progress)
    known = model in lacking or (model in same and not model.missing)
    return ReducerFacts(
        waits=waits,
        passed=progress[0],
        step=progress[1],
        model=model.name,
        expected=model.expected,
        missing=model.missing if known else None,
        without=_format(model) if model in lacking else None,
        find_unused=model.find_unused,
        static_graph=model.static_graph,
    )


def _format(model: ReplicatedModel) -> str:
    more = model.missing - len(model.without)
    return ", ".join(model.without) + (f" and {more} more" if more > 0 else "")


def _progress(own: Steps, peer: Steps) -> tuple[bool | None, str | None]:
    """The facts `passed` and `step` of a rank, compared with one that waits in backward."""
    relation = relate(own, peer)
    if relation.own is None or relation.peer is None or relation.kind in ("apart", "other_call"):
        return None, None
    if relation.kind not in _PAST or relation.own.line <= relation.peer.line:
        return False, None
    step: str | None = None
    for here, there in zip(own, peer, strict=False):
        for loop in there.place.loops if there.place else ():
            counts = _counts(loop.counters, here, there)
            # It may have counted this step already: step += 1.
            if any(a not in (b, b + 1) for a, b in counts.values()):
                return False, None
            step = next((f"{name} = {a:g}" for name, (a, b) in counts.items() if a == b), None)
        if there is relation.peer:
            break
    return True, step if relation.kind != "left_loop" else None  # it may have left by `break`, before backward


def _counts(names: Sequence[str], own: Step, peer: Step) -> Mapping[str, tuple[float, float]]:
    """Values of these variables on both ranks, where both are known."""
    pairs = ((name, own.variables.get(name), peer.variables.get(name)) for name in names)
    return {
        name: (a.number, b.number)
        for name, a, b in pairs
        if a is not None and b is not None and a.number is not None and b.number is not None
    }


ANALYSIS = ReducerAnalysis()
