"""Analysis `network`: on real connections between real namespaces, and on what only several hosts could show."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

import playbooks
from hangdoc.analysis import Case, Key, Suspect
from hangdoc.analysis.facts import Facts, derive, schema
from hangdoc.analysis.network import tcp_counters
from hangdoc.analysis.network.data_connections import data_connections
from hangdoc.analysis.network.links import ANALYSIS, NetworkFacts, NetworkJob
from hangdoc.evidence import (
    AGENT,
    Connection,
    Environ,
    Interface,
    Interfaces,
    RankEvidence,
    Snapshot,
    Sockets,
    Target,
    Unseen,
)
from hangdoc.recording.recorder import read
from probes import Request, Tier
from probes.nics import PROBE as NICS
from probes.sockets import SocketsProbe
from tests.support.judge import judge
from tests.support.polling import until
from tests.support.tcp_peers import TcpPeer, join, tcp_peers
from tests.support.testbeds import network


class Watch:
    """Samples talkers as ranks and derives the facts of all samples so far."""

    def __init__(self, *talkers: TcpPeer) -> None:
        self.targets = [one.target(rank, len(talkers)) for rank, one in enumerate(talkers)]
        self.history: list[Snapshot] = []
        self._sockets = SocketsProbe()

    def look(self) -> tuple[list[NetworkFacts], NetworkJob]:
        request = Request(self.targets, Tier.EXAMINE)
        sockets, nics = self._sockets.observe(request), NICS.observe(request)
        ranks = [
            RankEvidence(one, True, {"sockets": sockets.by_pid[one.pid], "nics": nics.by_pid[one.pid]})
            for one in self.targets
        ]
        self.history.append(Snapshot("here", time.monotonic(), "", tuple(ranks)))
        facts = derive(self.history, schema())
        return [one.network for one in facts.ranks], facts.job.network

    def until(self, true: Callable[[Sequence[NetworkFacts], NetworkJob], object], timeout_s: float = 15.0) -> None:
        until(self.look, lambda seen: true(*seen), timeout_s, 0.2)

    def close(self) -> None:
        self._sockets.observe(Request([], Tier.PULSE))


def test_two_ranks_that_communicate_and_stop() -> None:
    with tcp_peers(None, None) as (server, client):
        join(server, client, "127.0.0.1", network.free_port())
        watch = Watch(server, client)
        ranks, job = watch.look()
        assert job.moving is None, "one sample shows no movement"
        client.do("send 500000")
        server.do("read 500000")
        ranks, job = watch.look()
        assert (job.moving, job.quiet, job.checked, job.dead_links) == (True, True, True, 0)
        assert [(one.connections, one.moving) for one in ranks] == [(1, True)] * 2
        time.sleep(1)
        ranks, job = watch.look()
        assert job.idle_s is not None
        assert 0.9 < job.idle_s < 5
        assert [(link.from_rank, link.to_rank, link.dead) for link in job.links] == [(0, 1, False), (1, 0, False)]
        watch.close()


def test_a_receiver_that_does_not_read_is_no_dead_link() -> None:
    with tcp_peers(None, None) as (server, client):
        join(server, client, "127.0.0.1", network.free_port())
        client.do("send 50000000 0.3")
        watch = Watch(server, client)
        watch.until(lambda ranks, job: ranks[1].zero_window)
        time.sleep(1.5)
        ranks, job = watch.look()
        assert (ranks[1].unacked_bytes or 0) > 10_000
        assert (job.quiet, job.dead_links, ranks[1].zero_window, ranks[0].zero_window) == (False, 0, True, False)
        assert job.idle_s is not None
        assert job.idle_s > 1
        assert [one.faults for one in ranks] == [(), ()]
        watch.close()


@pytest.mark.parametrize("break_it", ["interface", "cable", "path"])
@pytest.mark.slow("TCP repeats in vain for seconds")
def test_a_dead_link(break_it: str) -> None:
    """The last of three ranks is cut off, as sender or as receiver."""
    network.require()
    with network.network_testbed(3) as bed, tcp_peers(*bed.nodes) as talkers:
        first, second, third = talkers
        join(first, second, bed.nodes[0].address, 7000)
        join(third, second, bed.nodes[2].address, 7000)
        watch = Watch(*talkers)
        _, job = watch.look()
        assert (len(job.links), job.quiet, job.dead_links, job.interfaces_down) == (4, True, 0, 0)
        if break_it == "interface":
            bed.nodes[2].link("down")
        elif break_it == "cable":
            bed.unplug(2)
        else:
            bed.cut(2)
        (second if break_it == "path" else third).do("send 3000")
        watch.until(lambda ranks, job: job.dead_links)
        ranks, job = watch.look()
        assert (job.dead_links, job.quiet) == (1, False)
        assert [one.dead_links for one in ranks] == [0, 1, 1]
        assert [one.interface_down for one in ranks] == [(), (), () if break_it == "path" else ("eth0",)]
        assert {(link.from_rank, link.to_rank) for link in job.links if link.dead} == {(1, 2), (2, 1)}
        assert max(link.unacked_bytes for link in job.links if link.dead) == 3000
        # The sender repeats, so that its last send is young: the age of the silence is that of the last answer.
        assert job.idle_s is not None
        assert job.idle_s > 3
        watch.close()


def as_on_a_wire(bed: network.Bed) -> None:
    """One segment a packet: else the kernel hands over many at once."""
    for node in bed.nodes:
        node.ip("link", "set", "eth0", "gso_max_segs", "1")


def on(node: network.Node, *command: str) -> None:
    subprocess.run(node.command(*command), check=True, capture_output=True)


@pytest.mark.slow("loses packets for seconds")
def test_a_link_that_loses_packets() -> None:
    """What the second rank receives; what it sends arrives.

    With more loss, chance repeats the loss of one segment until the link looks dead.
    """
    network.require()
    with network.network_testbed(2) as bed, tcp_peers(*bed.nodes) as (server, client):
        as_on_a_wire(bed)
        join(server, client, bed.nodes[0].address, 7000)
        drop = ("-m", "statistic", "--mode", "random", "--probability", "0.2", "-j", "DROP")
        on(bed.nodes[1], "iptables", "-A", "INPUT", "-i", "eth0", *drop)
        watch = Watch(server, client)
        watch.look()
        for one, other, count in ((server, client, 20_000_000), (client, server, 300_000)):
            one.say(f"send {count} 30")
            other.say(f"read {count}")
        watch.until(lambda ranks, job: ranks[0].faults, 30.0)
        ranks, job = watch.look()
        assert [one.faults for one in ranks] == [("lossy",), ("lossy",)]
        assert [one.loses for one in ranks] == ["sends", "receives"]
        assert [one.blamed_for for one in ranks] == [("lossy",), ("lossy",)], "two hosts cannot be told apart"
        (lossy,) = [one for one in job.links if one.fault]
        assert (lossy.from_rank, lossy.to_rank, lossy.dead) == (0, 1, False)
        assert 0.1 < (lossy.sent.lost or 0) < 0.4
        watch.close()


@pytest.mark.slow("TCP repeats in vain for seconds")
def test_full_size_segments_that_never_arrive() -> None:
    network.require()
    with network.network_testbed(3) as bed, tcp_peers(*bed.nodes) as (first, second, third):
        as_on_a_wire(bed)
        join(first, second, bed.nodes[0].address, 7000)
        join(third, second, bed.nodes[2].address, 7000)
        on(bed.nodes[2], "iptables", "-A", "INPUT", "-m", "length", "--length", "1400:65535", "-j", "DROP")
        second.do("send 5000")
        watch = Watch(first, second, third)
        watch.until(lambda ranks, job: ranks[1].faults == ("oversize",))
        ranks, job = watch.look()
        assert [one.faults for one in ranks] == [(), ("oversize",), ("oversize",)]
        assert [one.mtu for one in ranks] == [(1500,)] * 3
        (stuck,) = [one for one in job.links if one.fault]
        assert (stuck.from_rank, stuck.to_rank, stuck.pmtu, stuck.unacked_bytes) == (1, 2, 1500, 5000)
        assert (stuck.segment_bytes or 0) > 1400
        assert (stuck.sacked or 0) >= 1, "the end of the message is small, and has arrived"
        watch.close()


@pytest.mark.slow("watches a link for seconds")
def test_a_slow_link_and_the_interface_that_makes_it_slow() -> None:
    network.require()
    with network.network_testbed(2) as bed, tcp_peers(*bed.nodes) as (server, client):
        join(server, client, bed.nodes[0].address, 7000)
        shaper = ("tbf", "rate", "2mbit", "burst", "16kb", "limit", "400kb")
        on(bed.nodes[1], "tc", "qdisc", "add", "dev", "eth0", "root", *shaper)
        client.say("send 8000000 30")
        server.say("read 8000000")
        watch = Watch(server, client)
        watch.until(lambda ranks, job: ranks[1].faults)
        ranks, job = watch.look()
        assert [one.blamed_for for one in ranks] == [(), ("slow",)]
        assert [one.narrow for one in ranks] == [None, "eth0, limited to 2 Mbit/s by tbf"]
        (slow,) = [one for one in job.links if one.fault]
        assert (slow.from_rank, slow.fault, slow.sent.queue_full) == (1, "slow", True)
        assert 150_000 < (slow.sent.rate or 0) < 300_000
        watch.close()


def test_a_connection_attempt_without_an_answer() -> None:
    network.require()
    with network.network_testbed(1) as bed, tcp_peers(bed.nodes[0]) as (caller,):
        bed.nodes[0].swallow("10.77.0.99")
        caller.do("dial 10.77.0.99 7000")
        watch = Watch(caller)
        watch.look()
        time.sleep(1)
        (rank,), job = watch.look()
        assert (rank.syn_sent, rank.connections) == (1, 0)
        assert (job.checked, job.quiet) == (False, None)
        watch.close()


# --- which connections carry data -----------------------------------------------------------------

IDLE: dict[str, Any] = {
    "retransmits": 0,
    "probes": 0,
    "backoff": 0,
    "bytes_sent": 9,
    "bytes_acked": 9,
    "bytes_received": 9,
}


def connection(local: str, remote: str, state: str = "established", **more: Any) -> Connection:
    (here, port), (there, remote_port) = (end.rsplit(":", 1) for end in (local, remote))
    return Connection(here, int(port), there, int(remote_port), state, **{**IDLE, **more})


def evidence(
    rank: int,
    *connections: Connection,
    host: str = "a",
    job: str = "j",
    world: int = 2,
    port: int = 0,
    **records: Any,
) -> RankEvidence:
    return RankEvidence(
        Target(100 + rank, 1, host, rank, world_size=world, job=job),
        True,
        {"sockets": Sockets(connections, 1), "environ": Environ({"MASTER_PORT": str(port)}), **records},
    )


def case(*ranks: RankEvidence) -> Case:
    shots = [Snapshot(one.target.host, 0.0, "", (one,)) for one in ranks]
    return Case(shots, {(one.target.host, one.target.pid): one for one in ranks})


HERE, THERE, FAR = "10.0.0.1:4000", "10.0.0.2:5000", "10.9.9.9:6000"


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        pytest.param(
            [evidence(0, connection(HERE, THERE)), evidence(1, connection(THERE, HERE), host="b")],
            {0: [1], 1: [0]},
            id="peers",
        ),
        pytest.param(
            [
                evidence(0, connection(HERE, THERE), port=5000),
                evidence(1, connection(THERE, HERE), host="b", port=5000),
            ],
            {0: [], 1: []},
            id="store by MASTER_PORT",
        ),
        pytest.param(
            [
                evidence(
                    0,
                    connection(HERE, "0.0.0.0:0", "listen"),
                    connection(HERE, "10.0.0.1:4001"),
                    connection("10.0.0.1:4001", HERE),
                    connection(HERE, THERE),
                ),
                evidence(1, connection(THERE, HERE), host="b"),
            ],
            {0: [], 1: []},
            id="store by the rank connected to itself",
        ),
        pytest.param([evidence(0, connection(HERE, FAR))], {0: [None]}, id="a rank on a host not seen"),
        pytest.param([evidence(0, connection(HERE, FAR), world=1)], {0: []}, id="no rank is left unseen"),
        pytest.param([evidence(0, connection(HERE, "10.9.9.9:443"))], {0: []}, id="a service"),
        pytest.param([evidence(0, connection(HERE, "10.0.0.1:9000"))], {0: []}, id="a process of this host"),
        pytest.param([evidence(0, connection("127.0.0.1:4000", "127.0.0.1:9000"))], {0: []}, id="the launcher"),
        pytest.param([evidence(0, connection(HERE, FAR, "syn_sent"))], {0: []}, id="not yet connected"),
        pytest.param(
            [evidence(0, connection(HERE, THERE), job="x"), evidence(1, connection(THERE, HERE), job="y")],
            {0: [], 1: []},
            id="another job",
        ),
        pytest.param(
            [
                evidence(0, connection("127.0.0.1:4000", "127.0.0.1:5000")),
                evidence(1, connection("127.0.0.1:5000", "127.0.0.1:4000"), host="b"),
            ],
            {0: [], 1: []},
            id="loopback of two hosts",
        ),
    ],
)
def test_data_connections(ranks: list[RankEvidence], expected: dict[int, list[int | None]]) -> None:
    found = data_connections(case(*ranks))
    peers = {
        pid - 100: [None if one.peer is None else one.peer[1] - 100 for one in data] for (_, pid), data in found.items()
    }
    assert peers == expected


def test_without_evidence_nothing_is_claimed() -> None:
    key: Key = ("a", 100)
    silent = RankEvidence(Target(100, 1, "a", 0), True, {})
    facts, job = ANALYSIS.derive(case(silent))
    assert facts == {key: NetworkFacts()}
    assert job == NetworkJob(checked=False)


def test_queues_without_tcp_info_still_show_a_dead_link() -> None:
    bare: dict[str, Any] = dict.fromkeys(IDLE)
    ours = connection(HERE, THERE, **{**bare, "send_queue": 100, "retransmits": 6})
    facts, job = ANALYSIS.derive(case(evidence(0, ours), evidence(1, connection(THERE, HERE, **bare), host="b")))
    assert (job.dead_links, job.idle_s, job.moving) == (1, None, None)
    assert facts["a", 100].moving is None


@pytest.mark.parametrize(
    ("interfaces", "down"),
    [
        ([Interface("eth0", ("10.0.0.1",), "ethernet", True, True, 1500)], ()),
        ([Interface("eth0", ("10.0.0.1",), "ethernet", True, None, 1500)], ()),
        ([Interface("eth0", ("10.0.0.1",), "ethernet", True, False, 1500)], ("eth0",)),
        ([Interface("eth0", (), "ethernet", False, False, 1500)], ("eth0",)),  # the address went with the link
        ([Interface("lo", ("127.0.0.1",), "loopback", True, True, 65536)], ("eth0",)),  # so did the interface
        (None, ()),
    ],
)
def test_interfaces_of_data_connections(interfaces: list[Interface] | None, down: tuple[str, ...]) -> None:
    records: dict[str, Any] = {} if interfaces is None else {"nics": Interfaces(tuple(interfaces))}
    ours = replace(connection(HERE, THERE), interface="eth0")
    facts, job = ANALYSIS.derive(case(evidence(0, ours, **records), evidence(1, connection(THERE, HERE), host="b")))
    rank = facts["a", 100]
    assert (rank.interface_down, rank.interface_up) == (down, None if interfaces is None else not down)
    assert job.interfaces_down == len(down)


LOST = {"send_queue": 9, "last_ack_s": 9.0, "last_receive_s": 9.5, "last_send_s": 0.5}


@pytest.mark.parametrize(
    ("fields", "dead", "idle_s"),
    [
        ({"last_send_s": 4.0, "last_receive_s": 5.0, "last_ack_s": 4.0}, False, 4.0),
        ({**LOST, "retransmits": 5}, True, 9.0),
        ({**LOST, "probes": 5, "timer": "persist"}, True, 9.0),  # on the side whose interface is down
        ({**LOST, "retransmits": 2}, False, 9.0),  # a hiccup, so far
        ({**LOST, "retransmits": 5, "last_ack_s": 1.0}, False, 1.0),  # something gets through
        ({**LOST, "retransmits": 0, "timer": "persist", "backoff": 9}, False, 0.5),  # it does not read, but answers
        ({"retransmits": None, "probes": None}, None, None),
        ({"last_receive_s": None, "last_send_s": 3.0}, False, 3.0),
    ],
)
def test_dead_and_idle(fields: dict[str, Any], dead: bool | None, idle_s: float | None) -> None:
    one = connection(HERE, THERE, **fields)
    assert (tcp_counters.dead(one), tcp_counters.idle(one)) == (dead, idle_s)


@pytest.mark.parametrize(("silent_s", "dead"), [(9.0, False), (90.0, True)])
def test_a_pause_on_a_link_that_loses_packets_is_no_dead_link(silent_s: float, dead: bool) -> None:
    """Each look finds segments repeated and bytes acknowledged; at the last one, TCP has backed off."""
    key: Key = ("a", 100)
    shots: list[Snapshot] = []
    for at in range(12):
        sent: dict[str, Any] = {
            "data_segments_out": 100 * at,
            "segments_out": 100 * at,
            "total_retransmits": 20 * at,
            "delivered": 80 * at,
            "bytes_sent": 10**6 * at,
            "bytes_acked": 10**6 * at,
            "busy_s": float(at),
            "send_queue": 9,
        }
        if at == 11:
            sent |= {"retransmits": 6, "last_ack_s": silent_s, "last_receive_s": silent_s}
        both = [
            evidence(0, connection(HERE, THERE, **sent)),
            replace(evidence(1, connection(THERE, HERE)), target=Target(101, 1, "a", 1, world_size=2, job="j")),
        ]
        namespaces = [
            replace(one, records={**one.records, "sockets": replace(one.records["sockets"], namespace=name)})
            for name, one in enumerate(both, 1)
        ]
        shots.append(Snapshot("a", float(at), "", tuple(namespaces)))
    facts, job = ANALYSIS.derive(Case(shots, {("a", one.target.pid): one for one in shots[-1].ranks}))
    assert facts[key].faults == (("dead",) if dead else ("lossy",))
    assert (job.dead_links, [link.dead for link in job.links]) == (int(dead), [dead, dead])


HOLE = {"retransmits": 4, "segment_bytes": 1448, "not_sent": 0, "bytes_acked": 10**7, "delivered": 7000}


@pytest.mark.parametrize(
    ("fields", "oversize"),
    [
        ({"send_queue": 2596, "unacked": 3, "sacked": 2}, True),  # the end of a message, and the next one's head
        ({"send_queue": 46 * 1448 + 100, "unacked": 47, "sacked": 1}, True),
        ({"send_queue": 46 * 1448 + 9000, "not_sent": 8900, "unacked": 47, "sacked": 1}, True),
        ({"send_queue": 20 * 1448, "unacked": 20, "sacked": 15}, False),  # full ones arrive
        ({"send_queue": 20 * 1448, "unacked": 20, "sacked": 0}, False),  # nothing does
        ({"send_queue": 200, "unacked": 1, "sacked": 0}, False),  # what is repeated is small
        ({"send_queue": 2596, "unacked": 3, "sacked": 2, "retransmits": 2}, False),  # it may still come
        (
            {"send_queue": 14480, "unacked": 10, "sacked": 0, "bytes_acked": 900, "delivered": 12},
            True,
        ),  # new
        ({"send_queue": 14480, "unacked": 10, "sacked": 0, "bytes_acked": 9000, "delivered": 7}, False),
        ({"send_queue": 2596, "unacked": 3, "sacked": 2, "segment_bytes": None}, None),  # a kernel that does not tell
        ({"send_queue": 2596, "retransmits": None}, None),
    ],
)
def test_full_segments_repeated_in_vain(fields: dict[str, Any], oversize: bool | None) -> None:
    assert tcp_counters.oversize(connection(HERE, THERE, **{**HOLE, **fields})) is oversize


def test_bytes_between_two_samples_count_new_connections_from_their_start() -> None:
    old = connection(HERE, THERE, bytes_acked=900, bytes_received=50)
    new = replace(old, bytes_acked=2400, bytes_received=60)
    fresh = connection(HERE, FAR, bytes_acked=10, bytes_received=10)
    before = {tcp_counters.identity(old): old}
    assert tcp_counters.bytes_between(before, [new, fresh]) == 1500 + 10 + 20
    assert tcp_counters.bytes_between(before, [replace(new, bytes_acked=None), fresh]) is None


# --- a recorded job whose second host is not seen, as if it had vanished between two steps ----------------------------

TIMED_OUT = "ssh: connect to host far port 22: Connection timed out"


def without_the_second_host(why: str, host: str = "far", **more: Any) -> Facts:
    (recording,) = read(playbooks.ROOT / "dead-link" / "capture.jsonl.zst")
    shots = [
        replace(shot, ranks=tuple(_in_order(one, **more) for one in shot.ranks[:1])) for shot in recording.snapshots
    ]
    lost = Snapshot(host, 0.0, "", (), unseen=(Unseen(AGENT, why, host=host),))
    return derive([*shots, lost], schema())


def _in_order(rank: RankEvidence, **more: Any) -> RankEvidence:
    """The rank with nothing under way on its connections."""
    record = rank.records["sockets"]
    quiet = tuple(replace(one, send_queue=0, unacked=0, retransmits=0, backoff=0, **more) for one in record.connections)
    return replace(rank, records={**rank.records, "sockets": replace(record, connections=quiet)})


@pytest.mark.parametrize(
    ("why", "host", "named"),
    [
        pytest.param(TIMED_OUT, "far", "far", id="it is the one host and the one address left"),
        pytest.param(TIMED_OUT, "10.88.0.2", "10.88.0.2", id="its address is its name"),
        pytest.param("the agent has been silent for 20 s", "far", "far", id="its agent fell silent"),
        pytest.param("root@far: Permission denied (publickey).", "far", None, id="it answers"),
        pytest.param("sh: hangdoc: command not found", "far", None, id="it has no hangdoc"),
    ],
)
def test_a_host_that_does_not_answer(why: str, host: str, named: str | None) -> None:
    facts = without_the_second_host(why, host)
    assert facts.job.network.unreachable == ((Suspect(1, host=named),) if named else ())
    found = [one for one in judge().verdict(facts).findings if one.playbook == "host-unreachable"]
    assert [(one.confidence, [(c.rank, c.host) for c in one.culprits]) for one in found] == (
        [("low", [(1, named)])] if named else []
    )


def test_a_host_of_another_job_does_not_answer() -> None:
    facts = without_the_second_host(TIMED_OUT, remote="10.88.0.1")
    assert facts.job.network.unreachable == ()


def test_a_host_that_is_back_is_not_lost() -> None:
    back = Snapshot("far", 1.0, "", ())
    facts = without_the_second_host(TIMED_OUT)
    assert facts.job.world.silent == ("far",)
    assert derive([*facts.case.history, back], schema()).job.world.lost == ()
