"""Network requests need the user's consent: how it reaches the probes, and what is claimed without it."""

from __future__ import annotations

import io
import os
from typing import Any

import pytest
from msgspec.structs import replace

import playbooks
from hangdoc.evidence import Connection, Snapshot, Sockets
from hangdoc.evidence.network import Echo, Echoes
from hangdoc.fleet import protocol
from hangdoc.fleet.collector import Fleet
from hangdoc.recording.recorder import read
from hangdoc.verdict import Finding
from hangdoc.watch import agent
from hangdoc.watch.sources import LocalSource
from probes import Tier
from tests.support.judge import judge


def looks(**fields: Any) -> list[Snapshot]:
    """A recorded dead link, of which one end is seen; what that end repeats in vain is changed."""
    (recording,) = read(playbooks.ROOT / "dead-link" / "capture.jsonl.zst")
    found = []
    for shot in recording.snapshots:
        (rank,) = (rank for rank in shot.ranks if rank.target.rank == 0)
        sockets = rank.records.get("sockets")
        if isinstance(sockets, Sockets):
            ends = tuple(replace(one, **fields) if repeated(one) else one for one in sockets.connections)
            rank = replace(rank, records={**rank.records, "sockets": replace(sockets, connections=ends)})
        found.append(replace(shot, ranks=(rank,)))
    return found


def repeated(one: Connection) -> bool:
    return bool(one.send_queue and one.retransmits)


def best(shots: list[Snapshot]) -> Finding:
    return judge().verdict(judge().facts(shots)).findings[0]


FULL = {"send_queue": 14480, "unacked": 10, "segment_bytes": 1448, "not_sent": 0, "sacked": 0, "bytes_acked": 10**7}
SMALL = {**FULL, "send_queue": 200, "unacked": 1}


def test_without_a_ping_a_link_that_repeats_full_segments_is_dead_with_less_confidence() -> None:
    shots = looks(**FULL)
    unasked = best(shots)
    assert (unasked.playbook, unasked.confidence) == ("dead-link", "medium")
    assert any("no ping was sent" in why for why in unasked.reasons)
    newest = shots[-1].ranks[0]
    remote = next(one.remote for one in newest.records["sockets"].connections if repeated(one))
    echoes = Echoes((Echo(remote, 5, 0, 0, 1500),))
    asked = best(
        [*shots[:-1], replace(shots[-1], ranks=(replace(newest, records={**newest.records, "echo": echoes}),))]
    )
    assert (asked.playbook, asked.confidence) == ("dead-link", "high")


def test_a_link_that_repeats_small_segments_is_dead_without_a_ping() -> None:
    assert (best(looks(**SMALL)).playbook, best(looks(**SMALL)).confidence) == ("dead-link", "high")


class Silent:
    """An agent pool of hosts that never answer; it keeps what is sent to them."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def start(self, hosts: list[str]) -> None: ...
    def shares(self, host: str) -> bool:
        return False

    def send(self, host: str, line: bytes) -> None:
        self.sent.append(line)

    def next(self, timeout_s: float) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize("ask", [(), ("ping", "dns")])
def test_every_agent_gets_the_consent(monkeypatch: pytest.MonkeyPatch, ask: tuple[str, ...]) -> None:
    monkeypatch.setattr("hangdoc.fleet.collector.START_S", 0.0)
    carrier: Any = Silent()
    Fleet(["n1", "n2"], carrier, print, ask=ask).round(Tier.LOOK)
    assert [protocol.parse(line, protocol.Command).ask for line in carrier.sent] == [ask, ask]


def test_an_agent_passes_the_consent_to_its_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[frozenset[str]] = []

    def observed(here: LocalSource, *_: object) -> tuple[Snapshot]:
        asked.append(here.sampler.ask)
        return (Snapshot("here", 0.0, "", ()),)

    monkeypatch.setattr(LocalSource, "find", lambda here: here)
    monkeypatch.setattr(LocalSource, "round", observed)
    for ask in (("ping",), ()):
        reading, writing = os.pipe()
        monkeypatch.setattr(agent, "_commands", lambda *_, ask=ask: [protocol.Command("look", 1, ask=ask)])
        agent.serve(reading, io.BytesIO())
        os.close(reading)
        os.close(writing)
    assert asked == [{"ping"}, frozenset()]
