"""Probe `mesh`: addresses of a real gloo group in a real store, and invalid ones."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from hangdoc.evidence import Connection, Frame, Sockets, Stack, Stacks, Target, Variable
from hangdoc.evidence.rendezvous import Advertised
from hangdoc.evidence.software import Versions
from hangdoc.evidence.stacks import MAKES_GROUP, making_group
from hangdoc.system import procfs
from hangdoc.system.process_sockets import Endpoint
from hangdoc.watch.sampler import Sampler
from probes import Observation, Request, Tier, load
from probes.mesh import PROBE, Group, address_in, group_of, read
from probes.sockets import SocketsProbe
from tests.support import requirements
from tests.support.probe_targets import Program, started

ASKS = frozenset({"store"})
FILE = "/v/torch/distributed/distributed_c10d.py"


def frame(**variables: object) -> Frame:
    told = tuple(
        Variable(name, str(value), number=float(value) if isinstance(value, int) else None)
        for name, value in variables.items()
    )
    return Frame(MAKES_GROUP, FILE, 1, variables=told)


def stacks(one: Frame) -> Stacks:
    return Stacks((Stack(1, "MainThread", (one,)),))


@pytest.fixture(scope="module")
def rank() -> Iterator[Program]:
    requirements.met(requirements.torch())
    with started("gloo_program.py", "2") as program:
        yield program


def target(program: Program) -> Target:
    return replace(program.target(), world_size=2, master=f"127.0.0.1:{program.said}")


def test_what_the_store_holds(rank: Program) -> None:
    seen = SocketsProbe().observe(Request([target(rank)], Tier.LOOK)).by_pid[rank.pid]
    listening = {one.local_port for one in seen.connections if one.state == "listen" and one.local == "127.0.0.1"}
    found = read(Endpoint("127.0.0.1", rank.said), Group("0//", (4, 7)))
    assert [(one.rank, one.address, one.hostname) for one in found.advertised] == [
        (4, "127.0.0.1", socket.gethostname())
    ]
    assert {one.port for one in found.advertised} <= listening
    assert found.missing == (7,)


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        ({}, True),
        ({"versions": Versions("2.0.1")}, False),  # its store would take our greeting for a request to write
        ({"versions": None}, False),
        ({"sockets": Sockets(())}, False),  # whoever listens there may be a stranger
        ({"stacks": Stacks(())}, False),
    ],
)
def test_which_stores_are_read(rank: Program, change: dict[str, Any], asked: bool) -> None:
    one = target(rank)
    records = {
        "stacks": stacks(frame(group_size=2, group_name='"0"', global_ranks_in_group="[]")),
        "versions": Versions("2.13.0+cpu"),
        "sockets": SocketsProbe().observe(Request([one], Tier.LOOK)).by_pid[one.pid],
        **change,
    }
    seen = PROBE.observe(Request([one], Tier.EXAMINE, records={one.pid: records}, ask=ASKS))
    assert seen.unseen == ()
    assert (one.pid in seen.by_pid) is asked


@dataclass
class Wire:
    """The addresses of the internet that this process connects or sends to."""

    listens: bool = False
    addresses: list[tuple[str, int]] = field(default_factory=list)

    def heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.listens and event in ("socket.connect", "socket.sendto", "socket.getaddrinfo"):
            where = arguments[0:2] if event == "socket.getaddrinfo" else arguments[1]
            if isinstance(where, tuple) and isinstance(where[0], str):
                self.addresses.append(where[:2])


@pytest.fixture(scope="module")
def wire() -> Wire:
    made = Wire()
    sys.addaudithook(made.heard)  # stays for as long as the process: silent but in these tests
    return made


@pytest.mark.parametrize("ask", [frozenset(), ASKS])
def test_nothing_is_sent_unless_the_user_allows_it(rank: Program, wire: Wire, ask: frozenset[str]) -> None:
    """Of all probes, not of this one alone."""
    stat = procfs.stat(rank.pid)
    assert stat is not None
    sampler = Sampler("here", [replace(target(rank), start_ticks=stat.start_ticks)], load(), ask=ask)
    sampler.round(Tier.LOOK)
    wire.addresses, wire.listens = [], True
    try:
        shot = sampler.round(Tier.EXAMINE)
    finally:
        wire.listens = False
    assert set(wire.addresses) == ({("127.0.0.1", rank.said)} if ask else set())
    assert ("mesh" in shot.ranks[0].records) is bool(ask)
    lacks = [lack.why for lack in shot.unseen if lack.probe == "mesh"]
    assert ["--ask store" in why for why in lacks] == ([] if ask else [True])


def test_what_the_store_could_not_add_is_not_missed(rank: Program) -> None:
    """Every rank of the group is seen here."""
    one = target(rank)
    records = {
        "stacks": stacks(frame(group_size=1, group_name='"0"', global_ranks_in_group="[]")),
        "versions": Versions("2.13.0+cpu"),
        "sockets": SocketsProbe().observe(Request([one], Tier.LOOK)).by_pid[one.pid],
    }
    assert PROBE.observe(Request([one], Tier.EXAMINE, records={one.pid: records})) == Observation({})


def test_the_kernel_says_where_the_store_is_not_the_rank(rank: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*name: object) -> None:
        raise AssertionError(f"{name} was looked up")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    one = replace(target(rank), master=f"elsewhere.invalid:{rank.said}")
    records = {
        "stacks": stacks(frame(group_size=2, group_name='"0"', global_ranks_in_group="[]")),
        "versions": Versions("2.13.0+cpu"),
        "sockets": SocketsProbe().observe(Request([one], Tier.LOOK)).by_pid[one.pid],
    }
    seen = PROBE.observe(Request([one], Tier.EXAMINE, records={one.pid: records}, ask=ASKS))
    assert (seen.unseen, one.pid in seen.by_pid) == ((), True)


def test_a_connection_that_is_no_more_is_not_made_for_it(rank: Program) -> None:
    """It had one when its sockets were looked at, or so the record says."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        one = replace(target(rank), master=f"127.0.0.1:{port}")
        records = {
            "stacks": stacks(frame(group_size=2, group_name='"0"', global_ranks_in_group="[]")),
            "versions": Versions("2.13.0+cpu"),
            "sockets": Sockets((Connection("127.0.0.1", 1, "127.0.0.1", port, "established"),)),
        }
        seen = PROBE.observe(Request([one], Tier.EXAMINE, records={one.pid: records}, ask=ASKS))
        assert seen.by_pid == {}
        assert len(seen.unseen) == 1
        with pytest.raises(TimeoutError):
            server.accept()


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        read(Endpoint("127.0.0.1", port), Group("0//", range(2)))


