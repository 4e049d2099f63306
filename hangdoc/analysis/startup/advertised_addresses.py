"""Where the ranks of a job listen for one another, and whether the others can get there.

An address is known by the socket that listens at it, by what its rank left in the job's store, or, of a rank that ended
before it got so far, by what it would have taken: the interface that it was told, else what its host's name stands for.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from hangdoc.analysis import Case, Key
from hangdoc.analysis.network.data_connections import OPEN
from hangdoc.evidence import Connection, Environ, Interfaces, Sockets
from hangdoc.evidence.network import Addresses, InterfaceAddresses
from hangdoc.evidence.rendezvous import Advertised
from hangdoc.evidence.stacks import making_group
from hangdoc.evidence.target import parse_endpoint

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
WILDCARDS = ("0.0.0.0", "::")
LOOPBACK, ELSEWHERE = "loopback", "elsewhere"

MOST_HOSTS = 64  # that an address is compared with

Where = tuple[str, int]  # host and network namespace


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is, and where it says that it can be reached."""

    where: Where | None
    held: Addresses | None  # the addresses there
    told: str | None  # value of GLOO_SOCKET_IFNAME
    address: str | None = None  # that it advertises
    port: int | None = None
    foreseen: bool = False  # it has not been seen to advertise it
    meets: str | None = None  # its own address, as it talks to the store
    master: str | None = None  # address of the store, where it was given as such
    kinds: Mapping[str, str] = field(default_factory=dict)  # of the interfaces, by name

    @property
    def interface(self) -> InterfaceAddresses | None:
        """That holds the address that it advertises."""
        return holder(self.held, self.address)

    @property
    def leads(self) -> InterfaceAddresses | None:
        """The interface by which it reaches others: it talks to the store that way, or is in one network with it; else
        the default route is there."""
        found = holder(self.held, self.meets)
        if found or self.held is None:
            return found
        for one in self.held.interfaces:
            if (
                self.master
                and any(within(self.master, text) for text in one.addresses)
                and not is_loopback(self.master)
            ):
                return one
        default = [one for one in self.held.interfaces if one.default and one != self.interface]
        return default[0] if len(default) == 1 else None


def place_in(case: Case, key: Key, left: Mapping[int, Advertised]) -> Place:
    """The place of one rank of the case; `left`: what the store holds, by rank."""
    target, records = case.ranks[key].target, case.ranks[key].records
    held, environ, sockets, nics = (records.get(name) for name in ("addresses", "environ", "sockets", "nics"))
    held = held if isinstance(held, Addresses) else None
    told = environ.variables.get(GLOO) if isinstance(environ, Environ) else None
    connections = sockets.connections if isinstance(sockets, Sockets) else ()
    kinds = {one.name: one.kind for one in nics.interfaces} if isinstance(nics, Interfaces) else {}
    meeting = parse_endpoint(target.master or "")
    port = meeting[1] if meeting else 0
    where = (key[0], held.namespace) if held and held.namespace is not None else None
    place = Place(
        where, held, told, meets=_meets(connections, port), master=meeting[0] if meeting else None, kinds=kinds
    )
    stated = None if target.rank is None else left.get(target.rank)
    if stated:
        return replace(place, address=stated.address, port=stated.port)
    listening = {
        one.local: one.local_port
        for one in connections
        if one.state == "listen" and one.local_port != port and one.local not in WILDCARDS
    }
    if len(listening) == 1 and making_group(records.get("stacks")):
        ((address, at),) = listening.items()
        return replace(place, address=address, port=at)
    return replace(place, address=foresee(held, told), foreseen=True)


def foresee(held: Addresses | None, told: str | None) -> str | None:
    """The address that gloo will take: of the interface that it was told, else the one that the host's name has."""
    if held is None:
        return None
    if told:
        named = {one.name: one for one in held.interfaces}
        first = named.get(told.split(",")[0])
        return plain(first.addresses[0]) if first and first.addresses else None
    return held.named[0] if held.named else None


