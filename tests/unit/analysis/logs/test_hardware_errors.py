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
    ("local", "remote", "gid", "host"),
    [
        ("::ffff:10.9.0.6", "fe80::7", "fe80::7", "h2"),
        ("fe80::6", "::ffff:10.9.0.7", "fe80::6", "h1"),
        ("fe80::6", "fe80::7", None, None),
        ("::ffff:10.9.0.6", "::ffff:10.9.0.7", None, None),
        ("::ffff:10.9.0.6", "", None, None),
    ],
)
def test_the_end_of_a_connection_whose_gid_is_link_local(
    local: str, remote: str, gid: str | None, host: str | None
) -> None:
    fields = {"status": "12", "peer": "10.8.0.7", "peer_host": "h2", "local_gid": local, "remote_gid": remote}
    said = Logs((LogEvent("ib_error", "Got completion", "job.log", 1, None, fields),))
    logs = derive(list(snapshots([Piece(ProcessRef(0, "h1"), "logs", said)])), TYPES).job.logs
    assert logs.gid == gid
    assert [one.host for one in logs.beyond] == ([host] if host else [])


@pytest.mark.parametrize(("failed", "named"), [((), ["h1"]), ((3,), [3]), ((2, 3), ["h1"])])
def test_a_port_that_two_ranks_of_a_host_report(failed: Sequence[int], named: Sequence[int | str]) -> None:
    port = LogEvent("ib_event", "x", "job.log", 1, None, {"port": "mlx5_3:1", "event": "port error"})
    completion = LogEvent("ib_error", "x", "job.log", 2, None, {"status": "12", "peer": "10.8.0.7"})
    pieces = [
        Piece(ProcessRef(rank, "h1"), "logs", Logs((port, completion) if rank in failed else (port,)))
        for rank in (2, 3)
    ]
    found = derive(list(snapshots(pieces)), TYPES)
    ranks = [one.rank for one in found.ranks if one.logs.ports]
    assert [*ranks, *(one.host for one in found.job.logs.ports)] == named


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
