"""Processes of a job, and strangers on its rendezvous address, on trees of real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hangdoc.discovery.job_processes import JobProcesses
from hangdoc.evidence import JobProcess, Target
from hangdoc.system import procfs
from tests.support.fake_ranks import node, running

MASTER = "127.0.0.1:29613"
AGENT: dict[str, Any] = {"program": ["-m", "torch.distributed.run"], "torch": True}


def told(rank: int, world: int = 3) -> dict[str, str]:
    host, port = MASTER.split(":")
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": host, "MASTER_PORT": port}


def target(pid: int, role: str = "rank", job: str = "mine") -> Target:
    stat = procfs.stat(pid)
    return Target(pid, stat.start_ticks if stat else 0, "here", None, master=MASTER, role=role, job=job)


def agent(name: str, number: int, run: str = "none", backend: str = "static", alone: bool = False) -> dict[str, Any]:
    args = ["--nnodes", "3", "--node-rank", str(number), "--rdzv-id", run, "--rdzv-backend", backend]
    return node(name, args=["--standalone"] if alone else [*args, "--rdzv-endpoint", MASTER], **AGENT)


def names(found: tuple[JobProcess, ...], pids: dict[str, int]) -> dict[str, tuple[int | None, bool]]:
    by_pid = {pid: name for name, pid in pids.items()}
    return {by_pid[kin.pid]: (kin.number, kin.agent) for kin in found if kin.pid in by_pid}


def test_ranks_of_the_job_that_are_not_watched(tmp_path: Path) -> None:
    others = node("elsewhere", env={**told(1), "MASTER_PORT": "1"})
    tree = node(
        "root", [node("r0", env=told(0)), node("r1", env=told(1), forks=["w1"]), node("r2", env=told(2)), others]
    )
    with running(tree, tmp_path) as pids:
        job_processes = JobProcesses()
        job_processes.refresh()
        watched = {pids["r0"]: target(pids["r0"])}
        found = job_processes.of(watched[pids["r0"]], watched)
    assert names(found, pids) == {"r1": (1, False), "r2": (2, False)}


def test_launchers_of_one_rendezvous(tmp_path: Path) -> None:
    with running(node("root", [agent("a0", 0), agent("a1", 1), agent("alone", 0, alone=True)]), tmp_path) as pids:
        job_processes = JobProcesses()
        job_processes.refresh()
        watched = {pids["a0"]: target(pids["a0"], "agent")}
        found = job_processes.of(watched[pids["a0"]], watched)
    assert names(found, pids) == {"a1": (1, True)}


HOLDERS: dict[str, tuple[list[dict[str, Any]], str, bool | None]] = {
    "its launcher": ([node("holder", [node("me", env=told(1))])], "rank", True),
    "another rank that its parent started": (
        [node("p", [node("holder", env=told(0)), node("me", env=told(1))])],
        "rank",
        True,
    ),
    "a rank that another shell started": (
        [node("p", [node("holder", env=told(0))]), node("q", [node("me", env=told(1))])],
        "rank",
        True,
    ),
    "a rank of a job that has one like me": (
        [node("p", [node("holder", env=told(0)), node("twin", env=told(1))]), node("q", [node("me", env=told(1))])],
        "rank",
        False,
    ),
    "a rank that meets others elsewhere": (
        [node("p", [node("holder", env={**told(0), "MASTER_PORT": "1"})]), node("q", [node("me", env=told(1))])],
        "rank",
        False,
    ),
    "a rank that was told another size": (
        [node("p", [node("holder", env=told(0, 1))]), node("q", [node("me", env=told(1))])],
        "rank",
        None,  # of another session it would be a stranger
    ),
    "a program without PyTorch": ([node("p", [node("holder")]), node("q", [node("me", env=told(1))])], "rank", False),
    "a program with PyTorch": (
        [node("p", [node("holder", torch=True)]), node("q", [node("me", env=told(1))])],
        "rank",
        None,
    ),
    "a launcher of the run": ([agent("holder", 0), node("q", [agent("me", 1)])], "agent", True),
    "a launcher of another run": ([agent("holder", 0, run="x"), node("q", [agent("me", 1)])], "agent", False),
    "a launcher of another run on a store for several": (
        [node("p", [agent("holder", 0, "x", "c10d")]), node("q", [agent("me", 1, backend="c10d")])],
        "agent",
        None,
    ),
    "a server that a rendezvous of its own kind has": (
        [node("p", [node("holder")]), node("q", [agent("me", 1, backend="etcd-v2")])],
        "agent",
        None,
    ),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_who_listens(name: str, tmp_path: Path) -> None:
    kids, role, belongs = HOLDERS[name]
    with running(node("root", kids), tmp_path) as pids:
        job_processes = JobProcesses()
        job_processes.refresh()
        mine = target(pids["me"], role)
        assert job_processes.belongs(pids["holder"], mine, {pids["me"]: mine}) is belongs


def test_a_watched_rank_of_another_job_is_not_called_a_stranger_for_that(tmp_path: Path) -> None:
    """Which ranks are one job is not certain enough."""
    with running(node("root", [node("p", [node("holder")]), node("q", [node("me", env=told(1))])]), tmp_path) as pids:
        job_processes = JobProcesses()
        job_processes.refresh()
        mine, other = target(pids["me"]), target(pids["holder"], job="another")
        assert job_processes.belongs(other.pid, mine, {mine.pid: mine, other.pid: other}) is None
        same = target(pids["holder"])
        assert job_processes.belongs(same.pid, mine, {mine.pid: mine, same.pid: same}) is True


def test_a_rank_that_exists_twice_splits_a_job(tmp_path: Path) -> None:
    """Two of the processes that one launcher started have rank 1: one of them is watched as another job."""
    tree = node("root", [node("r0", env=told(0)), node("r1", env=told(1)), node("twin", env=told(1))])
    with running(tree, tmp_path) as pids:
        job_processes = JobProcesses()
        job_processes.refresh()
        watched = {pids[name]: target(pids[name], job=job) for name, job in (("r0", "a"), ("r1", "a"), ("twin", "b"))}
        twin = watched[pids["twin"]]
        found = job_processes.of(twin, watched)
        assert job_processes.belongs(pids["r0"], twin, watched) is True  # no stranger holds the port
    assert names(found, pids)["r0"] == (0, False)  # rank 0 is not missing