def _meets(connections: Sequence[Connection], port: int) -> str | None:
    """The rank's own address in its connection with the store, or of the store with others; not on loopback."""
    own = [one for one in connections if one.state in OPEN and port in (one.local_port, one.remote_port)]
    afar = [one.local for one in own if one.remote != one.local]
    found = [address for address in (*afar, *(one.local for one in own)) if not is_loopback(address)]
    return found[0] if found else None


# --- whether it can be reached --------------------------------------------------------------------


@dataclass(slots=True)
class Surroundings:
    """The places of all ranks of a job, as far as they are known."""

    far: bool  # they are on several hosts
    claims: dict[str, set[Where | None]] = field(default_factory=dict)  # address -> where it is advertised
    hosts: dict[Where, Addresses] = field(default_factory=dict)

    @classmethod
    def of(cls, places: Iterable[Place], far: bool) -> Surroundings:
        """`far`: that they are on several hosts is known otherwise."""
        found = cls(far)
        for one in places:
            if one.address:
                found.claims.setdefault(one.address, set()).add(one.where)
            if one.where and one.held:
                found.hosts[one.where] = one.held
        found.far = far or len(found.hosts) > 1
        return found


def fault(place: Place, around: Surroundings) -> str | None:
    """What is wrong with the address that a rank advertises; None: nothing is known to be."""
    if place.address is None or not around.far:
        return None
    if is_loopback(place.address):
        return LOOPBACK
    if len(around.claims[place.address]) > 1:
        return ELSEWHERE  # every host has it for itself
    own, leads = place.interface, place.leads
    if own is None or (leads and leads.name == own.name):
        return None
    others = [held for where, held in islice(around.hosts.items(), MOST_HOSTS) if where != place.where]
    bridge = place.kinds.get(own.name) == "bridge" and leads is not None  # for guests of the host itself
    if not bridge and any(shares(own, place.address, other) for held in others for other in held.interfaces):
        return None
    return ELSEWHERE if others or leads else None


def shares(own: InterfaceAddresses, address: str, other: InterfaceAddresses) -> bool:
    """The interface of another host is in the network of that address of ours, with an address of its own."""
    mine = next(text for text in own.addresses if plain(text) == address)
    return any(within(plain(text), mine) and plain(text) != address for text in other.addresses)


def within(address: str, network: str) -> bool:
    """An address is one of a network: `10.0.0.7` of `10.0.0.1/24`."""
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_interface(network).network
    except ValueError:  # a name
        return False


def is_loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")


def plain(text: str) -> str:
    """`10.0.0.1/24` without the length of its prefix."""
    return text.partition("/")[0]


def holder(held: Addresses | None, address: str | None) -> InterfaceAddresses | None:
    """The interface that holds an address."""
    for one in held.interfaces if held and address else ():
        if any(plain(text) == address for text in one.addresses):
            return one
    # All of 127.0.0.0/8 is the loopback interface's.
    loops = [one for one in held.interfaces if any(is_loopback(text) for text in one.addresses)] if held else []
    return loops[0] if loops and address and is_loopback(address) else None


# --- which interfaces a variable means ------------------------------------------------------------


def unknown_to_gloo(value: str, names: Sequence[str]) -> tuple[str, ...]:
    """What GLOO_SOCKET_IFNAME names and the host lacks: gloo takes names as they are."""
    return tuple(name for name in value.split(",") if name and name not in names)


def chosen_by_nccl(value: str, names: Sequence[str]) -> tuple[str, ...]:
    """The names that NCCL_SOCKET_IFNAME or NCCL_IB_HCA means: beginnings, after `=` whole names, after `^` the rest."""
    excludes = value.startswith("^")
    exact = value.lstrip("^").startswith("=")
    wanted = [part.partition(":")[0] for part in value.lstrip("^=").split(",") if part]
    hit = {n for n in names if any(n == one if exact else n.startswith(one) for one in wanted)}
    return tuple(name for name in names if (name in hit) != excludes)
