"""A fleet of real processes that behave as agents do, and as they do where a host goes wrong."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from hangdoc.evidence import Snapshot
from hangdoc.fleet import collector, protocol
from hangdoc.fleet.clush import AgentEvent, AgentPool
from hangdoc.fleet.collector import Fleet
from hangdoc.fleet.encoder import Encoder
from hangdoc.fleet.transports import Transport
from hangdoc.recording import recorder
from hangdoc.watch.session import Session
from probes import Tier
from tests.support.judge import judge
from tests.support.paths import PLAYBOOKS, PROGRAMS, ROOT

PROGRAM = PROGRAMS / "scripted_agent.py"
HOSTS = ("n1", "n2", "n3")
CAPTURE = PLAYBOOKS / "uneven-batches" / "capture.jsonl.zst"


@contextmanager
def fleet(scene: str, said: list[str] | None = None) -> Iterator[Fleet]:
    way = Transport(lambda host: f"exec env PYTHONPATH={ROOT} {sys.executable} {PROGRAM} {scene} {host} agent")
    made = Fleet(HOSTS, AgentPool(way), (said if said is not None else []).append)
    try:
        yield made
    finally:
        made.close()


def ranks(shots: tuple[Snapshot, ...]) -> list[tuple[str, int | None]]:
    return sorted((rank.target.host, rank.target.rank) for shot in shots for rank in shot.ranks)


def rounds_until(made: Fleet, seconds: float, lost: set[str]) -> tuple[Snapshot, ...]:
    """Rounds, one a quarter of a second, until those hosts are lost; the last one."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        shots = made.round(Tier.LOOK)
        if set(made.lost()) == lost:
            return shots
        made.wait(time.monotonic() + 0.25)
    pytest.fail(f"{sorted(made.lost())} are lost after {seconds:g} s, not {sorted(lost)}")


EVERY = [("n1", 0), ("n2", 1), ("n3", 2)]


@pytest.mark.parametrize("scene", ["healthy", "motd", "one-kernel"])
def test_every_rank_once_under_the_name_of_its_host(scene: str) -> None:
    with fleet(scene) as made:
        for _ in range(3):
            shots = made.round(Tier.LOOK)
            assert ranks(shots) == EVERY
            assert {rank.target.job for shot in shots for rank in shot.ranks} == {"none"}
        assert [target.rank for target in made.targets] == [0, 1, 2]


@pytest.mark.parametrize(
    ("scene", "why"),
    [
        ("refused", "Connection refused"),
        ("silent", "silent"),
        ("dies", "Killed"),
        ("garbage", "cannot read the output"),
    ],
)
@pytest.mark.slow("a silent host is lost after 4 s")
def test_a_failing_host_is_reported_within_5_s_and_the_others_are_seen(scene: str, why: str) -> None:
    with fleet(scene) as made:
        shots = rounds_until(made, 20.0, {"n2"})  # on a busy host the start takes its part of it
        asked_s = made._hosts["n2"].open_s
        assert asked_s is None or time.monotonic() - asked_s <= 5.0
        assert ranks(shots) == [("n1", 0), ("n3", 2)]
        (lack,) = [lack for shot in shots for lack in shot.unseen]
        assert (lack.probe, lack.host) == ("agent", "n2")
        assert why in lack.why


@pytest.mark.slow("a host is away for 5 s")
def test_a_lost_host_comes_back() -> None:
    said: list[str] = []
    with fleet("away", said) as made:
        rounds_until(made, 20.0, {"n2"})
        shots = rounds_until(made, 20.0, set())
        assert ranks(shots if len(shots) == len(HOSTS) else made.round(Tier.LOOK)) == EVERY
    assert [text for text in said if text.startswith("n2")] == [
        "n2 is not seen: the agent has been silent for 3.5 s",
        "n2 is back",
    ]


@pytest.mark.slow("an agent takes 6 s for an answer, twice")
def test_an_agent_that_answers_pings_during_a_long_examination_is_not_lost() -> None:
    said: list[str] = []
    with fleet("slow", said) as made:
        assert ranks(made.round(Tier.LOOK)) == EVERY
        assert ranks(made.round(Tier.EXAMINE, {("n2", 101)})) == EVERY
        assert not made.lost(), "an examination may take as long as this one"
        rounds_until(made, 5.0, {"n2"})  # a look may not
        rounds_until(made, 20.0, set())
    assert list(dict.fromkeys(text for text in said if text.startswith("n2"))) == [  # on a busy host, more than once
        "n2 is not seen: the agent is alive but has not answered for 4 s",
        "n2 is back",
    ]


