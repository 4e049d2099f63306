"""An agent that lies, or floods the collector: what it says stays with it, and the others are judged as without it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hangdoc.evidence import Snapshot
from hangdoc.fleet.clush import AgentPool
from hangdoc.fleet.collector import Fleet
from hangdoc.fleet.transports import Transport
from hangdoc.watch.session import Session
from probes import Tier
from tests.support.judge import judge
from tests.support.paths import PROGRAMS, ROOT

PROGRAM = PROGRAMS / "lying_agent.py"
HONEST = [("n1", 0), ("n3", 1), ("n3", 2)]


@contextmanager
def fleet(scene: str, hosts: tuple[str, ...] = ("n1", "n2", "n3")) -> Iterator[Fleet]:
    way = Transport(lambda host: f"exec env PYTHONPATH={ROOT} {sys.executable} {PROGRAM} {scene} {host} agent")
    made = Fleet(hosts, AgentPool(way), lambda text: None)
    try:
        yield made
    finally:
        made.close()


def of_job(shots: tuple[Snapshot, ...], job: str) -> list[tuple[str, int | None]]:
    return sorted((r.target.host, r.target.rank) for shot in shots for r in shot.ranks if r.target.job == job)


def told(shots: tuple[Snapshot, ...], host: str) -> list[str]:
    return [lack.why for shot in shots if shot.host == host for lack in shot.unseen if lack.probe == "fleet"]


@pytest.mark.parametrize("order", [("n1", "n2", "n3"), ("n2", "n1", "n3")])
@pytest.mark.parametrize(
    ("scene", "host", "said"),
    [
        ("claims", "n2", "rank 0 of n2 is not judged: its agent claims that it runs on a different kernel"),
        ("claims-with-its-boot-id", "n1", "n2 also claims this process, but its agent is not visible on n1"),
        ("same-rank", "n2", "n1 has the same ranks of this job"),
        ("dead-rank", "n2", "n3 has the same ranks of this job"),
        ("gone-rank", "n2", "n3 has the same ranks of this job"),
    ],
)
def test_claims_of_an_agent_hide_no_rank_of_another_host(
    scene: str, host: str, said: str, order: tuple[str, ...]
) -> None:
    with fleet(scene, order) as made:
        session = Session(made, None)
        for _ in range(3):
            shots = made.round(Tier.LOOK)
            assert of_job(shots, "none") == HONEST
            assert [why for why in told(shots, host) if why.startswith(said)], told(shots, host)
            session._add(shots)
        facts = judge().facts(session.snapshots("none"))
        assert [(rank.host, rank.rank, rank.alive) for rank in facts.ranks] == [(*one, True) for one in HONEST]
        assert facts.job.world.lost == ()  # that a host is lost is not for its agent to say
        assert all(len(lack.why) <= 400 and len(lack.probe) <= 400 for shot in shots for lack in shot.unseen)


def test_absurd_ranks_and_sizes_of_an_agent_are_no_ranks() -> None:
    with fleet("absurd") as made:
        shots = made.round(Tier.LOOK)
        assert [one for one in of_job(shots, "none") if one[0] != "n2"] == HONEST
        targets = [rank.target for shot in shots for rank in shot.ranks if shot.host == "n2"]
        assert [(target.rank, target.world_size) for target in targets] == [(None, None), (None, None)]


@pytest.mark.parametrize(
    ("scene", "why"),
    [
        ("flood-line", "it was cut off"),
        ("flood-stderr", "it was cut off"),
        ("flood-pongs", "it was cut off"),
        ("flood-greetings", "it was cut off"),
        ("bomb-parts", "more data than the ranks of a host can have"),
        ("bomb-depth", "cannot read the output"),
        ("bomb-unseen", "too many reasons for unseen data"),
        ("bomb-ranks", "more ranks than a host can have"),
        ("bomb-groups", "process groups that are too large"),
        ("two-hellos", "a second hello"),
        ("unasked", "an answer without a question"),
    ],
)
@pytest.mark.slow("agents send up to the limits")
def test_an_agent_that_sends_too_much_is_cut_off_and_reported(scene: str, why: str) -> None:
    with fleet(scene) as made:
        before = resident()
        end = time.monotonic() + 20.0
        shots = made.round(Tier.LOOK)
        while not made.lost() and time.monotonic() < end:
            made.wait(time.monotonic() + 0.1)
            shots = made.round(Tier.LOOK)
        assert list(made.lost()) == ["n2"]
        assert why in made.lost()["n2"]
        assert of_job(shots, "none") == HONEST
        assert resident() - before < 300 << 20
        if scene.startswith("flood"):
            assert made._hosts["n2"].barred
            until = time.monotonic() + 1.0
            made.wait(until)
            assert of_job(made.round(Tier.LOOK), "none") == HONEST


def resident() -> int:
    """The most memory that this process has held since it was last asked (bytes)."""
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
    Path("/proc/self/clear_refs").write_text("5")  # proc_pid_clear_refs(5): begin anew
    return peak