@pytest.mark.parametrize(
    ("variables", "group"),
    [
        ({"group_size": 3, "group_name": '"0"', "global_ranks_in_group": "[]"}, Group("0//", range(3))),
        ({"group_size": 2, "group_name": '"5"', "global_ranks_in_group": "[1, 3]"}, Group("0//5//", [1, 3])),
        ({"group_size": 9, "group_name": '"5"', "global_ranks_in_group": "[1, 3, ...]"}, None),  # cut short
        ({"group_size": 2, "group_name": "'a/b'", "global_ranks_in_group": "[]"}, None),
        ({}, Group("0//", range(4))),
    ],
)
def test_group(variables: dict[str, object], group: Group | None) -> None:
    assert group_of(frame(**variables), 4) == group


def test_only_torch_makes_groups() -> None:
    assert making_group(stacks(frame())) is not None
    assert making_group(stacks(Frame(MAKES_GROUP, "/home/me/train.py", 1))) is None
    assert making_group(None) is None


def left(name: bytes, address: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<Q", len(address)) + address + b"\0" * 8


V4 = struct.pack("<H", socket.AF_INET) + struct.pack(">H", 4711) + socket.inet_aton("10.1.2.3")
V6 = struct.pack("<H", socket.AF_INET6) + struct.pack(">HI", 4711, 0) + socket.inet_pton(socket.AF_INET6, "fd00::7")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (left(b"node-1", V4.ljust(136, b"\0")), Advertised(3, "10.1.2.3", 4711, "node-1")),
        (left(b"node-1", V6.ljust(136, b"\0")), Advertised(3, "fd00::7", 4711, "node-1")),
        (left(b"[red]\x1b", V4.ljust(136, b"\0")), Advertised(3, "10.1.2.3", 4711)),
        (left(b"node-1", V4), None),
        (left(b"node-1", b"\x63\x00" + b"\0" * 130), None),
        (struct.pack("<Q", 1 << 60) + b"x", None),
        (b"", None),
    ],
)
def test_addresses(value: bytes, told: Advertised | None) -> None:
    assert address_in(value, 3) == told
