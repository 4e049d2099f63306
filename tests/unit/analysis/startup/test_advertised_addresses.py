"""Advertised addresses that other hosts cannot reach, and interface selection by environment variables."""

from __future__ import annotations

import pytest

from hangdoc.analysis.startup.advertised_addresses import (
    JobAddresses,
    RankAddress,
    address_fault,
    chosen_by_nccl,
    interface_with,
    predict_address,
    unknown_to_gloo,
)
from hangdoc.evidence.network import Addresses, InterfaceAddresses

LO = InterfaceAddresses("lo", ("127.0.0.1/8", "::1/128"), True)
DOCKER = InterfaceAddresses("docker0", ("172.17.0.1/16", "fe80::1/64"), True)


def host(number: int, *held: InterfaceAddresses, named: tuple[str, ...] = ()) -> Addresses:
    return Addresses((LO, *held), number, f"node-{number}", named)


def eth(number: int, network: str = "10.0.0", name: str = "eth0", default: bool = True) -> InterfaceAddresses:
    return InterfaceAddresses(name, (f"{network}.{number}/24", f"fe80::{number}/64"), True, default)


def faults(*places: RankAddress, far: bool = False) -> list[str | None]:
    around = JobAddresses.of(places, far)
    return [address_fault(one, around) for one in places]


def at(
    number: int, address: str, *held: InterfaceAddresses, store_address: str | None = None, kind: str = "bridge"
) -> RankAddress:
    return RankAddress(
        ("node", number), host(number, *held), None, address, 4000, store_address=store_address, kinds={"docker0": kind}
    )


def test_reachable_addresses_have_no_fault() -> None:
    assert faults(at(1, "10.0.0.1", eth(1), DOCKER), at(2, "10.0.0.2", eth(2), DOCKER)) == [None, None]


def test_same_address_on_every_host() -> None:
    places = [at(n, "172.17.0.1", eth(n), DOCKER, store_address=f"10.0.0.{n}") for n in (1, 2, 3)]
    assert faults(*places) == ["elsewhere"] * 3


def test_a_single_host_needs_no_route() -> None:
    assert faults(at(1, "10.0.0.1", eth(1), DOCKER), at(2, "172.17.0.1", eth(2), DOCKER)) == [None, "elsewhere"]


def test_a_second_network_between_the_same_hosts() -> None:
    """A storage network or a VPN: not the route to the store, but a route."""
    both = [(eth(n), eth(n, "10.8.0", "wg0", False)) for n in (1, 2)]
    assert faults(*(at(n, f"10.8.0.{n}", *both[n - 1], store_address=f"10.0.0.{n}") for n in (1, 2))) == [None, None]


def test_a_bridge_as_uplink() -> None:
    places = [at(n, f"10.0.0.{n}", eth(n, name="docker0"), store_address=f"10.0.0.{n}") for n in (1, 2)]
    assert faults(*places) == [None, None]


def test_bridges_with_the_same_subnet() -> None:
    held = [InterfaceAddresses("docker0", (f"172.17.{n}.1/16",), True) for n in (1, 2)]
    places = [at(n, f"172.17.{n}.1", eth(n), held[n - 1], store_address=f"10.0.0.{n}") for n in (1, 2)]
    assert faults(*places) == ["elsewhere", "elsewhere"]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "::1"])
def test_loopback(address: str) -> None:
    assert faults(at(1, address, eth(1))) == [None]  # a job on one host
    assert faults(at(1, address, eth(1)), at(1, address, eth(1))) == [None, None]
    assert faults(at(1, address, eth(1)), far=True) == ["loopback"]
    assert faults(at(1, address, eth(1)), at(2, "10.0.0.2", eth(2))) == ["loopback", None]


def test_with_evidence_from_one_host() -> None:
    """The connection to the store decides. Without it, nothing is claimed."""
    assert faults(at(1, "172.17.0.1", eth(1), DOCKER, store_address="10.0.0.1"), far=True) == ["elsewhere"]
    assert faults(at(1, "10.0.0.1", eth(1), DOCKER, store_address="10.0.0.1"), far=True) == [None]
    assert faults(at(1, "10.0.0.1", eth(1, default=False)), far=True) == [None]
    assert faults(RankAddress(("", -3), None, None, "10.7.0.1", 4000), far=True) == [None]


def test_ipv6() -> None:
    held = [InterfaceAddresses("eth0", (f"fd00::{n}/64", f"fe80::{n}/64"), True) for n in (1, 2)]
    other = InterfaceAddresses("br-lan", ("fd99::1/64", "fe80::9/64"), True)
    assert faults(*(at(n, f"fd00::{n}", held[n - 1]) for n in (1, 2))) == [None, None]
    assert faults(at(1, "fd99::1", held[0], other, store_address="fd00::1"), at(2, "fd00::2", held[1])) == [
        "elsewhere",
        None,
    ]


def test_uplink() -> None:
    assert getattr(at(1, "172.17.0.1", eth(1), DOCKER, store_address="10.0.0.1").uplink, "name", None) == "eth0"
    near = RankAddress(("node", 1), host(1, eth(1, default=False), DOCKER), None, "172.17.0.1", 1, master="10.0.0.9")
    assert getattr(near.uplink, "name", None) == "eth0"
    assert getattr(at(1, "172.17.0.1", eth(1), DOCKER).uplink, "name", None) == "eth0"
    assert at(1, "172.17.0.1", eth(1, default=False), DOCKER).uplink is None


@pytest.mark.parametrize(
    ("setting", "named", "address"),
    [
        ("eth0", (), "10.0.0.1"),
        ("docker0,eth0", (), "172.17.0.1"),
        ("eth9", ("10.0.0.1",), None),
        (None, ("127.0.1.1", "10.0.0.1"), "127.0.1.1"),
        (None, (), None),
    ],
)
def test_predicted_address(setting: str | None, named: tuple[str, ...], address: str | None) -> None:
    assert predict_address(host(1, eth(1), DOCKER, named=named), setting) == address


def test_interface_with_an_address() -> None:
    held = host(1, eth(1), DOCKER)
    assert interface_with(held, "172.17.0.1") == DOCKER
    assert interface_with(held, "127.0.1.1") == LO
    assert interface_with(held, "10.0.0.9") is None
    assert interface_with(None, "10.0.0.1") is None


@pytest.mark.parametrize(
    ("value", "unknown"), [("eth0", ()), ("eth0,eth9", ("eth9",)), ("^lo", ("^lo",)), ("eth", ("eth",)), ("", ())]
)
def test_names_unknown_to_gloo(value: str, unknown: tuple[str, ...]) -> None:
    assert unknown_to_gloo(value, ["lo", "eth0", "ib0"]) == unknown


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        ("eth", ("eth0", "eth1")),
        ("=eth", ()),
        ("=eth1", ("eth1",)),
        ("^lo,docker", ("eth0", "eth1", "ib0")),
        ("^=eth0", ("lo", "eth1", "ib0", "docker0")),
        ("ib0:1,eth1", ("eth1", "ib0")),
        ("bond", ()),
    ],
)
def test_names_chosen_by_nccl(value: str, chosen: tuple[str, ...]) -> None:
    assert chosen_by_nccl(value, ["lo", "eth0", "eth1", "ib0", "docker0"]) == chosen
