"""Probe `addresses` in real namespaces: networks, default routes, and the line of the hosts file that counts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hangdoc.evidence import Target
from hangdoc.evidence.network import Addresses, InterfaceAddresses
from probes import Request, Tier
from probes.addresses import PROBE, _with_prefix
from probes.store import resolve
from tests.support.tcp_peers import tcp_peers
from tests.support.testbeds import network

WAIT = "print('ready', flush=True); input()"


def look(*pids: int) -> list[Addresses]:
    seen = PROBE.observe(Request([Target(pid, 0, "here", rank) for rank, pid in enumerate(pids)], Tier.LOOK))
    assert seen.unseen == ()
    return [seen.by_pid[pid] for pid in pids]


def named(record: Addresses, name: str) -> InterfaceAddresses:
    (found,) = [one for one in record.interfaces if one.name == name]
    return found


@contextmanager
def on_a_host(node: network.Node, name: str, hosts: str) -> Iterator[int]:
    """A process with a host name and a hosts file of its own."""
    own = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'
    inside = ["unshare", "--mount", "--uts", "sh", "-c", own, "sh", hosts, name, sys.executable, "-c", WAIT]
    process = subprocess.Popen(node.command(*inside), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_interfaces_of_a_namespace() -> None:
    network.require()
    with network.network_testbed(2) as bed, tcp_peers(*bed.nodes) as (one, other):
        node = bed.nodes[0]
        node.ip("link", "add", "docker0", "type", "bridge")
        node.ip("address", "add", "172.17.0.1/16", "dev", "docker0")
        node.ip("link", "add", "hangdoc-up", "type", "bridge")
        node.link("up", "hangdoc-up")
        node.ip("address", "add", "fd00:1::1/64", "dev", "eth0")
        node.ip("route", "add", "default", "via", bed.nodes[1].address)
        first, second = look(one.pid, other.pid)
        eth0 = named(first, "eth0")
        assert {f"{node.address}/24", "fd00:1::1/64"} <= set(eth0.addresses)
        assert (eth0.up, eth0.default) == (True, True)
        assert named(first, "docker0") == InterfaceAddresses("docker0", ("172.17.0.1/16",), False, False)
        assert named(first, "hangdoc-up").up  # an interface that only this namespace has
        assert named(second, "eth0").default is False
        assert first.namespace != second.namespace


def test_an_ipv6_default_route() -> None:
    network.require()
    with network.network_testbed(2) as bed, tcp_peers(bed.nodes[0]) as (one,):
        bed.nodes[0].ip("address", "add", "fd00:1::1/64", "dev", "eth0")
        bed.nodes[0].ip("-6", "route", "add", "default", "via", "fd00:1::2")
        assert named(look(one.pid)[0], "eth0").default is True


def test_the_hosts_file_is_the_one_that_the_rank_sees(tmp_path: object) -> None:
    network.require()
    hosts = f"{tmp_path}/hosts"
    with open(hosts, "w", encoding="ascii") as file:
        file.write(
            "127.0.0.1 localhost\n# 10.0.0.9 node-7\n127.0.1.1\tnode-7.cluster  NODE-7 # Debian\n10.0.0.7 node-7\n"
        )
    with network.network_testbed(1) as bed, on_a_host(bed.nodes[0], "node-7", hosts) as pid:
        (seen,) = look(pid)
    assert (seen.hostname, seen.named) == ("node-7", ("127.0.1.1", "10.0.0.7"))
    assert seen.line == "/etc/hosts:3: 127.0.1.1 node-7.cluster NODE-7"


def test_an_ended_process() -> None:
    seen = PROBE.observe(Request([Target(2**22 - 1, 0, "here", 3)], Tier.LOOK))
    assert seen.by_pid == {}
    assert [(one.rank, "has ended" in one.why) for one in seen.unseen] == [(3, True)]


@pytest.mark.parametrize(
    ("address", "mask", "text"),
    [
        ("10.1.2.3", "255.255.255.0", "10.1.2.3/24"),
        ("fe80::1%eth0", "ffff:ffff:ffff:ffff::", "fe80::1/64"),
        ("10.1.2.3", None, "10.1.2.3/32"),
        ("02:42:ac:11:00:02", None, None),
    ],
)
def test_prefix(address: str, mask: str | None, text: str | None) -> None:
    assert _with_prefix(address, mask) == text


def test_a_hosts_file_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    network.require()
    os.mkfifo(tmp_path / "fifo")
    with network.network_testbed(1) as bed, on_a_host(bed.nodes[0], "node-1", str(tmp_path / "fifo")) as pid:
        seen = PROBE.observe(Request([Target(pid, 0, "here", 0)], Tier.LOOK))
        assert resolve(pid, "node-1") is None
    assert seen.by_pid[pid].hostname == "node-1"
    assert seen.by_pid[pid].named is None
    (lack,) = seen.unseen
    assert "/etc/hosts could not be read (it is a FIFO, not a regular file)" in lack.why
