"""Analysis `backward_split`: some ranks are in the backward pass, the others in a call that belongs outside the step.

py-spy shows a rank that waits in DDP's all-reduce, or for the GPU behind it, at the call of backward, often as active:
nothing tells it from one that computes. Peers that stand in a barrier, or in a collective of objects, have left the
loop, or never entered this step: neither belongs into a step of training.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.ranks.call_path import CallPath, per_path
from hangdoc.analysis.ranks.judged_thread import judged_thread
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.analysis.thresholds import COMPARABLE_RANKS

BACKWARD = "backward"  # operation
C10D = re.compile(r"torch/distributed/distributed_c10d\.py$")
OUTSIDE = re.compile(r"barrier|object|report|save|load|store")  # operations that belong outside a step


@dataclass(frozen=True, slots=True)
class BackwardSplitFacts:
    """One rank. None: not so split."""

    apart: bool | None = None  # it is on the smaller side


@dataclass(frozen=True, slots=True)
class BackwardSplitJob:
    """None: not so split."""

    op: str | None = None  # the call of the side outside the step
    outside_few: bool = False  # that side is the smaller one


class BackwardSplitAnalysis(Analysis[BackwardSplitFacts, BackwardSplitJob]):
    rank_facts = BackwardSplitFacts
    job_facts = BackwardSplitJob
    seen_by = ("stacks", "aftermath")

    def derive(self, case: Case) -> tuple[dict[Key, BackwardSplitFacts], BackwardSplitJob]:
        nothing = dict.fromkeys(case.ranks, BackwardSplitFacts())
        stack = case.facts(StackFacts)
        inside = {key for key, own in stack.items() if own.op == BACKWARD and not own.waits}
        outside = {
            key
            for key, own in stack.items()
            if key not in inside and own.waits and (OUTSIDE.search(own.op or "") or _sends_objects(case, key))
        }
        ranks = len(inside) + len(outside)
        ops = {stack[key].op for key in outside}
        if ranks < max(len(stack), COMPARABLE_RANKS) or len(ops) != 1:
            return nothing, BackwardSplitJob()
        if not inside or len(inside) == len(outside):
            return nothing, BackwardSplitJob()
        # Of stacks that somebody cut, the innermost frames are left.
        if len({stack[key].site for key in inside}) != 1 and len({stack[key].leaf for key in inside}) != 1:
            return nothing, BackwardSplitJob()
        few = min(inside, outside, key=len)
        return {key: BackwardSplitFacts(key in few) for key in case.ranks}, BackwardSplitJob(ops.pop(), few == outside)


def _sends_objects(case: Case, key: Key) -> bool:
    """True if a rank waits within a collective of objects, which calls one of tensors."""
    thread = judged_thread(case, key)
    return thread is not None and _has_object_call(thread.path)


@per_path
def _has_object_call(path: CallPath) -> bool:
    return any(C10D.search(file) and "_object" in function for function, file, _, native in path.frames if not native)


ANALYSIS = BackwardSplitAnalysis()
