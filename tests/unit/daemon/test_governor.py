"""When the governor makes looks rarer, and when more frequent again."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from hangdoc.daemon.governor import (
    DOWN_S,
    MAX_LEVEL,
    RECENT_S,
    UP_S,
    WINDOW_S,
    Budget,
    Governor,
    Usage,
    own_usage,
)


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
    assert not run(governor, meter, 0, 600)
    meter.share = 0.05
    changes = run(governor, meter, 600, 600)
    assert [change for _, change in changes] == [1] * MAX_LEVEL
    times = [at_s for at_s, _ in changes]
    assert times[0] - 600 >= WINDOW_S * 0.01 / 0.05  # the budget of the window is spent by then
    assert all(later - earlier >= UP_S for earlier, later in pairwise(times))
    assert governor.factor == 2**MAX_LEVEL
    assert governor.share == pytest.approx(0.05)


def test_it_steps_up_again_only_when_twice_as_many_looks_fit() -> None:
    meter = Meter()
    governor = Governor(Budget(0.01), meter)
    meter.share = 0.03
    run(governor, meter, 0, 300)
    level = governor.level
    assert level >= 1
    meter.share = 0.007  # within the budget, but twice as much is not
    assert not run(governor, meter, 300, 600)
    meter.share = 0.002
    changes = run(governor, meter, 900, 2000)
    assert [change for _, change in changes] == [-1] * level
    assert changes[0][0] - 900 >= DOWN_S
    assert governor.level == 0


def test_a_new_job_or_an_examination_changes_nothing() -> None:
    meter = Meter()
    governor = Governor(Budget(0.01), meter)
    meter.cpu_s = 4.0  # the start
    meter.share = 0.07
    assert not run(governor, meter, 0, 20)
    meter.share = 0.005
    assert not run(governor, meter, 20, 150)
    meter.cpu_s += 0.5
    assert not run(governor, meter, 170, 300)


def test_a_cost_that_is_over_changes_nothing() -> None:
    meter = Meter()
    governor = Governor(Budget(0.01), meter)
    meter.share = 0.2
    run(governor, meter, 0, 15)  # the budget of five minutes
    meter.share = 0.003
    assert not [at_s for at_s, change in run(governor, meter, 15, 250) if change > 0 and at_s > 15 + RECENT_S]


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
