"""Two threads of a rank in collectives of one group: told from ranks that simply make other calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangdoc.analysis.collectives.fr_history import ledgers
from hangdoc.analysis.collectives.fr_mismatch import crossed, mismatch
from hangdoc.evidence import FlightRecorder, RecordedCall

GRADIENTS = RecordedCall("0", 0, "all_reduce", "[[10]]", ("Float",), False, thread=0)
INDEX = RecordedCall("0", 0, "all_gather", "[[1]]", ("Long",), False, thread=1)
Story = tuple[RecordedCall, ...]


def record(*calls: RecordedCall) -> FlightRecorder:
    entries = tuple(replace(call, sequence=number) for number, call in enumerate(calls, 1))
    return FlightRecorder("2.10", entries, {}, {}, final=True)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (((GRADIENTS, INDEX), (INDEX, GRADIENTS)), (0, 1)),
        (((GRADIENTS, INDEX), (GRADIENTS, INDEX), (INDEX, GRADIENTS)), (0, 1, 2)),
        (((GRADIENTS, GRADIENTS, INDEX), (INDEX, GRADIENTS, GRADIENTS)), (0, 1)),
        (((GRADIENTS, INDEX), (INDEX,)), ()),  # the other one did not call what is missing
        (((GRADIENTS, replace(INDEX, thread=0)), (replace(INDEX, thread=0), GRADIENTS)), ()),  # one thread each
        (((replace(GRADIENTS, thread=None), INDEX), (INDEX, replace(GRADIENTS, thread=None))), ()),
    ],
)
def test_a_race_is_one_of_two_threads_in_opposite_order(ranks: tuple[Story, ...], expected: tuple[int, ...]) -> None:
    (ledger,) = ledgers({rank: record(*calls) for rank, calls in enumerate(ranks)})
    found = mismatch(ledger)
    assert found is not None
    assert crossed(found) == expected
