"""Whatever the agent of one host writes, the collector goes on, and what another host shows stays as it is."""

from __future__ import annotations

import json
import random
from collections import deque
from copy import deepcopy
from typing import Any

import pytest
from msgspec.structs import replace

from hangdoc.evidence import Snapshot
from hangdoc.fleet import protocol
from hangdoc.fleet.clush import AgentEvent
from hangdoc.fleet.collector import Fleet
from hangdoc.fleet.encoder import Encoder
from hangdoc.recording import recorder
from probes import Tier
from tests.support.judge import judge
from tests.support.paths import PLAYBOOKS

CAPTURE = PLAYBOOKS / "uneven-batches" / "capture.jsonl.zst"
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 10**18, 10**30, -(10**30), 1e308, "", "\0\x1b[31m", "\ud800", "9" * 5000,
    [], {}, [[]], [[0, 10**9]], [[5, 1]], {"": None}, {"1": 1}, {"-1": {}}, [None] * 50,
)  # fmt: skip
ROUNDS = 250


class Wire:
    """In place of a carrier: two hosts, of which the second answers what `mangle` makes of what it should."""

    def __init__(self, shots: list[Snapshot], chance: random.Random) -> None:
        self.writers = {"n1": Encoder(), "n2": Encoder()}
        self.events: deque[AgentEvent] = deque()
        self.shots, self.chance = shots, chance

    def start(self, hosts: list[str]) -> None:
        for host in hosts:
            self.writers[host] = Encoder()
            self.events.append(AgentEvent("started", host))
            hello = protocol.line(protocol.Hello(token=f"{ord(host[1]):012x}", boot=host))
            self.events.append(AgentEvent("line", host, self.mangle(hello, 10) if host == "n2" else hello))

    def shares(self, host: str) -> bool:
        return False

    def send(self, host: str, line: bytes) -> None:
        command = protocol.parse(line, protocol.Command)
        if command.do == "ping":
            self.events.append(AgentEvent("line", host, protocol.line(protocol.Pong())))
        elif command.do == "peers":
            self.events.append(AgentEvent("line", host, protocol.line(protocol.PeersAnswer(()))))
        else:
            shot = self.chance.choice(self.shots)
            about = {rank.target: (f"{host} pid:[1] {rank.target.pid} 1", 4) for rank in shot.ranks}
            answer = protocol.line(self.writers[host].answer(command.id, shot, about))
            self.events.append(AgentEvent("line", host, self.mangle(answer, 1) if host == "n2" else answer))

    def stop(self, host: str) -> None:
        self.events.append(AgentEvent("ended", host))

    def next(self, timeout_s: float) -> AgentEvent | None:
        return self.events.popleft() if self.events else None

    def close(self) -> None:
        pass

    def mangle(self, line: bytes, one_in: int) -> bytes:
        """A line with a few places that hold something else, and now and then with other bytes."""
        if self.chance.randrange(one_in):
            return line
        if self.chance.random() < 0.2:
            at = self.chance.randrange(len(line))
            return line[:at] + self.chance.randbytes(self.chance.randrange(8)) + line[at + self.chance.randrange(8) :]
        told = json.loads(line)
        for _ in range(self.chance.choice((1, 1, 1, 2, 5))):
            inside = told
            while isinstance(inside, (dict, list)) and inside:
                key = self.chance.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
                if self.chance.random() < 0.25 or not isinstance(inside[key], (dict, list)):
                    inside[key] = deepcopy(self.chance.choice(ODD))
                    break
                inside = inside[key]
        return json.dumps(told).encode()


@pytest.mark.parametrize("seed", range(3))
def test_what_one_agent_writes_leaves_the_others_as_they_are(seed: int) -> None:
    (found,) = recorder.read(CAPTURE)
    shots = [replace(shot, unseen=()) for shot in found.snapshots[:3]]
    carrier = Wire(shots, random.Random(seed))
    fleet = Fleet(("n1", "n2"), carrier, lambda text: None)  # type: ignore[arg-type]
    expected = sorted(rank.target.rank or 0 for rank in shots[0].ranks)
    lost = 0
    for number in range(ROUNDS):
        seen = fleet.round(Tier.LOOK)
        mine = [rank.target.rank or 0 for shot in seen if shot.host == "n1" for rank in shot.ranks]
        assert sorted(mine) == expected
        if number % 50 == 0:
            for job in {rank.target.job for shot in seen for rank in shot.ranks}:
                judge().verdict(judge().facts([shot for shot in seen if any(r.target.job == job for r in shot.ranks)]))
        if fleet._hosts["n2"].ended_s is not None:
            lost += 1
            fleet._hosts["n2"].ended_s = -1e9  # its agent is started anew at once
            fleet._hosts["n2"].tries = 0
    assert lost > ROUNDS / 4
