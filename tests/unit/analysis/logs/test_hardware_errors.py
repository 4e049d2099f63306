"""Ranks that share a GPU: whether any of them stands out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hangdoc.analysis.facts import derive, schema
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.evidence.placement import HostRanks
from hangdoc.postmortem.assemble import snapshots

TYPES = schema()


@pytest.mark.parametrize(
    ("pairs", "per_host", "expected"),
    [
        ([(0, 3, "21000"), (4, 1, "4a000")], 5, True),  # five processes, three GPUs
        ([(0, 1, "1000")], 2, True),  # both took the same one
        ([(1, 3, "81000")], 4, False),
        ([(0, 3, "21000"), (1, 2, "4a000")], 5, False),
        ([(8, 10, "ca000"), (9, 11, "17000")], None, False),
        ([(2, 3, "c1000")], 2, False),
    ],
)
def test_nobody_stands_out_where_the_launch_put_ranks_onto_one_gpu(
    pairs: Sequence[tuple[int, int, str]], per_host: int | None, expected: bool
) -> None:
    said = tuple(
        LogEvent("duplicate_gpu", "", "job.log", line, None, {"rank": str(one), "rank_b": str(other), "gpu": gpu})
        for line, (one, other, gpu) in enumerate(pairs, 1)
    )
    pieces = [
        Piece(ProcessRef(), "logs", Logs(said)),
        Piece(ProcessRef(), "placement", HostRanks({}, per_host)),
    ]
    assert derive(list(snapshots(pieces)), TYPES).job.logs.gpus_shared is expected
