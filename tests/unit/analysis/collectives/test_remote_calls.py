"""Ranks that wait for the answer to a remote call, and ranks that make no more calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc.analysis.facts import Facts
from tests.support.judge import judge
from tests.support.synthetic_evidence import LIB, At, Stage, number

SCRIPT = """\
def main(rank):
    rpc.init_rpc(str(rank))
    if {test}:
        {arms}
    rpc.shutdown()

def train(shards):
    for shard in shards:
        rpc_sync("server", update)
"""
RPC = f"{LIB}/distributed/rpc/api.py"


def ranks_of(stage: Stage, arm: int, end: int) -> Facts:
    """A server, a trainer that waits for an answer, and one that may have ended."""

    def shuts_down(rank: int) -> At:
        return At([("main", end)], [("shutdown", RPC)], {"main": [number("rank", rank)]})

    calls = At([("main", arm), ("train", end + 4)], [("rpc_sync", RPC)], {"main": [number("rank", 1)]})
    return stage.facts([shuts_down(0), calls, shuts_down(2)])


@pytest.mark.parametrize(
    ("test", "arms", "arm", "ended"),
    [
        ("rank", "train(shards)", 4, [2]),
        ("rank != 0", "train(shards)", 4, [2]),
        ("rank == 0", "serve()\n    else:\n        train(shards)", 6, [2]),
        ("rank == 1", "train(shards)", 4, []),
        ("trains(rank)", "train(shards)", 4, []),  # who trains is unknown
    ],
)
def test_a_trainer_that_has_ended(test: str, arms: str, arm: int, ended: list[int], tmp_path: Path) -> None:
    stage = Stage(SCRIPT.format(test=test, arms=arms), tmp_path)
    found = ranks_of(stage, arm, arm + 1)
    assert [rank.rank for rank in found.ranks if rank.rpc.calls] == [1]
    assert [(rank.rank, rank.rpc.loop) for rank in found.ranks if rank.rpc.ended] == [
        (rank, "for shard in shards:") for rank in ended
    ]
    verdict = judge().verdict(found)
    assert verdict.status == "stalled"
    assert [[culprit.rank for culprit in one.culprits] for one in verdict.findings if one.playbook == "rank-left"] == (
        [ended] if ended else []
    )
    assert not any(finding.confidence == "high" for finding in verdict.findings)
