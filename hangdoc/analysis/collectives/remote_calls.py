"""Analysis `rpc`: ranks that wait for the answer to a remote call, and ranks that make no more calls.

A server may need a call of every trainer before it answers one, so that a trainer whose loop ended leaves the others
waiting.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.ranks.call_path import Steps
from hangdoc.analysis.ranks.judged_thread import judged_thread
from hangdoc.analysis.ranks.path_comparison import relate
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import Branch, Loop, Variable

SHUTDOWN = "rpc shutdown"
TEST = re.compile(r"(not )?(\w+)(?: (==|!=|<=|>=|<|>) (-?\d{1,9}))?")
OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RemoteCallFacts:
    """One rank."""

    calls: bool = False  # it waits for the answer to a remote call
    ended: bool = False  # it waits for all ranks to shut down, past a loop in which a rank waits for an answer
    loop: str | None = None  # header of that loop: "for shard in shards:"
    loop_line: int | None = None


class RemoteCallAnalysis(Analysis[RemoteCallFacts, None]):
    rank_facts = RemoteCallFacts
    seen_by = ("stacks",)

    def derive(self, case: Case) -> tuple[dict[Key, RemoteCallFacts], None]:
        stack = case.facts(StackFacts)
        callers = [key for key, own in stack.items() if own.phase == "p2p" and (own.op or "").startswith("rpc")]
        peer = judged_thread(case, callers[0]) if callers else None
        found = dict.fromkeys(case.ranks, RemoteCallFacts())
        if peer is not None:
            found.update(dict.fromkeys(callers, RemoteCallFacts(calls=True)))
            found.update(
                {key: _ended(judged_thread(case, key) or (), peer) for key in stack if stack[key].op == SHUTDOWN}
            )
        return found, None


def _ended(own: Steps, peer: Steps) -> RemoteCallFacts:
    """Whether a rank has left the outermost loop that `peer` is in."""
    relation = relate(own, peer)
    if relation.own is None or relation.peer is None or relation.own.line <= relation.peer.line:
        return RemoteCallFacts()
    was_there = relation.kind in ("left_loop", "ahead") or (
        relation.kind == "out_of_branch" and relation.branch and _holds(relation.branch, relation.own.variables)
    )
    loop = _loop(peer) if was_there and not relation.common else None
    return RemoteCallFacts(ended=True, loop=loop.header, loop_line=loop.first) if loop else RemoteCallFacts()


def _loop(steps: Steps) -> Loop | None:
    return next((loop for step in steps if step.place for loop in step.place.loops), None)


def _holds(branch: Branch, variables: Mapping[str, Variable]) -> bool:
    """True if a rank's own variables say that it entered this arm of an `if`: `rank`, `not rank`, `rank > 0`."""
    test = TEST.fullmatch(branch.test)
    value = variables.get(test[2]) if test else None
    if test is None or value is None or value.number is None or branch.arm not in ("body", "else"):
        return False
    result = OPERATORS[test[3]](value.number, float(test[4])) if test[3] else bool(value.number)
    return (result != bool(test[1])) == (branch.arm == "body")


ANALYSIS = RemoteCallAnalysis()
