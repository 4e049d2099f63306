from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._placement.addresses import address_book, canonical


def host_of(address: str, *lines: str) -> str | None:
    return address_book(enumerate(lines, 1), "\n".join(lines).encode()).host_of(address)


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("arp says b8:59:9f:c0:11:5a is gn31.", "b8:59:9f:c0:11:5a"),
        ("10.4.0.31   gn31 gn31.cluster", "::ffff:10.4.0.31"),
        ("gn31 (10.4.0.31) at b8:59:9f:c0:11:5a [ether] on ens1", "b8:59:9f:c0:11:5a"),
        ("10.4.0.30 = gn30, 10.4.0.31 = gn31", "10.4.0.31"),
        ("LID 31 belongs to gn31", "rlid 31"),
        ('[17] "H-506b4b0300abcdef"[1](506b4b0300abcdef) # "gn31 mlx5_0" lid 31 4xHDR', "lid 31"),
        ('Ca : 0x506b4b0300abcdef ports 1 "gn31 mlx5_0"', "fe80::506b:4b03:00ab:cdef"),
        ("31.0.4.10.in-addr.arpa domain name pointer gn31.", "10.4.0.31"),
        ("NodeName=gn31 Arch=x86_64 NodeAddr=10.4.0.31 NodeHostName=gn31", "10.4.0.31"),
        ("gn31:880:1344 [3] NCCL INFO Bootstrap : Using ib0:10.4.0.31<0>", "10.4.0.31"),
    ],
)
def test_the_host_of_an_address(line: str, address: str) -> None:
    assert host_of(address, line) == "gn31"


@pytest.mark.parametrize(
    "line",
    [
        "gn22: 10.4.0.31: No route to host",
        "gn22: connect to 10.4.0.31 failed",
        "[gn22:31180:0:31180] SEND s-e [rqpn 0x1 rmac b8:59:9f:c0:11:5a sgix 3 dgid ::ffff:10.4.0.31 tc 106]",
        "10.4.0.31 was gn22 before the move",
        "10.4.0.31 is not gn22",
        "$ ssh gn22 ping 10.4.0.31",
    ],
)
def test_a_host_beside_an_address_may_be_another(line: str) -> None:
    assert host_of("10.4.0.31", line) is None


def test_an_address_of_two_hosts_is_an_address_of_none() -> None:
    assert host_of("10.4.0.31", "10.4.0.31 gn31", "10.4.0.31 gn32") is None


def test_a_neighbour_links_two_addresses() -> None:
    lines = ["10.4.0.31 dev ens1 lladdr b8:59:9f:c0:11:5a REACHABLE", "10.4.0.31 gn31"]
    assert host_of("b8:59:9f:c0:11:5a", *lines) == "gn31"


def test_the_addresses_below_a_prompt() -> None:
    assert host_of("lid 31", "gn31$ ibstat", "    Base lid: 31", "gn32$ ibstat", "    Base lid: 32") == "gn31"


def test_the_local_ends_of_sockets_below_a_prompt() -> None:
    rows = ["LISTEN 0  64  0.0.0.0:29400  0.0.0.0:*", "ESTAB  0  0  10.4.0.31:41877  10.4.0.30:50312"]
    lines = ["[ann@gn31 ~]$ ss -tnp", *rows]
    assert [host_of(one, *lines) for one in ("10.4.0.31", "10.4.0.30", "0.0.0.0")] == ["gn31", None, None]


def test_the_peer_of_a_completion_by_the_errors_of_its_port() -> None:
    peer = "NET/IB : Got completion from peer 10.4.0.31<51044> with status=12 opcode=0 len=0 vendor err 129 (Recv) "
    gids = "localGid fe80::506b:4b03:ab:1111 remoteGidsfe80::506b:4b03: ab:cdef hca mlx5_3"  # it was wrapped
    errors = ['Errors for "gn31 mlx5_3"', "   GUID 0x506b4b0300abcdef port 1: [LinkDownedCounter == 6]"]
    assert host_of("10.4.0.31", peer + gids, *errors) == "gn31"


def test_the_addresses_that_a_host_lists() -> None:
    lines = [
        "--- gn31",
        "$ hostname -I",
        "10.4.0.31 172.17.0.1",
        "10.4.0.99",
        "--- gn32",
        "$ hostname -I",
        "172.17.0.1",
    ]
    assert [host_of(address, *lines) for address in ("10.4.0.31", "172.17.0.1", "10.4.0.9")] == ["gn31", None, None]


@pytest.mark.parametrize(
    ("one", "other"),
    [("0x506b4b0300abcdef", "fe80:0:0:0:506b:4b03:ab:cdef"), ("rlid 0x1f", "LID 31"), ("10.0.0.1", "::ffff:10.0.0.1")],
)
def test_forms_of_one_address(one: str, other: str) -> None:
    assert canonical(one) == canonical(other)
