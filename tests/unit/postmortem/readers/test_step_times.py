"""Which steps of a pasted log had a recompilation, and how long these and the others took."""

from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._logs.step_times import StepTimes

RECOMPILES = "[rank0]:V1128 torch/_dynamo/guards.py:2813] [0/3] [__recompiles] Recompiling function forward in /m.py:77"


@pytest.mark.parametrize(
    ("lines", "usual_s", "recompiling_s"),
    [
        (["step 3 time 0.2", "step 4 time 0.3", RECOMPILES, "step 5 time 30.0"], 0.3, 30.0),
        # The text begins below a recompilation, and has a gap.
        (
            ["step 3 time 31.0", RECOMPILES, "step 4 time 30.0", "step 5 time 0.2", "...", "step 61 time 29.0"],
            0.2,
            30.0,
        ),
        (["step 3 time 0.2", RECOMPILES, "step 4 time 30.0"], 0.2, 30.0),  # nothing else is known
        (["step 1 time 0.2", "step 2 time 30.0", "step 3 time 0.2", "step 4 time 31.0", RECOMPILES], 0.2, 30.5),
        (["step 1 time 0.2", "step 2 time 0.2"], None, None),
    ],
)
def test_steps_with_and_without_a_recompilation(
    lines: list[str], usual_s: float | None, recompiling_s: float | None
) -> None:
    times = StepTimes()
    for number, line in enumerate(lines, 1):
        times.feed(line, number)
    pace = times.pace
    assert (pace and pace.usual_s, pace and pace.recompiling_s) == (usual_s, recompiling_s)
