"""One process seen by several agents, and one job seen on several hosts."""

from __future__ import annotations

from typing import Any

import pytest

from hangdoc.evidence import Target
from hangdoc.fleet.merge import ProcessOwners, merge_jobs


def target(
    host: str, rank: int | None, job: str = "none", master: str | None = "10.0.0.1:29500", **more: Any
) -> Target:
    return Target(1000 + (rank or 0), 5, host, rank, world_size=more.pop("world", 4), job=job, master=master, **more)


@pytest.mark.parametrize(
    ("views", "owner"),
    [
        ({"n1": 2, "n2": 2}, "n1"),  # as near: the first of the node set
        ({"n1": 2, "n2": 4}, "n2"),  # in n2's network namespace, or of its Slurm node
        ({"n2": 1}, "n2"),
    ],
)
def test_a_process_counts_once(views: dict[str, int], owner: str) -> None:
    owners = ProcessOwners({"n1": 0, "n2": 1}, {("n1", "n2"): True, ("n2", "n1"): True})
    for host, near in views.items():
        owners.note(host, {target(host, 0): ("boot pid:[1] 77 5", near)})
    assert {owners.owner("boot pid:[1] 77 5", host) for host in views} == {owner}
    assert owners.skipped() == {host: (1000,) for host in views if host != owner}


def test_if_the_owner_is_lost_the_other_host_answers() -> None:
    owners = ProcessOwners({"n1": 0, "n2": 1}, {("n1", "n2"): True, ("n2", "n1"): True})
    for host, near in {"n1": 5, "n2": 1}.items():
        owners.note(host, {target(host, 0): ("p", near)})
    owners.keep({"n2"}, {"p"})
    assert owners.owner("p", "n2") == "n2"
    assert owners.skipped() == {}
    owners.keep({"n2"}, set())
    assert owners.owner("p", "n2") is None


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        pytest.param([target("n1", 0), target("n2", 1)], ["none", "none"], id="one place to meet"),
        pytest.param(
            [target("n1", 0), target("n2", 0, master="10.0.0.2:29500")],
            ["none@10.0.0.1:29500", "none@10.0.0.2:29500"],
            id="two places, one number",
        ),
        pytest.param(
            [target("n1", 0, master="127.0.0.1:29500"), target("n2", 0, master="127.0.0.1:29500")],
            ["none on n1", "none on n2"],
            id="each on its own loopback",
        ),
        pytest.param(
            [target("n1", 0, master="localhost:29500"), target("n2", 1, master="n1:29500")],
            ["none", "none"],
            id="the first host knows itself by another name",
        ),
        pytest.param(
            [target("n1", 0, master="n1:29500"), target("n2", 1, master="n1:29500", world=8)],
            ["none", "none"],
            id="worlds of two sizes that meet at one place",
        ),
        pytest.param(
            [target("n1", 0, "4711", None), target("n2", 1, "4711", None), target("n2", 0, "4712", None)],
            ["4711", "4711", "4712"],
            id="by the scheduler's number",
        ),
        pytest.param(
            [target("n1", 0, "pid 7", None), target("n2", 0, "pid 7", None)],
            ["pid 7 on n1", "pid 7 on n2"],
            id="a PID is no name beyond its host",
        ),
        pytest.param(
            [target("n1", 0), target("n2", 1, "none@10.0.0.1:29500"), target("n2", 0, "x", "10.0.0.9:1")],
            ["none", "none", "x"],
            id="a host with two jobs names them longer",
        ),
    ],
)
def test_one_job_on_many_hosts(targets: list[Target], names: list[str]) -> None:
    found, _ = merge_jobs(targets)
    assert [found[one.host, one.job] for one in targets] == names
