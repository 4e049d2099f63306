"""Probe `sockets` on real sockets: loopback, and between real network namespaces."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hangdoc.evidence import Connection, Target
from hangdoc.system.netns import namespace
from hangdoc.system.sockdiag import _TCP_INFO, _tcp_info
from probes import Observation, Request, Tier
from probes.sockets import SocketsProbe
from tests.support.polling import until
from tests.support.tcp_peers import TcpPeer, join, tcp_peers
from tests.support.testbeds import network


@pytest.fixture
def probe() -> Iterator[SocketsProbe]:
    one = SocketsProbe()
    yield one
    one.observe(Request([], Tier.PULSE))  # without targets it lets go of every namespace


def observe(probe: SocketsProbe, *talkers: TcpPeer) -> Observation:
    return probe.observe(Request([one.target(rank) for rank, one in enumerate(talkers)], Tier.PULSE))


def only(seen: Observation, talker: TcpPeer) -> Connection:
    """The one connection of a talker that is no listener."""
    (found,) = [one for one in seen.by_pid[talker.pid].connections if one.state != "listen"]
    assert isinstance(found, Connection)
    return found


def eventually(probe: SocketsProbe, talkers: tuple[TcpPeer, ...], true: Callable[[Observation], bool]) -> Observation:
    return until(lambda: observe(probe, *talkers), true)


@pytest.mark.parametrize(
    ("bind", "address", "named"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("::", "127.0.0.1", "127.0.0.1"),  # IPv4 mapped into IPv6
        ("::1", "::1", "::1"),
    ],
)
def test_two_ranks_on_loopback(probe: SocketsProbe, bind: str, address: str, named: str) -> None:
    port = network.free_port()
    with tcp_peers(None, None, None) as (server, client, other):
        join(server, client, address, port, bind)
        seen = observe(probe, server, client)
        assert seen.unseen == ()
        assert set(seen.by_pid) == {server.pid, client.pid}
        here, there = only(seen, server), only(seen, client)
        assert (here.local, here.local_port, here.remote) == (named, port, named)
        assert (here.remote_port, here.local_port) == (there.local_port, there.remote_port)
        assert (here.peer_pid, there.peer_pid) == (client.pid, server.pid)
        assert (here.state, here.interface, here.uid) == ("established", "lo", os.getuid())
        assert (here.bytes_received, here.bytes_sent, there.bytes_received) == (1000, 1000, 1000)
        assert here.last_receive_s is not None
        assert 0 <= here.last_receive_s < 5
        listeners = [one for one in seen.by_pid[server.pid].connections if one.state == "listen"]
        assert [(one.local_port, one.send_queue) for one in listeners] == [(port, 0)]
        assert observe(probe, other).by_pid[other.pid].connections == ()
        assert only(observe(probe, server), server).peer_pid is None  # the peer is no rank that was asked for


def test_silence_has_an_age_and_what_never_was_has_none(probe: SocketsProbe) -> None:
    port = network.free_port()
    with tcp_peers(None, None) as (server, client):
        server.do(f"listen 127.0.0.1 {port}")
        client.do(f"connect 127.0.0.1 {port}")
        server.do("accept")
        client.do("send 10")
        server.do("read 10")
        time.sleep(1)
        seen = observe(probe, server, client)
        here, there = only(seen, server), only(seen, client)
        assert here.last_send_s is None
        assert there.last_receive_s is None
        assert here.last_receive_s is not None
        assert 0.9 < here.last_receive_s < 5
        assert there.last_send_s is not None
        assert 0.9 < there.last_send_s < 5


def test_a_receiver_that_does_not_read(probe: SocketsProbe) -> None:
    port = network.free_port()
    with tcp_peers(None, None) as (server, client):
        join(server, client, "127.0.0.1", port)
        client.do("send 50000000 0.3")
        seen = eventually(probe, (server, client), lambda seen: only(seen, client).timer == "persist")
        here, there = only(seen, server), only(seen, client)
        assert here.receive_queue > 10_000
        assert there.send_queue > 10_000
        assert there.send_window is not None
        assert there.send_window < 10_000
        assert there.retransmits == 0


def test_ranks_in_two_namespaces(probe: SocketsProbe) -> None:
    network.require()
    with network.network_testbed(2) as bed, tcp_peers(*bed.nodes) as (server, client):
        own = namespace("self")
        join(server, client, bed.nodes[0].address, 7000)
        seen = observe(probe, server, client)
        here, there = only(seen, server), only(seen, client)
        assert seen.unseen == ()
        assert (here.local, here.remote) == (bed.nodes[0].address, bed.nodes[1].address)
        assert (here.peer_pid, there.peer_pid) == (client.pid, server.pid)
        assert (here.interface, there.interface) == ("eth0", "eth0")
        assert seen.by_pid[server.pid].namespace == namespace(server.pid)
        assert len({seen.by_pid[server.pid].namespace, seen.by_pid[client.pid].namespace, own}) == 3
        assert namespace("self") == own

        bed.nodes[1].link("down")
        server.do("send 5000")
        seen = eventually(probe, (server, client), lambda seen: (only(seen, server).backoff or 0) >= 2)
        here = only(seen, server)
        assert here.send_queue == 5000
        assert here.unacked
        assert here.timer == "on"
        assert (here.retransmits or 0) >= 2
        assert here.bytes_acked == 1000
        assert only(seen, client).interface == "eth0"


def test_a_namespace_without_ranks_is_let_go(probe: SocketsProbe) -> None:
    network.require()
    with network.network_testbed(1) as bed:
        with tcp_peers(bed.nodes[0], None) as (inside, here):
            own = namespace("self")  # `ip netns exec` takes a moment to get there
            eventually(probe, (inside, here), lambda seen: seen.by_pid[inside.pid].namespace not in (None, own))
            held = _netlink_descriptors()
            observe(probe, here)
            assert _netlink_descriptors() == held - 1
        gone = observe(probe, inside)
        assert gone.by_pid == {}
        assert [(one.pid, "has ended" in one.why) for one in gone.unseen] == [(inside.pid, True)]


def _netlink_descriptors() -> int:
    links = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)]
    return sum(link.startswith("socket:") for link in links)


def test_a_connection_that_nobody_answers(probe: SocketsProbe) -> None:
    network.require()
    with network.network_testbed(1) as bed, tcp_peers(bed.nodes[0]) as (caller,):
        bed.nodes[0].swallow("10.77.0.99")
        caller.do("dial 10.77.0.99 7000")
        one = only(observe(probe, caller), caller)
        assert (one.state, one.remote, one.remote_port) == ("syn_sent", "10.77.0.99", 7000)


def test_without_the_right_to_enter_the_namespace() -> None:
    """As a user who owns the rank but may not enter its network namespace: queues, no ages, and why."""
    network.require()
    nobody = 65534
    with network.network_testbed(2) as bed, tcp_peers(*bed.nodes) as (server, client):
        join(server, client, bed.nodes[0].address, 7000)
        server.do("send 700")
        server.do(f"become {nobody}")
        client.do(f"become {nobody}")
        until(lambda: {Path(f"/proc/{one.pid}/comm").read_text() for one in (server, client)} == {"sleep\n"})
        targets = [server.target(0), client.target(1)]
        told = json.loads(_as_user(nobody, targets))
        assert len(told) == 3, told
        here, there, why = told
        assert here["receive_queue"] == 0
        assert there["receive_queue"] == 700
        assert (here["remote"], here["peer_pid"]) == (bed.nodes[1].address, client.pid)
        assert here["last_send_s"] is None
        assert "root" in why


def _as_user(user: int, targets: list[Target]) -> bytes:
    """What another user sees of two targets: their connections and why not more, as JSON."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setuid(user)
            seen = SocketsProbe().observe(Request(targets, Tier.PULSE))
            ends = [
                {name: getattr(one, name) for name in ("remote", "peer_pid", "receive_queue", "last_send_s")}
                for target in targets
                for one in seen.by_pid[target.pid].connections
                if one.state != "listen"
            ]
            os.write(into, json.dumps([*ends, seen.unseen[0].why]).encode())
        except BaseException as error:
            os.write(into, json.dumps(repr(error)).encode())
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.parametrize("length", [0, 104, 136, 160, 200, 232, 280])
def test_a_shorter_tcp_info_of_an_older_kernel(length: int) -> None:
    """A field is seen exactly where the kernel sent it, and never made of what follows."""
    fields = _tcp_info(struct.pack("=280B", *([1] * 280))[:length])
    assert {name for name, offset, form, _ in _TCP_INFO if offset + form.size <= length} == set(fields)
