"""What is wrong with links, and whose hosts are to blame: on hand-made looks at three hosts, and on a recorded job."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

import playbooks
from hangdoc.analysis.facts import Schema, derive, schema
from hangdoc.analysis.network.link_faults import nodes_to_blame
from hangdoc.analysis.network.links import NetworkFacts, NetworkJob
from hangdoc.evidence import AGENT, Connection, Interfaces, RankEvidence, Snapshot, Sockets, Target, Unseen
from hangdoc.evidence.network import Echo, Echoes
from hangdoc.recording.recorder import read
from hangdoc.rules import loader
from hangdoc.rules.evaluate import evaluate
from hangdoc.verdict import Finding

Way = tuple[int, int]  # from rank, to rank

FAST = {"rate": 5e8, "busy": 0.01}
SLOW = {"rate": 2.5e5, "busy": 0.95, "queue": 60_000}
LOSSY = {"rate": 3e4, "busy": 0.8, "queue": 3000, "lost": 2}
STUCK = {"queue": 34 * 1448 + 100, "repeated": 4, "sacked": 1}
DEAD = {"queue": 50_000, "repeated": 4, "silent": 9.0}


def sent(
    way: Way, at: int, rate: float = 0.0, busy: float = 0.0, queue: int = 0, lost: float = 0, **now: Any
) -> Connection:
    """One end of the connection of two ranks, each on a host of its own, at second `at`."""
    one, other = way
    now.pop("echo", None)
    acked = int(rate * busy * at) + 200_000
    lost_before = now.get("lost_before", 0)
    again = int(lost * at)
    segments = acked // 1448 + again + lost_before
    ports = (4000, 5000) if one < other else (5000, 4000)
    repeated = now.get("repeated", 0)
    return Connection(
        f"10.0.0.{one + 1}",
        ports[0] + one + other,
        f"10.0.0.{other + 1}",
        ports[1] + one + other,
        "established",
        send_queue=queue,
        not_sent=0,
        send_window=65536,
        segment_bytes=1448,
        unacked=-(-queue // 1448),
        retransmits=repeated,
        sacked=now.get("sacked", 0),
        last_ack_s=now.get("silent", 0.1),
        bytes_acked=acked,
        bytes_sent=acked + again * 1448,
        bytes_received=9,
        busy_s=busy * at,
        data_segments_out=segments,
        total_retransmits=again + lost_before + repeated,
        delivered=segments,
        rtt_s=now.get("rtt_s", 0.001),
        least_rtt_s=0.0002,
        receiver_limited_s=0.0,
        interface="eth0",
    )


def looked_at(flows: Mapping[Way, Mapping[str, Any]], namespaces: bool = True) -> tuple[list[NetworkFacts], NetworkJob]:
    """The facts after ten seconds in which each rank sent so to each other."""
    ranks = sorted({rank for way in flows for rank in way})
    shots = [
        Snapshot("here", float(at), "", tuple(evidence(rank, flows, at, namespaces) for rank in ranks))
        for at in range(11)
    ]
    facts = derive(shots, schema())
    return [one.network for one in facts.ranks], facts.job.network


def evidence(rank: int, flows: Mapping[Way, Mapping[str, Any]], at: int, namespaces: bool) -> RankEvidence:
    mine = tuple(sent(way, at, **how) for way, how in of(rank, flows))
    record = Sockets(mine, 70 + rank if namespaces else 70)
    heard = tuple(
        Echo(f"10.0.0.{to + 1}", 5, how["echo"][0], how["echo"][1], 1500)
        for (_, to), how in of(rank, flows)
        if "echo" in how
    )
    records = {"sockets": record, **({"echo": Echoes(heard)} if heard else {})}
    return RankEvidence(Target(100 + rank, 1, "here", rank, world_size=3, job="j"), True, records)


def of(rank: int, flows: Mapping[Way, Mapping[str, Any]]) -> list[tuple[Way, Mapping[str, Any]]]:
    return [(way, how) for way, how in flows.items() if way[0] == rank]


QUIET: dict[Way, dict[str, Any]] = {(a, b): {"rate": 100.0, "busy": 0.01} for a in range(3) for b in range(3) if a != b}
RING = {**QUIET, (0, 2): FAST, (2, 1): FAST, (1, 0): FAST}


QUEUED = {"rate": 1e9, "busy": 0.3, "queue": 9000, "rtt_s": 0.06}  # answers stand in a queue
EARLIER = {"lost_before": 40}  # and nothing now
FEW = {"rate": 1e4, "busy": 0.05, "lost": 0.4}  # four losses, too few to prove anything alone
PASSES = {**FAST, "rate": 100.0, "echo": (5, 5)}  # pings
PAUSED = {**LOSSY, "repeated": 5, "silent": 9.0}


@pytest.mark.parametrize(
    ("flows", "faults", "blamed"),
    [
        pytest.param({}, "", "", id="a fast ring"),
        pytest.param({(2, 1): LOSSY, (1, 0): LOSSY}, "21 lossy, 10 lossy", "1", id="a lossy host"),
        pytest.param({(2, 1): LOSSY}, "21 lossy", "12", id="one lossy way of a ring"),
        pytest.param({(2, 1): LOSSY, (0, 1): FAST}, "21 lossy", "2", id="the receiver does well"),
        pytest.param({(2, 1): SLOW, (1, 0): SLOW}, "21 slow, 10 slow", "1", id="a slow host"),
        pytest.param({(1, 0): SLOW}, "10 slow", "01", id="one slow way of a ring"),
        pytest.param({(1, 0): {**SLOW, "rtt_s": 0.07}, (2, 1): QUEUED}, "10 slow", "1", id="it slows its other link"),
        pytest.param({(1, 0): SLOW, (0, 1): {**SLOW, "rate": 5e5}}, "10 slow", "01", id="answers come late"),
        pytest.param({(2, 1): STUCK, (1, 0): STUCK}, "21 oversize, 10 oversize", "1", id="too large"),
        pytest.param({(2, 1): STUCK, (1, 0): DEAD}, "21 oversize, 10 dead", "1", id="one end can prove it"),
        pytest.param({(2, 1): DEAD, (1, 0): DEAD}, "21 dead, 10 dead", "1", id="cut off"),
        pytest.param({(2, 1): DEAD}, "21 dead", "12", id="a dead way"),
        pytest.param({(2, 1): {**DEAD, "echo": (0, 0)}, (2, 0): PASSES}, "21 dead", "1", id="it reaches others"),
        pytest.param({(2, 1): {**DEAD, "echo": (5, 0)}, (2, 0): PASSES}, "21 oversize", "1", id="and large ones too"),
        pytest.param({(2, 1): {**DEAD, "echo": (0, 0)}}, "21 dead", "12", id="no ping passes either"),
        pytest.param({(2, 1): {**DEAD, "echo": (5, 5)}}, "21 dead", "12", id="only pings pass"),
        pytest.param({(2, 1): {**DEAD, "echo": (5, 0)}}, "21 oversize", "12", id="only small pings pass"),
        pytest.param({(2, 1): {**DEAD, "echo": (3, 4)}}, "21 lossy", "12", id="some pings pass"),
        pytest.param({(2, 1): {**STUCK, "echo": (0, 0)}}, "21 oversize", "12", id="pings are not answered at all"),
        pytest.param({(2, 1): {**STUCK, "echo": (3, 4)}}, "21 lossy", "12", id="chance kept a large one back"),
        pytest.param({(2, 1): LOSSY, (1, 0): EARLIER}, "21 lossy, 10 lossy", "1", id="the other link sends little"),
        pytest.param({(2, 1): LOSSY, (1, 2): FEW}, "21 lossy, 12 lossy", "12", id="a few are enough for the way back"),
        pytest.param({(2, 1): LOSSY, (0, 2): FEW}, "21 lossy", "12", id="a few are not enough elsewhere"),
        pytest.param({(2, 1): PAUSED}, "21 lossy", "12", id="it loses much, and pauses"),
        pytest.param({(2, 1): {**PAUSED, "sacked": 1}}, "21 lossy", "12", id="it pauses at a full segment"),
        pytest.param({(2, 1): PAUSED, (1, 0): EARLIER}, "21 lossy, 10 lossy", "1", id="others have nothing to send"),
    ],
)
def test_faults(flows: dict[Way, dict[str, Any]], faults: str, blamed: str) -> None:
    ranks, job = looked_at({**RING, **flows})
    found = {f"{one.from_rank}{one.to_rank} {one.fault}" for one in job.links if one.fault}
    assert found == set(faults.split(", ")) - {""}
    kinds = {one.fault for one in job.links} - {""}
    assert "".join(str(rank) for rank, one in enumerate(ranks) if kinds & set(one.blamed_for)) == blamed


@pytest.mark.parametrize("lost", [False, True])
def test_a_dead_link_to_a_lost_host_blames_that_host(lost: bool) -> None:
    flows = {way: how for way, how in {**RING, (1, 2): DEAD}.items() if way[0] != 2}
    shots = [
        Snapshot("here", float(at), "", tuple(evidence(rank, flows, at, True) for rank in (0, 1))) for at in range(5)
    ]
    gone = Snapshot("far", 0.0, "", (), unseen=(Unseen(AGENT, "silent", host="far"),))
    facts = derive([gone, *shots] if lost else shots, schema())
    assert [one.rank for one in facts.ranks if "dead" in one.network.blamed_for] == ([] if lost else [1])
    assert [(one.rank, one.host) for one in facts.job.network.beyond] == [(2, "10.0.0.3")]


@pytest.mark.parametrize(
    ("lost", "echo", "fault"),
    [
        pytest.param(False, None, "oversize", id="its host is just not watched"),
        pytest.param(True, None, "dead", id="its host has gone"),
        pytest.param(True, (0, 0), "dead", id="its host has gone and answers no ping"),
        pytest.param(True, (5, 0), "oversize", id="its host still answers small pings"),
    ],
)
def test_a_small_segment_that_passed_before_the_host_was_lost(
    lost: bool, echo: tuple[int, int] | None, fault: str
) -> None:
    stuck = {**STUCK, "echo": echo} if echo else STUCK
    flows = {way: how for way, how in {**RING, (1, 2): stuck}.items() if way[0] != 2}
    shots = [
        Snapshot("here", float(at), "", tuple(evidence(rank, flows, at, True) for rank in (0, 1))) for at in range(5)
    ]
    gone = Snapshot("far", 0.0, "", (), unseen=(Unseen(AGENT, "silent", host="far"),))
    found = derive([gone, *shots] if lost else shots, schema()).job.network.links
    assert {one.fault for one in found if (one.from_rank, one.remote.partition(":")[0]) == (1, "10.0.0.3")} == {fault}


def test_within_a_host_nothing_is_slow() -> None:
    _, job = looked_at({**RING, (1, 0): SLOW, (2, 1): LOSSY}, namespaces=False)
    assert [one.fault for one in job.links if one.fault] == []


def test_direction_of_loss() -> None:
    ranks, _ = looked_at({**RING, (2, 1): LOSSY, (1, 0): LOSSY})
    assert [one.loses for one in ranks] == ["receives", "both", "sends"]


@pytest.mark.parametrize(
    ("back", "one_way"),
    [
        pytest.param(FAST, True, id="it carries much and loses nothing"),
        pytest.param({"rate": 100.0, "busy": 0.01}, False, id="it carries too little to tell"),
        pytest.param({**FAST, "lost": 0.1}, True, id="it carries much and loses one"),
        pytest.param({"rate": 1e6, "busy": 0.05, "lost": 3}, False, id="it loses some"),
    ],
)
def test_loss_in_one_direction_only_if_the_other_one_shows_it(back: dict[str, Any], one_way: bool) -> None:
    _, job = looked_at({**RING, (2, 1): LOSSY, (1, 2): back})
    assert [one.one_way for one in job.links if (one.from_rank, one.to_rank) == (2, 1)] == [one_way]


# --- a recorded job, with the interface that it might have had ------------------------------------------


@cache
def types_of_facts() -> Schema:
    return schema()


def told(**interface: Any) -> Finding:
    """What is said of the recorded job on a slow line, had its interface been such a one."""
    (recording,) = read(playbooks.ROOT / "slow-link" / "capture.jsonl.zst")
    history = [replace(shot, ranks=tuple(_with(one, interface) for one in shot.ranks)) for shot in recording.snapshots]
    library = loader.load([playbooks.ROOT], types_of_facts())
    findings, _ = evaluate(library, derive(history, types_of_facts()))
    return findings[0]


def _with(rank: RankEvidence, interface: Mapping[str, Any]) -> RankEvidence:
    nics = rank.records.get("nics")
    if rank.target.rank != 1 or not isinstance(nics, Interfaces):
        return rank
    held = tuple(replace(one, **interface) if one.name == "eth0" else one for one in nics.interfaces)
    return replace(rank, records={**rank.records, "nics": replace(nics, interfaces=held)})


@pytest.mark.parametrize(
    ("interface", "culprits", "text"),
    [
        ({}, [1], "rank 1 uses eth0, limited to 2 Mbit/s by tbf; rank 1 could use eth1"),
        ({"kind": "wireless", "queue_rate": None, "speed_mbit": None}, [1], "eth0, wireless; rank 1 could use eth1"),
        ({"queue_rate": None, "speed_mbit": 10}, [1], "eth0, 10 Mbit/s; rank 1 could use eth1"),
        ({"queue_rate": None}, [0, 1], "at "),
    ],
)
def test_the_interface_of_a_slow_line(interface: dict[str, Any], culprits: list[int], text: str) -> None:
    finding = told(**interface)
    assert finding.playbook == "slow-link"
    assert [one.rank for one in finding.culprits] == culprits
    assert text in finding.summary


@pytest.mark.parametrize(
    ("bad", "good", "expected"),
    [
        ("", "", ""),
        ("ab", "", "ab"),  # two hosts alone
        ("ab ba", "", "ab"),
        ("ab bc", "ca", "b"),  # a ring
        ("ab bc", "", "b"),
        ("ab", "ca", "ab"),  # in the other direction: tells nothing
        ("ab", "ac", "b"),  # the sender does well with another
        ("ab", "cb", "a"),  # so does the receiver
        ("ab", "ac cb", "ab"),  # only the two together: the way between them
        ("ab ba", "ac ca", "b"),
        ("ab ba", "ac", "ab"),  # cleared in one direction only
        ("ab cb db", "", "b"),
        ("ab cd", "", "abcd"),
        ("ab cd", "ad cb", "abcd"),
        ("ab bc ca", "", "abc"),
    ],
)
def test_nodes_to_blame(bad: str, good: str, expected: str) -> None:
    def pairs(text: str) -> list[tuple[str, str]]:
        return [(one[0], one[1]) for one in text.split()]

    assert nodes_to_blame(pairs(bad), pairs(good)) == set(expected)
