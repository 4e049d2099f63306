"""When ranks that do not move are stalled, and when it is too early to decide."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangdoc.analysis import Case
from hangdoc.analysis.job.stall import StallJob
from hangdoc.analysis.network.links import NetworkJob
from hangdoc.analysis.ranks.divergence import DivergenceFacts
from hangdoc.analysis.ranks.progress import ProgressFacts
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import RankEvidence, Target

WAITS = StackFacts("collective", waits=True)
COMPUTES = StackFacts("compute", waits=False)
STILL = ProgressFacts(9, 4.0, False, 4.0, 9, None, 0.0, None, None, None, 1, None, None)


def judged(stacks: list[StackFacts], moving: bool, idle_s: float, cpu_share: float = 0.0) -> StallJob:
    keys = [("here", 100 + i) for i in range(len(stacks))]
    case = Case([], {key: RankEvidence(Target(key[1], 1, "here", i), True, {}) for i, key in enumerate(keys)})
    case.give(StackFacts, dict(zip(keys, stacks, strict=True)))
    case.give(ProgressFacts, dict.fromkeys(keys, replace(STILL, cpu_share=cpu_share)))
    case.give(DivergenceFacts, dict.fromkeys(keys, DivergenceFacts()))
    case.give_job(NetworkJob(True, moving=moving, idle_s=idle_s))
    return case.job(StallJob)


@pytest.mark.parametrize(
    ("stacks", "moving", "idle_s", "stalled", "settled"),
    [
        ([WAITS, WAITS], False, 9.0, True, True),
        ([WAITS, WAITS], True, 0.1, False, True),  # a large message is in flight
        ([WAITS, WAITS], True, 3.0, False, False),  # bytes moved a moment ago, none since: it may just have stalled
        ([WAITS, COMPUTES], True, 3.0, False, True),
    ],
)
def test_stall(stacks: list[StackFacts], moving: bool, idle_s: float, stalled: bool, settled: bool) -> None:
    found = judged(stacks, moving, idle_s, cpu_share=0.9 if COMPUTES in stacks else 0.0)
    assert (found.stalled, found.settled) == (stalled, settled)
