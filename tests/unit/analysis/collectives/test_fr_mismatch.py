"""Races between two threads of a rank, as distinct from ranks that make different calls."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hangdoc.analysis.collectives.fr_history import group_histories
from hangdoc.analysis.collectives.fr_mismatch import mismatch, racing_ranks
from hangdoc.evidence import FlightRecorder, RecordedCall

GRADIENTS = RecordedCall("0", 0, "all_reduce", "[[10]]", ("Float",), False, thread=0)
INDEX = RecordedCall("0", 0, "all_gather", "[[1]]", ("Long",), False, thread=1)
Calls = tuple[RecordedCall, ...]


def record(*calls: RecordedCall) -> FlightRecorder:
    entries = tuple(replace(call, sequence=number) for number, call in enumerate(calls, 1))
    return FlightRecorder("2.10", entries, {}, {}, final=True)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (((GRADIENTS, INDEX), (INDEX, GRADIENTS)), (0, 1)),
        (((GRADIENTS, INDEX), (GRADIENTS, INDEX), (INDEX, GRADIENTS)), (0, 1, 2)),
        (((GRADIENTS, GRADIENTS, INDEX), (INDEX, GRADIENTS, GRADIENTS)), (0, 1)),
        (((GRADIENTS, INDEX), (INDEX,)), ()),  # the peer never makes the missing call
        (((GRADIENTS, replace(INDEX, thread=0)), (replace(INDEX, thread=0), GRADIENTS)), ()),  # one thread each
        (((replace(GRADIENTS, thread=None), INDEX), (INDEX, replace(GRADIENTS, thread=None))), ()),
    ],
)
def test_two_threads_in_opposite_order_are_a_race(ranks: tuple[Calls, ...], expected: tuple[int, ...]) -> None:
    (group,) = group_histories({rank: record(*calls) for rank, calls in enumerate(ranks)})
    found = mismatch(group)
    assert found is not None
    assert racing_ranks(found) == expected
