"""When ranks that do not move are stalled, and when it is too early to decide."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hangdoc.analysis import Case
from hangdoc.analysis.job.stall import ANALYSIS, StallJob

WAITS = {"phase": "collective", "waits": True}
COMPUTES = {"phase": "compute", "waits": False}


def judged(stacks: list[dict[str, Any]], moving: bool, idle_s: float, cpu_share: float = 0.0) -> StallJob:
    keys = [("here", 100 + i) for i in range(len(stacks))]
    progress = SimpleNamespace(looks=9, cpu_share=cpu_share, standing_looks=9, standing_s=4.0)
    case = Case([], dict.fromkeys(keys, SimpleNamespace(records={}, alive=True)))  # type: ignore[arg-type]
    case.rank_facts = {
        "stack": {key: SimpleNamespace(**stack) for key, stack in zip(keys, stacks, strict=True)},
        "progress": dict.fromkeys(keys, progress),
        "position": dict.fromkeys(keys, SimpleNamespace(will_arrive=None)),
    }
    case.job_facts = {"network": SimpleNamespace(moving=moving, idle_s=idle_s)}
    return ANALYSIS.derive(case)[1]


@pytest.mark.parametrize(
    ("stacks", "moving", "idle_s", "stalled", "settled"),
    [
        ([WAITS, WAITS], False, 9.0, True, True),
        ([WAITS, WAITS], True, 0.1, False, True),  # a large message is in flight
        ([WAITS, WAITS], True, 3.0, False, False),  # bytes moved a moment ago, none since: it may just have stalled
        ([WAITS, COMPUTES], True, 3.0, False, True),
    ],
)
def test_stall(stacks: list[dict[str, Any]], moving: bool, idle_s: float, stalled: bool, settled: bool) -> None:
    found = judged(stacks, moving, idle_s, cpu_share=0.9 if COMPUTES in stacks else 0.0)
    assert (found.stalled, found.settled) == (stalled, settled)