@pytest.mark.parametrize("scene", ["one-kernel-late", "one-kernel-away"])
@pytest.mark.slow("a host is away for 5 s")
def test_a_rank_seen_by_two_agents_counts_once(scene: str) -> None:
    with fleet(scene) as made:
        session = Session(made, None)
        other = False
        end = time.monotonic() + 20.0
        while time.monotonic() < end:
            session.look()
            seen = [(rank.host, rank.rank) for rank in judge().facts(session.snapshots("none")).ranks]
            assert len({rank for _, rank in seen}) == len(seen), seen
            other = other or ("n1", 1) in seen
            if other and seen == EVERY:
                return
            session.wait(0.25)
    pytest.fail(f"n1 answered for rank 1: {other}; in the end there were {seen}")


@pytest.mark.slow("waits for the second start of an agent")
def test_an_agent_that_ended_is_restarted() -> None:
    with fleet("dies") as made:
        rounds_until(made, 20.0, {"n2"})
        rounds_until(made, 20.0, set())
        assert ranks(made.round(Tier.LOOK)) == EVERY


def test_another_version_is_reported() -> None:
    said: list[str] = []
    with fleet("version", said) as made:
        assert ranks(made.round(Tier.LOOK)) == EVERY
    assert any(text.startswith("n2 has hangdoc 0.0.1") for text in said)


def test_the_collector_does_not_grow_with_time() -> None:
    with fleet("healthy") as made:
        for _ in range(40):
            made.round(Tier.LOOK)
        held = [len(host.decoder._parts) for host in made._hosts.values()]
        for _ in range(100):
            made.round(Tier.LOOK)
        assert [len(host.decoder._parts) for host in made._hosts.values()] == held


def test_a_job_that_has_ended_is_forgotten_on_every_host() -> None:
    with fleet("healthy") as made:
        made.round(Tier.LOOK)
        made.forget("none")
        assert ranks(made.round(Tier.LOOK)) == []
        assert ranks(made.round(Tier.LOOK)) == []
        assert made._forgotten == set()


def test_nothing_is_left_behind() -> None:
    with fleet("healthy") as made:
        made.round(Tier.LOOK)
        inside = agents()
    assert len(inside) == len(HOSTS)
    assert not agents()


def agents() -> list[str]:
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if str(PROGRAM).encode() in command and int(parent) == os.getpid():
            found.append(pid)
    return found


class SharedInput:
    """In place of a carrier: what is sent to one of these hosts reaches all, as in a tree of gateways.

    n1 answers nothing while it is held up, and then everything.
    """

    def __init__(self) -> None:
        (found,) = recorder.read(CAPTURE)
        self.shot = replace(found.snapshots[0], unseen=())
        self.writers = {host: Encoder() for host in ("n1", "n2")}
        self.events: deque[AgentEvent] = deque()
        self.late: list[AgentEvent] = []
        self.held = False

    def start(self, hosts: list[str]) -> None:
        for host in hosts:
            self.events.append(AgentEvent("started", host))
            self.events.append(AgentEvent("line", host, protocol.line(protocol.Hello(boot=host))))

    def shares(self, host: str) -> bool:
        return True

    def send(self, host: str, line: bytes) -> None:
        command = protocol.parse(line, protocol.Command)
        for name, writer in self.writers.items() if command.do == "look" else ():
            about = {rank.target: (f"{name} pid:[1] {rank.target.pid} 1", 4) for rank in self.shot.ranks}
            answer = AgentEvent("line", name, protocol.line(writer.answer(command.id, self.shot, about)))
            (self.late if name == "n1" and self.held else self.events).append(answer)

    def next(self, timeout_s: float) -> AgentEvent | None:
        return self.events.popleft() if self.events else None

    def stop(self, host: str) -> None:
        self.events.append(AgentEvent("ended", host))

    def close(self) -> None: ...


def test_a_host_may_answer_what_was_asked_of_others_that_share_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy host an answer is late: meanwhile the others are asked again, and it hears that."""
    monkeypatch.setattr(collector, "PATIENCE_S", 0.05)
    carrier = SharedInput()
    made = Fleet(("n1", "n2"), carrier, lambda text: None)  # type: ignore[arg-type]
    made.round(Tier.LOOK)
    assert made.lost() == {}
    carrier.held = True
    for _ in range(3):
        made.round(Tier.LOOK)
    carrier.held = False
    carrier.events.extend(carrier.late)
    for _ in range(3):
        seen = {shot.host for shot in made.round(Tier.LOOK) if shot.ranks}
    assert (made.lost(), seen) == ({}, {"n1", "n2"})
    carrier.events.append(carrier.late[-1])
    made.round(Tier.LOOK)
    assert "an answer without a question" in made.lost()["n1"], "the same answer again"
