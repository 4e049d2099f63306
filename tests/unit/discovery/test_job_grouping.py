"""Jobs that share a rendezvous address, and a job with two, on real processes."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from hangdoc.discovery.ranks import discover
from tests.support.fake_ranks import GLOO, STORE, node, running

A, B = 29611, 29612  # nobody listens there
with socket.create_server(("127.0.0.1", 0)) as free:
    C = free.getsockname()[1]


def told(rank: int, world: int, master: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(master)}


def ranks(prefix: str, *places: tuple[int, int, int], **more: Any) -> list[dict[str, Any]]:
    return [
        node(f"{prefix}{rank}", env=told(rank, world, master), torch=True, **more) for rank, world, master in places
    ]


CASES = {
    "one job": (ranks("a", (0, 2, A), (1, 2, A)), [{"a0", "a1"}]),
    "two jobs on one port": (
        [
            node("x", ranks("a", (0, 2, A), (1, 2, A))),
            node("y", ranks("b", (0, 2, A), (1, 2, A))),
        ],
        [{"a0", "a1"}, {"b0", "b1"}],
    ),
    "a whole job, and the rest of another whose rank 0 could not listen": (
        [node("x", ranks("a", (0, 1, A))), node("y", ranks("b", (1, 3, A), (2, 3, A)))],
        [{"a0"}, {"b1", "b2"}],
    ),
    "the rest of a job, and a server that says nothing of itself": (
        [
            node("x", [node("server", threads=STORE, torch=True, serves=C)]),
            node("y", ranks("b", (1, 3, C), (2, 3, C), joins=C)),
        ],
        [{"b1", "b2"}, {"server"}],
    ),
    "one job from two shells": (
        [node("x", ranks("a", (0, 2, A))), node("y", ranks("a", (1, 2, A)))],
        [{"a0", "a1"}],
    ),
    "a job whose ranks do not agree how many they are": (
        ranks("a", (0, 3, A), (1, 3, A), (2, 4, A)),
        [{"a0", "a1", "a2"}],
    ),
    "a rank that was told another port": (
        [*ranks("a", (0, 3, A), (1, 3, A), threads=GLOO), *ranks("a", (2, 3, B))],
        [{"a0", "a1", "a2"}],
    ),
    "a launcher that gave one number twice": (
        [*ranks("a", (0, 3, A), (1, 3, A)), *ranks("b", (1, 3, A))],
        [{"a0", "a1", "b1"}],
    ),
    "parts of two jobs that one shell started": (
        ranks("a", (0, 4, A), (1, 4, A)) + ranks("b", (0, 4, A), (1, 4, A)),
        [{"a0", "a1"}, {"b0", "b1"}],
    ),
    "two jobs on two ports": (
        ranks("a", (0, 2, A), (1, 2, A)) + ranks("b", (0, 2, B), (1, 2, B)),
        [{"a0", "a1"}, {"b0", "b1"}],
    ),
    "parts of two jobs, both in their process groups": (
        ranks("a", (0, 4, A), (1, 4, A), threads=GLOO) + ranks("b", (2, 4, B), (3, 4, B), threads=GLOO),
        [{"a0", "a1"}, {"b2", "b3"}],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_which_ranks_are_one_job(name: str, tmp_path: Path) -> None:
    kids, wanted = CASES[name]
    with running(node("root", kids), tmp_path) as pids:
        found = discover([pids["root"]])
    names = {pid: name for name, pid in pids.items()}
    jobs: dict[str, set[str]] = {}
    for target in found.targets:
        jobs.setdefault(target.job, set()).add(names[target.pid])
    assert sorted(jobs.values(), key=min) == wanted


def test_no_rank_is_absent_from_a_job_that_gave_one_number_twice(tmp_path: Path) -> None:
    """Its launcher never started that rank."""
    tree, _ = CASES["a launcher that gave one number twice"]
    with running(node("root", tree), tmp_path) as pids:
        assert discover([pids["root"]]).absent == ()


def test_the_rest_of_a_job_has_its_absent_rank(tmp_path: Path) -> None:
    tree, _ = CASES["a whole job, and the rest of another whose rank 0 could not listen"]
    with running(node("root", tree), tmp_path) as pids:
        found = discover([pids["y"]])
    assert {(gone.rank, gone.pid) for gone in found.absent} == {(0, -1)}
