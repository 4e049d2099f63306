"""Probe `nics` on real namespaces: kinds, states, addresses, routes."""

from __future__ import annotations

import socket
import subprocess
from typing import Any

import pytest

from hangdoc.evidence import Connection, Interface, Interfaces, RankEvidence, Snapshot, Sockets
from hangdoc.system.netns import call_inside, namespace
from probes import Request, Tier, nics
from probes.nics import PROBE, NicsProbe
from tests.support.tcp_peers import TcpPeer, tcp_peers
from tests.support.testbeds import network


def look(*talkers: TcpPeer) -> list[Interfaces]:
    seen = PROBE.observe(Request([one.target(rank) for rank, one in enumerate(talkers)], Tier.EXAMINE))
    assert seen.unseen == ()
    return [seen.by_pid[one.pid] for one in talkers]


def named(record: Interfaces, name: str) -> Interface:
    (found,) = [one for one in record.interfaces if one.name == name]
    return found


def test_here() -> None:
    with tcp_peers(None, None) as ranks:
        first, second = look(*ranks)
        assert first == second
        lo = named(first, "lo")
        assert (lo.kind, lo.up, lo.carrier, lo.default_route) == ("loopback", True, True, False)
        assert "127.0.0.1" in lo.addresses
        assert {one.name for one in first.interfaces} == {name for _, name in socket.if_nameindex()}
        assert first.namespace == namespace("self")


def test_a_process_that_ends_says_nothing_of_the_others_of_its_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at its namespace and the entry into it."""

    def enter(pid: int, *arguments: Any, **options: Any) -> Any:
        if pid == ranks[0].pid:
            raise FileNotFoundError(pid)
        return call_inside(pid, *arguments, **options)

    with tcp_peers(None, None) as ranks:
        monkeypatch.setattr(nics, "call_inside", enter)
        seen = PROBE.observe(Request([one.target(rank) for rank, one in enumerate(ranks)], Tier.EXAMINE))
        assert [(one.rank, one.why) for one in seen.unseen] == [(0, f"process {ranks[0].pid} has ended")]
        assert list(seen.by_pid) == [ranks[1].pid]


def test_links_of_a_namespace() -> None:
    network.require()
    with network.network_testbed(2) as bed, tcp_peers(*bed.nodes, bed.switch) as ranks:
        node = bed.nodes[0]
        node.ip("link", "add", "docker0", "type", "bridge")
        node.ip("address", "add", "172.17.0.1/16", "dev", "docker0")
        node.ip("link", "add", "tunnel0", "type", "vxlan", "id", "1", "dstport", "4789", "dev", "eth0")
        node.ip("link", "set", "eth0", "mtu", "1400")
        node.ip("route", "add", "default", "via", bed.nodes[1].address)
        bed.nodes[1].link("down")
        first, second, switch = look(*ranks)
        assert first.namespace == namespace(ranks[0].pid) != second.namespace

        eth0 = named(first, "eth0")
        assert (eth0.kind, eth0.up, eth0.carrier, eth0.mtu, eth0.default_route) == ("veth", True, True, 1400, True)
        assert node.address in eth0.addresses
        assert eth0.rx_bytes is not None
        docker0 = named(first, "docker0")
        assert (docker0.kind, docker0.up, docker0.carrier, docker0.default_route) == ("bridge", False, False, False)
        assert docker0.addresses == ("172.17.0.1",)
        assert named(first, "tunnel0").kind == "tunnel"
        assert {one.name for one in switch.interfaces} == {"lo", "bridge", "port0", "port1"}

        down = named(second, "eth0")
        assert (down.up, down.carrier, down.default_route) == (False, False, False)
        assert bed.nodes[1].address in down.addresses  # IPv4 addresses stay


def test_a_cable_pulled() -> None:
    network.require()
    with network.network_testbed(1) as bed, tcp_peers(bed.nodes[0]) as ranks:
        bed.unplug(0)
        eth0 = named(look(*ranks)[0], "eth0")
        assert (eth0.up, eth0.carrier) == (True, False)


def test_the_rate_that_an_interface_is_held_to() -> None:
    network.require()
    with network.network_testbed(2) as bed, tcp_peers(*bed.nodes) as ranks:
        first, second = bed.nodes
        tc(first, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "2mbit", "burst", "16kb", "latency", "50ms")
        eth0 = named(look(ranks[0])[0], "eth0")
        assert (eth0.queue, eth0.queue_rate) == ("tbf", 250_000)
        assert f"{first.address}/24" in eth0.networks
        eth0 = named(look(ranks[1])[0], "eth0")
        assert (eth0.queue, eth0.queue_rate) == (None, None)
        tc(second, "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", "1")
        tc(second, "class", "add", "dev", "eth0", "parent", "1:", "classid", "1:1", "htb", "rate", "5mbit")
        eth0 = named(look(ranks[1])[0], "eth0")
        assert (eth0.queue, eth0.queue_rate) == ("htb", 625_000)


def tc(node: network.Node, *arguments: str) -> None:
    subprocess.run(node.command("tc", *arguments), check=True, capture_output=True)


def test_it_looks_by_itself_only_where_bytes_pile_up() -> None:
    with tcp_peers(None) as (rank,):
        target, probe = rank.target(0), NicsProbe()
        idle, full = (
            {"sockets": Sockets((Connection("::1", 1, "::1", 2, "established", 0, queue),))} for queue in (0, 9999)
        )

        def seen(before: dict[str, Any], now: dict[str, Any]) -> bool:
            previous = Snapshot("here", 0.0, "", (RankEvidence(target, True, before),))
            request = Request([target], Tier.LOOK, previous=previous, records={rank.pid: now})
            return target.pid in probe.observe(request).by_pid

        assert not seen(idle, idle)
        assert not seen(idle, full), "that happens"
        assert seen(full, full)
        assert not seen(full, full), "it has just looked"


def test_an_ended_process() -> None:
    with tcp_peers(None) as (rank,):
        target = rank.target(0)
    seen = PROBE.observe(Request([target], Tier.EXAMINE))
    assert seen.by_pid == {}
    assert [one.pid for one in seen.unseen] == [target.pid]
