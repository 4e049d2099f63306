"""When the governor makes looks rarer, and when more frequent again."""

from __future__ import annotations

import time
from itertools import pairwise

from hangdoc.daemon.governor import DOWN_S, MOST_LEVEL, UP_S, WINDOW_S, Budget, Governor, Usage, own_usage


class Meter:
    """Usage that grows by `share` of a core each second."""

    def __init__(self) -> None:
        self.share, self.cpu_s, self.memory_mib = 0.0, 0.0, 50.0

    def __call__(self) -> Usage:
        return Usage(self.cpu_s, self.memory_mib)


def run(governor: Governor, meter: Meter, from_s: float, seconds: float) -> list[tuple[float, int]]:
    """The changes of the level, with their times."""
    changes = []
    for second in range(int(seconds)):
        meter.cpu_s += meter.share
        if change := governor.measure(from_s + second):
            changes.append((from_s + second, change))
    return changes


def test_over_budget_it_steps_down_one_level_at_a_time() -> None:
    meter = Meter()
    governor = Governor(Budget(0.01), meter)
    assert not run(governor, meter, 0, WINDOW_S)
    meter.share = 0.05
    changes = run(governor, meter, WINDOW_S, 300)
    assert [change for _, change in changes] == [1] * MOST_LEVEL
    times = [at_s for at_s, _ in changes]
    assert all(later - earlier >= UP_S for earlier, later in pairwise(times))
    assert governor.factor == 2**MOST_LEVEL
    assert governor.share > 0.04


def test_it_steps_up_again_only_when_twice_as_many_looks_fit() -> None:
    meter = Meter()
    governor = Governor(Budget(0.01), meter)
    meter.share = 0.02
    run(governor, meter, 0, 70)
    assert governor.level >= 1
    meter.share = 0.007  # within the budget, but twice as much is not
    settled = run(governor, meter, 70, 600)
    assert -1 not in [change for _, change in settled]
    meter.share = 0.002
    level = governor.level
    changes = run(governor, meter, 670, 2000)
    assert [change for _, change in changes] == [-1] * level
    assert changes[0][0] - 670 >= DOWN_S
    assert governor.level == 0


def test_a_short_peak_changes_nothing() -> None:
    meter = Meter()
    governor = Governor(Budget(0.01), meter)
    run(governor, meter, 0, 120)
    meter.cpu_s += 0.5  # an examination: half a second in a minute
    assert not run(governor, meter, 120, 120)


def test_memory_over_the_budget_is_seen() -> None:
    meter = Meter()
    governor = Governor(Budget(memory_mib=80.0), meter)
    governor.measure(0.0)
    assert not governor.over_memory
    meter.memory_mib = 81.0
    governor.measure(1.0)
    assert governor.over_memory


def test_the_cost_of_this_process_is_measured() -> None:
    before = own_usage()
    began_s = time.process_time()
    while time.process_time() - began_s < 0.05:
        pass
    after = own_usage()
    assert after.cpu_s - before.cpu_s >= 0.05
    assert 5 < after.memory_mib < 5000
