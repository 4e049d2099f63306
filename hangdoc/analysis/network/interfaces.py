"""The interfaces that hold the ends of a connection: how fast they are, and which faster one a host has."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

from hangdoc.analysis import Case, Key
from hangdoc.analysis.network.data_connections import DataConnection
from hangdoc.evidence import Connection, Interface, Interfaces

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Subnet: TypeAlias = ipaddress.IPv4Interface | ipaddress.IPv6Interface

SLOW_BYTES = 12.5e6  # per second, 100 Mbit/s: slow, whatever the interface says of itself
GIGABIT = 1000  # Mbit/s: an interface no faster than this is slow when it is full
FULL = 1e6 / 8  # bytes per second of a Mbit/s
ANY_RATE = 1e10  # of a radio no speed is expected
NO_WAY_OUT = ("loopback", "wireless", "bridge", "tunnel")  # no better for data than what it uses


def rank_interfaces(case: Case, key: Key) -> tuple[Interface, ...] | None:
    """The interfaces of a rank's namespace; None: not seen."""
    record = case.record(key, "nics")
    return record.interfaces if isinstance(record, Interfaces) else None


def interface_of(one: Connection, interfaces: Iterable[Interface] | None, local: bool = True) -> Interface | None:
    """The interface that holds the connection's own address, or (of the other end) the remote one."""
    address = one.local if local else one.remote
    for held in interfaces or ():
        if address in held.addresses or (local and held.name == one.interface):
            return held
    return None


def end_interface(case: Case, key: Key, data: DataConnection, sends: bool) -> Interface | None:
    """The interface of rank `key` at one end of a connection: that of the sender, or of the receiver."""
    return interface_of(data.connection, rank_interfaces(case, key), local=sends)


def limit(case: Case, data: DataConnection) -> float:
    """Bytes per second below which the link is slow when it is busy."""
    ends = [end_interface(case, data.owner, data, True)]
    ends += [end_interface(case, data.peer, data, False)] if data.peer else []
    rates = [SLOW_BYTES]
    for held in ends:
        if held and held.kind == "wireless":
            rates.append(ANY_RATE)
        elif held and held.speed_mbit and held.speed_mbit <= GIGABIT:
            rates.append(held.speed_mbit * FULL)
        elif held and _shaped(held):
            rates.append(float(held.queue_rate or 0))
    return max(rates)


def narrow(held: Interface | None, sends: bool = True) -> bool:
    """Whether the interface by itself makes a link slow: a radio, a rate it is held to, an old speed."""
    if held is None:
        return False
    return held.kind == "wireless" or (sends and _shaped(held)) or 0 < (held.speed_mbit or 0) <= GIGABIT


def told(held: Interface | None) -> str | None:
    """`eth0, held to 2 Mbit/s by tbf`; `wlan0, wireless`."""
    if held is None:
        return None
    if held.kind == "wireless":
        what = ["wireless"]
    elif _shaped(held):
        what = [f"held to {_mbit((held.queue_rate or 0) / FULL)} by {held.queue}"]
    else:
        what = _told_speed(held)
    return ", ".join([held.name, *what])


def faster(case: Case, key: Key, used: Interface | None, peers: Iterable[Key]) -> str | None:
    """An interface of a rank's host that is faster than the one it uses and reaches all `peers`: "eth1 (10.0.1.2)"."""
    mine = rank_interfaces(case, key)
    if used is None or not narrow(used) or not mine:
        return None
    theirs = [_addresses(rank_interfaces(case, peer) or ()) for peer in peers]
    better = [
        (_speed(other), f"{other.name} ({', '.join([str(subnet.ip), *_told_speed(other)])})")
        for other in mine
        if other.name != used.name and other.up and other.carrier is not False and other.kind not in NO_WAY_OUT
        for subnet in map(ipaddress.ip_interface, other.networks)
        if _speed(other) > _speed(used) and not subnet.is_link_local and _reaches(subnet, theirs)
    ]
    return max(better, key=lambda one: one[0])[1] if better else None


def _reaches(subnet: Subnet, theirs: Sequence[Collection[Address]]) -> bool:
    """Whether each of the others has an address in the network of this one."""
    return bool(theirs) and all(any(one in subnet.network and one != subnet.ip for one in held) for held in theirs)


def _addresses(interfaces: Iterable[Interface]) -> list[Address]:
    return [ipaddress.ip_address(address) for held in interfaces for address in held.addresses if held.up]


def _shaped(held: Interface) -> bool:
    return held.queue_rate is not None and held.queue_rate <= GIGABIT * FULL


def _speed(held: Interface) -> float:
    """Bytes per second, for comparison only: what is not known counts as fast where nothing holds it back."""
    speed = 0.0 if held.kind == "wireless" else (held.speed_mbit or GIGABIT) * FULL
    return min(speed, held.queue_rate) if held.queue_rate is not None else speed


def _told_speed(held: Interface) -> list[str]:
    return [_mbit(held.speed_mbit)] if held.speed_mbit else []


def _mbit(value: float) -> str:
    return f"{value / 1000:.3g} Gbit/s" if value >= 1000 else f"{value:.3g} Mbit/s"
