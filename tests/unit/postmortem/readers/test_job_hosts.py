"""The hosts of a job, as a person lists all of them beside its size."""

from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._placement.placement import placement_of


@pytest.mark.parametrize(
    "text",
    [
        "4 x A100 (nodes g1, g2)",
        "2 nodes (g1 g2), 4 ranks",
        "job 81, 4 ranks, g1 g2 (2 each, block order)",
        "job 81 (g1-g2, 2 ranks each)",
        "g[1-2], 2 gpus each: no line since 04:12",
        "mpirun -np 4, 2 ranks per host, hostfile g1, g2.",
        "mpirun, rank = 2*host + local, hosts g1 g2.",
        "two nodes: g1 and g2\n--ntasks-per-node=2",
        "we start 2 nodes x 2 GPUs, two nodes g1/g2",
    ],
)
def test_the_ranks_follow_the_order_of_the_list(text: str) -> None:
    assert placement_of(text).whole == {"g1": [0, 1], "g2": [2, 3]}


@pytest.mark.parametrize(
    "text",
    [
        "4 x A100 (nodes g2, g1)",  # in another order
        "3 nodes (g1 g2), 6 ranks",  # not all of them
        "4 ranks, and it works on g1, g2",
        "2 nodes (g1 g2)",  # of unknown size
        "5 ranks (nodes g1, g2)",
        "4 ranks (nodes g1, g2)\n4 ranks (nodes g3, g4)",
        "v1-v2, 2 each",  # versions
    ],
)
def test_a_list_that_does_not_fit_says_nothing(text: str) -> None:
    assert placement_of(text).whole == {}
