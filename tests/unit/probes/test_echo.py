"""Probe `echo` between real namespaces: no packets pass, all, small ones only, or some."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from hangdoc.evidence import Connection, Sockets
from hangdoc.evidence.network import Echo
from probes import Request, Tier
from probes.echo import MAX_HOSTS, PROBE, hosts_to_ping, ping
from tests.support.tcp_peers import tcp_peers
from tests.support.testbeds import network

ALL = ("INPUT", "-j", "DROP")
LARGE = ("INPUT", "-m", "length", "--length", "1400:65535", "-j", "DROP")
ASKED = frozenset({"ping"})
EVERY_THIRD = ("INPUT", "-m", "statistic", "--mode", "nth", "--every", "3", "--packet", "0", "-j", "DROP")


def until_up(pid: int, *addresses: str) -> None:
    """A network made just now may lose its first packets: neighbours are not known yet."""
    end = time.monotonic() + 10
    while any(echo.passes != "all" for echo in ping(pid, dict.fromkeys(addresses, 1500))):
        assert time.monotonic() < end, "the network did not come up"


@pytest.mark.parametrize(
    ("rule", "passes"), [((), "all"), (ALL, "none"), (LARGE, "small"), (EVERY_THIRD, "some")], ids=str
)
def test_what_passes(rule: tuple[str, ...], passes: str) -> None:
    network.require()
    with network.network_testbed(2) as bed, tcp_peers(bed.nodes[0]) as (rank,):
        until_up(rank.pid, bed.nodes[1].address)
        if rule:
            subprocess.run(bed.nodes[1].command("iptables", "-w", "-A", *rule), check=True)
        (echo,) = ping(rank.pid, {bed.nodes[1].address: 1500})
        assert (echo.remote, echo.asked, echo.full_bytes) == (bed.nodes[1].address, 5, 1500)
        assert echo.passes == passes, echo


def test_both_families_and_an_answer_that_is_late_for_nobody() -> None:
    network.require()
    with network.network_testbed(2) as bed, tcp_peers(bed.nodes[0]) as (rank,):
        for node, address in zip(bed.nodes, ("fd00:1::1", "fd00:1::2"), strict=True):
            node.ip("address", "add", f"{address}/64", "dev", "eth0", "nodad")
        until_up(rank.pid, "fd00:1::2", bed.nodes[1].address)
        began = time.monotonic()
        echoes = ping(rank.pid, {"fd00:1::2": 1500, bed.nodes[1].address: 1500})
        assert {echo.remote: echo.passes for echo in echoes} == {"fd00:1::2": "all", bed.nodes[1].address: "all"}
        assert time.monotonic() - began < 1.9, "when all have answered nothing more is waited for"


def test_an_address_without_a_route() -> None:
    network.require()
    with network.network_testbed(1) as bed, tcp_peers(bed.nodes[0]) as (rank,):
        assert [echo.passes for echo in ping(rank.pid, {"192.0.2.1": 1500})] == ["none"]


def test_it_asks_only_where_bytes_are_repeated_in_vain() -> None:
    network.require()
    with network.network_testbed(2) as bed, tcp_peers(bed.nodes[0]) as (rank,):
        target, peer = rank.target(0), bed.nodes[1].address

        def seen(**state: Any) -> bool:
            one = Connection(bed.nodes[0].address, 1, peer, 2, "established", **state)
            request = Request([target], Tier.EXAMINE, records={rank.pid: {"sockets": Sockets((one,))}}, ask=ASKED)
            return rank.pid in PROBE.observe(request).by_pid

        assert not seen()
        assert not seen(send_queue=9000)
        assert not seen(send_queue=9000, retransmits=1)
        assert seen(send_queue=9000, retransmits=3)


def test_then_it_asks_the_other_peers_as_well() -> None:
    network.require()
    with network.network_testbed(3) as bed, tcp_peers(bed.nodes[0]) as (rank,):
        own, stuck, fine = (node.address for node in bed.nodes)
        until_up(rank.pid, stuck, fine)
        subprocess.run(bed.nodes[1].command("iptables", "-w", "-A", *ALL), check=True)
        connections = (
            Connection(own, 1, fine, 2, "established"),
            Connection(own, 3, stuck, 4, "established", send_queue=9000, retransmits=3),
        )
        records = {rank.pid: {"sockets": Sockets(connections)}}
        request = Request([rank.target(0)], Tier.EXAMINE, records=records, ask=ASKED)
        heard = PROBE.observe(request).by_pid[rank.pid].echoes
        assert {echo.remote: echo.passes for echo in heard} == {stuck: "none", fine: "all"}


@pytest.mark.parametrize(
    ("small", "full", "passes"),
    [(5, 5, "all"), (0, 0, "none"), (5, 0, "small"), (3, 0, "small"), (2, 0, ""), (0, 1, "some"), (5, 4, "some")],
)
def test_what_is_made_of_it(small: int, full: int, passes: str) -> None:
    assert Echo("10.0.0.1", 5, small, full, 1500).passes == passes
    assert Echo().passes == ""


def test_suspect_peers_are_pinged_first() -> None:
    idle = tuple(Connection("10.0.0.1", 1, f"10.0.1.{host}", 2, "established") for host in range(20))
    stuck = [
        Connection("10.0.0.1", 3, f"10.0.2.{rank}", 4, "established", send_queue=9000, retransmits=3, pmtu=9000)
        for rank in range(2)
    ]
    asked = hosts_to_ping(Sockets((*idle, one)) for one in stuck)
    assert list(asked)[:2] == ["10.0.2.0", "10.0.2.1"]
    assert (len(asked), asked["10.0.2.1"], asked["10.0.1.0"]) == (MAX_HOSTS, 9000, 1500)


def test_unless_the_user_asks_for_it_nothing_is_sent() -> None:
    network.require()
    with network.network_testbed(2) as bed, tcp_peers(bed.nodes[0]) as (rank,):
        until_up(rank.pid, bed.nodes[1].address)
        before = icmp_sent(rank.pid)
        stuck = Connection(
            bed.nodes[0].address, 1, bed.nodes[1].address, 2, "established", send_queue=9000, retransmits=3
        )
        request = Request([rank.target(0)], Tier.EXAMINE, records={rank.pid: {"sockets": Sockets((stuck,))}})
        seen = PROBE.observe(request)
        assert icmp_sent(rank.pid) == before
        assert seen.by_pid == {}
        (lack,) = seen.unseen
        assert (lack.pid, bed.nodes[1].address in lack.why, "--ask ping" in lack.why) == (rank.pid, True, True)


def icmp_sent(pid: int) -> int:
    """ICMP messages that the network namespace of `pid` has sent: OutMsgs of proc_pid_net_snmp."""
    names, values = (line.split() for line in Path(f"/proc/{pid}/net/snmp").read_text().splitlines() if "Icmp:" in line)
    return int(dict(zip(names, values, strict=True))["OutMsgs"])
