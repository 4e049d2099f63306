"""The interfaces at the ends of a link. No radio can be made here: what one looks like is written by hand."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from msgspec.structs import replace

from hangdoc.analysis import Case, Key
from hangdoc.analysis.network.data_connections import DataConnection
from hangdoc.analysis.network.interfaces import faster, format_interface, narrow, slow_below
from hangdoc.analysis.thresholds import SLOW_BYTES
from hangdoc.evidence import Connection, Interface, Interfaces, RankEvidence, Target

ETH0 = Interface("eth0", ("10.0.0.1",), "ethernet", True, True, 1500, 10_000, networks=("10.0.0.1/24",))
WLAN0 = replace(ETH0, name="wlan0", kind="wireless", speed_mbit=None)
OLD = replace(ETH0, speed_mbit=100)
SHAPED = replace(ETH0, queue="tbf", queue_rate=250_000)
ETH1 = Interface("eth1", ("10.1.0.1",), "ethernet", True, True, 9000, 25_000, networks=("10.1.0.1/16", "fe80::1/64"))
FIRST, SECOND = ("a", 100), ("b", 101)


def case(mine: tuple[Interface, ...], theirs: tuple[Interface, ...]) -> Case:
    def evidence(key: Key, rank: int, held: tuple[Interface, ...]) -> RankEvidence:
        return RankEvidence(Target(key[1], 1, key[0], rank), True, {"nics": Interfaces(held)})

    return Case([], {FIRST: evidence(FIRST, 0, mine), SECOND: evidence(SECOND, 1, theirs)})


def there(one: Interface, address: str, **fields: Any) -> Interface:
    length = one.networks[0].split("/")[1]
    return replace(one, addresses=(address, "fe80::2"), networks=(f"{address}/{length}",), **fields)


@pytest.mark.parametrize(
    ("held", "is_narrow", "text"),
    [
        (ETH0, False, "eth0, 10 Gbit/s"),
        (WLAN0, True, "wlan0, wireless"),
        (OLD, True, "eth0, 100 Mbit/s"),
        (SHAPED, True, "eth0, limited to 2 Mbit/s by tbf"),
        (replace(ETH0, speed_mbit=None), False, "eth0"),
        (None, False, None),
    ],
)
def test_narrow(held: Interface | None, is_narrow: bool, text: str | None) -> None:
    assert (narrow(held), format_interface(held)) == (is_narrow, text)


def test_a_shaper_only_slows_what_is_sent() -> None:
    assert not narrow(SHAPED, sends=False)
    assert narrow(WLAN0, sends=False)


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (ETH0, ETH0, SLOW_BYTES),
        (replace(ETH0, speed_mbit=1000), ETH0, 125e6),
        (OLD, ETH0, SLOW_BYTES),
        (ETH0, WLAN0, inf),
    ],
)
def test_slow_below(mine: Interface, theirs: Interface, expected: float) -> None:
    one = Connection("10.0.0.1", 4000, "10.0.0.2", 5000, "established")
    data = DataConnection(FIRST, one, SECOND, ("", "10.0.0.1", 4000, "10.0.0.2", 5000))
    assert slow_below(case((mine,), (there(theirs, "10.0.0.2"),)), data) == expected


@pytest.mark.parametrize(
    ("used", "other", "theirs", "expected"),
    [
        pytest.param(WLAN0, ETH1, there(ETH1, "10.1.0.2"), "eth1 (10.1.0.1, 25 Gbit/s)", id="a cable beside the radio"),
        pytest.param(SHAPED, ETH1, there(ETH1, "10.1.0.2"), "eth1 (10.1.0.1, 25 Gbit/s)", id="a free one"),
        pytest.param(OLD, ETH1, there(ETH1, "10.2.0.2"), None, id="it reaches nobody"),
        pytest.param(OLD, replace(ETH1, up=False), there(ETH1, "10.1.0.2"), None, id="down"),
        pytest.param(OLD, replace(ETH1, carrier=False), there(ETH1, "10.1.0.2"), None, id="no cable"),
        pytest.param(OLD, replace(ETH1, speed_mbit=10), there(ETH1, "10.1.0.2"), None, id="slower"),
        pytest.param(OLD, replace(ETH1, kind="bridge"), there(ETH1, "10.1.0.2"), None, id="the containers' bridge"),
        pytest.param(OLD, ETH1, there(ETH1, "10.1.0.1"), None, id="the same address on every host"),
        pytest.param(OLD, ETH1, there(ETH1, "10.1.0.2", up=False), None, id="down at the peer"),
        pytest.param(ETH0, ETH1, there(ETH1, "10.1.0.2"), None, id="what is used is fast"),
    ],
)
def test_a_faster_one(used: Interface, other: Interface, theirs: Interface, expected: str | None) -> None:
    assert faster(case((used, other), (ETH0, theirs)), FIRST, used, [SECOND]) == expected
