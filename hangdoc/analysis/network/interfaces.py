"""Interfaces at the ends of a connection: their speed, and a faster one that the host also has."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Sequence
from math import inf
from typing import TypeAlias

from hangdoc.analysis import Case, Key
from hangdoc.analysis.network.data_connections import DataConnection
from hangdoc.analysis.thresholds import GIGABIT, SLOW_BYTES
from hangdoc.evidence import Connection, Interface, Interfaces

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Subnet: TypeAlias = ipaddress.IPv4Interface | ipaddress.IPv6Interface

BYTES_PER_MBIT = 1e6 / 8  # bytes per second of 1 Mbit/s
VIRTUAL = ("loopback", "wireless", "bridge", "tunnel")  # no faster than the interface under them


def rank_interfaces(case: Case, key: Key) -> tuple[Interface, ...] | None:
    """The interfaces of a rank's network namespace; None: not seen."""
    record = case.record(key, "nics")
    return record.interfaces if isinstance(record, Interfaces) else None


def interface_of(one: Connection, interfaces: Iterable[Interface] | None, local: bool = True) -> Interface | None:
    """The interface with the connection's local address, or with its remote address if not `local`."""
    address = one.local if local else one.remote
    for held in interfaces or ():
        if address in held.addresses or (local and held.name == one.interface):
            return held
    return None


def end_interface(case: Case, key: Key, data: DataConnection, sends: bool) -> Interface | None:
    """The interface of rank `key` at its end of a connection; `sends`: the rank is the sender."""
    return interface_of(data.connection, rank_interfaces(case, key), local=sends)


def slow_below(case: Case, data: DataConnection) -> float:
    """Bytes per second below which a busy link counts as slow."""
    ends = [end_interface(case, data.owner, data, True)]
    ends += [end_interface(case, data.peer, data, False)] if data.peer else []
    rates = [float(SLOW_BYTES)]
    for held in ends:
        if held and held.kind == "wireless":
            rates.append(inf)  # it has no expected speed: any rate is slow
        elif held and held.speed_mbit and held.speed_mbit <= GIGABIT:
            rates.append(held.speed_mbit * BYTES_PER_MBIT)
        elif held and _shaped(held):
            rates.append(float(held.queue_rate or 0))
    return max(rates)


def narrow(held: Interface | None, sends: bool = True) -> bool:
    """True if the interface alone makes a link slow: wireless, a rate limit, or at most 1 Gbit/s."""
    if held is None:
        return False
    return held.kind == "wireless" or (sends and _shaped(held)) or 0 < (held.speed_mbit or 0) <= GIGABIT


def format_interface(held: Interface | None) -> str | None:
    """`eth0, limited to 2 Mbit/s by tbf`; `wlan0, wireless`."""
    if held is None:
        return None
    if held.kind == "wireless":
        what = ["wireless"]
    elif _shaped(held):
        what = [f"limited to {_format_mbit((held.queue_rate or 0) / BYTES_PER_MBIT)} by {held.queue}"]
    else:
        what = _format_speed(held)
    return ", ".join([held.name, *what])


def faster(case: Case, key: Key, used: Interface | None, peers: Iterable[Key]) -> str | None:
    """A faster interface of the rank's host that also reaches all `peers`: `eth1 (10.0.1.2)`."""
    own = rank_interfaces(case, key)
    if used is None or not narrow(used) or not own:
        return None
    peer_addresses = [_addresses(rank_interfaces(case, peer) or ()) for peer in peers]
    better = [
        (_speed(other), f"{other.name} ({', '.join([str(subnet.ip), *_format_speed(other)])})")
        for other in own
        if other.name != used.name and other.up and other.carrier is not False and other.kind not in VIRTUAL
        for subnet in map(ipaddress.ip_interface, other.networks)
        if _speed(other) > _speed(used) and not subnet.is_link_local and _reaches(subnet, peer_addresses)
    ]
    return max(better, key=lambda one: one[0])[1] if better else None


def _reaches(subnet: Subnet, peer_addresses: Sequence[Collection[Address]]) -> bool:
    """True if each peer has another address in this subnet."""
    return bool(peer_addresses) and all(
        any(one in subnet.network and one != subnet.ip for one in held) for held in peer_addresses
    )


def _addresses(interfaces: Iterable[Interface]) -> list[Address]:
    return [ipaddress.ip_address(address) for held in interfaces for address in held.addresses if held.up]


def _shaped(held: Interface) -> bool:
    return held.queue_rate is not None and held.queue_rate <= GIGABIT * BYTES_PER_MBIT


def _speed(held: Interface) -> float:
    """Bytes per second, for comparison only. An unknown speed counts as 1 Gbit/s unless a queue limits the rate."""
    speed = 0.0 if held.kind == "wireless" else (held.speed_mbit or GIGABIT) * BYTES_PER_MBIT
    return min(speed, held.queue_rate) if held.queue_rate is not None else speed


def _format_speed(held: Interface) -> list[str]:
    return [_format_mbit(held.speed_mbit)] if held.speed_mbit else []


def _format_mbit(value: float) -> str:
    return f"{value / GIGABIT:.3g} Gbit/s" if value >= GIGABIT else f"{value:.3g} Mbit/s"
