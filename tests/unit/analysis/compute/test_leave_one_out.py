"""All ranks but one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangdoc.analysis.compute.leave_one_out import Values, Waiters
from hangdoc.analysis.ranks.call_path import LazyCallPath
from hangdoc.analysis.ranks.progress import Activity, Look
from hangdoc.evidence import Stack

NOWHERE = LazyCallPath((), Stack(1, None, ()), None, {})
NUMBERS = st.lists(st.floats(-9, 9), min_size=2, max_size=9)


@given(NUMBERS)
def test_median_of_the_others(values: Sequence[float]) -> None:
    for i, value in enumerate(values):
        assert Values(values).median(value) == statistics.median([*values[:i], *values[i + 1 :]])
    assert Values(values).median() == statistics.median(values)


def looks(at_s: float, phases: str) -> list[Look]:
    spots = {phase: Activity(name, None, (), (), (), ()) for phase, name in (("w", "collective"), ("c", "compute"))}
    return [Look(at_s + i, NOWHERE, spots[phase]) for i, phase in enumerate(phases)]


@pytest.mark.parametrize(
    ("after_s", "count"), [(-1.0, 1), (0.0, 1), (0.4, 1), (0.6, 2), (1.4, 2), (1.6, 1), (2.0, 1), (9.0, 1)]
)
def test_waiters_by_the_nearest_look_at_each(after_s: float, count: int) -> None:
    """The clocks of the two have nothing in common."""
    ranks = [looks(5.0, "cww"), looks(-70.0, "wwc"), [], looks(1e6, "ccc")]
    assert Waiters(ranks).at(after_s) == count
