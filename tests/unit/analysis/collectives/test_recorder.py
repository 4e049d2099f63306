"""The newest collectives of the ranks, compared."""

from __future__ import annotations

import json

import pytest

from hangdoc.analysis import Case
from hangdoc.analysis.collectives.recorder import ANALYSIS
from hangdoc.evidence import FlightRecorder, RankEvidence, RecordedCall, Target
from probes.recorder import parse


def call(
    sequence: int, op: str = "all_reduce", sizes: str = "[[10]]", group: str = "0", p2p: bool = False
) -> RecordedCall:
    return RecordedCall(group, sequence, op, sizes, ("Float",), retired=False, p2p=p2p)


def facts(*newest: RecordedCall | None) -> list[tuple[int | None, bool | None, bool | None]]:
    """Sequence number, `behind` and `differs` of each rank, given the newest entry of its recorder."""
    ranks = {}
    for rank, entry in enumerate(newest):
        older = call((entry.sequence if entry else 1) - 1)
        records = {"recorder": FlightRecorder("2.10", (older, entry), {}, {})} if entry else {}
        ranks["h", rank] = RankEvidence(Target(rank, 1, "h", rank), True, records)
    found, _ = ANALYSIS.derive(Case((), ranks))
    return [(found[key].sequence, found[key].behind, found[key].differs) for key in ranks]


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        ((call(5), call(4), call(5)), [(5, False, False), (4, True, False), (5, False, False)]),
        ((call(5), call(5, "broadcast"), call(5)), [(5, False, False), (5, False, True), (5, False, False)]),
        ((call(5), call(5, sizes="[[9]]"), call(5)), [(5, False, False), (5, False, True), (5, False, False)]),
        ((call(5), call(5, "broadcast")), [(5, False, False), (5, False, False)]),  # a tie blames nobody
        ((call(5), None, call(5)), [(5, False, False), (None, None, None), (5, False, False)]),
        ((call(5), None), [(None, None, None)] * 2),
        ((call(5), call(2, group="1"), call(5)), [(5, False, False), (None, None, None), (5, False, False)]),
    ],
)
def test_numbers_and_operations_are_compared(
    newest: tuple[RecordedCall | None, ...], expected: list[tuple[int | None, bool | None, bool | None]]
) -> None:
    assert facts(*newest) == expected


def test_a_trace_is_read_as_torch_writes_it() -> None:
    """The format that torch 2.13 writes for gloo; anything else raises."""
    entry = {
        "collective_seq_id": 20,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "input_sizes": [[10]],
        "input_dtypes": ["Float"],
        "retired": False,
    }
    status = {"0": {"last_completed_collective": "19", "last_enqueued_collective": "20"}}
    trace = {"version": "2.10", "entries": [entry], "pg_status": status}
    read = parse(json.dumps(trace).encode())
    assert read.entries == (RecordedCall("0", 20, "all_reduce", "[[10]]", ("Float",), retired=False),)
    assert (read.enqueued, read.completed) == ({"0": 20}, {"0": 19})
    for broken in (b"", b"[]", b"{}", b'{"version": "2.10", "entries": [{}]}'):
        with pytest.raises((ValueError, KeyError, TypeError)):
            parse(broken)
