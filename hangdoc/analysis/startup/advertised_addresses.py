"""The address where each rank listens for its peers, and whether other hosts can reach it.

The address is taken from the listening socket, or from the rank's entry in the job's store. For a rank that exited
earlier it is predicted: the address of the interface in GLOO_SOCKET_IFNAME, else of the host's name.
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

MAX_HOSTS = 64  # that an address is compared with

Location = tuple[str, int]  # host, network namespace


@dataclass(frozen=True, slots=True)
class RankAddress:
    """Where a rank runs, and the address that it advertises to its peers."""

    location: Location | None  # None: unknown
    held: Addresses | None  # the addresses in its namespace
    setting: str | None  # value of GLOO_SOCKET_IFNAME
    address: str | None = None  # that it advertises
    port: int | None = None
    foreseen: bool = False  # predicted: it was not seen to advertise the address
    store_address: str | None = None  # its own address in its connection to the store
    master: str | None = None  # address of the store, if not given by name
    kinds: Mapping[str, str] = field(default_factory=dict)  # of the interfaces, by name

    @property
    def interface(self) -> InterfaceAddresses | None:
        """The interface with the advertised address."""
        return interface_with(self.held, self.address)

    @property
    def uplink(self) -> InterfaceAddresses | None:
        """The interface that reaches other hosts.

        That of its connection to the store; else one in the subnet of the store; else the only one with a default
        route.
        """
        found = interface_with(self.held, self.store_address)
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


def rank_address(case: Case, key: Key, entries: Mapping[int, Advertised]) -> RankAddress:
    """The address of one rank of the case; `entries`: the store's entries, by rank."""
    target, records = case.ranks[key].target, case.ranks[key].records
    held, environ, sockets, nics = (records.get(name) for name in ("addresses", "environ", "sockets", "nics"))
    held = held if isinstance(held, Addresses) else None
    setting = environ.variables.get(GLOO) if isinstance(environ, Environ) else None
    connections = sockets.connections if isinstance(sockets, Sockets) else ()
    kinds = {one.name: one.kind for one in nics.interfaces} if isinstance(nics, Interfaces) else {}
    meeting = parse_endpoint(target.master or "")
    port = meeting[1] if meeting else 0
    location = (key[0], held.namespace) if held and held.namespace is not None else None
    place = RankAddress(
        location,
        held,
        setting,
        store_address=_store_address(connections, port),
        master=meeting[0] if meeting else None,
        kinds=kinds,
    )
    stated = None if target.rank is None else entries.get(target.rank)
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
    return replace(place, address=predict_address(held, setting), foreseen=True)


def predict_address(held: Addresses | None, setting: str | None) -> str | None:
    """The address that gloo will choose: of the interface in GLOO_SOCKET_IFNAME, else of the host's name."""
    if held is None:
        return None
    if setting:
        named = {one.name: one for one in held.interfaces}
        first = named.get(setting.split(",")[0])
        return plain(first.addresses[0]) if first and first.addresses else None
    return held.named[0] if held.named else None


def _store_address(connections: Sequence[Connection], port: int) -> str | None:
    """The rank's own address in its connection to the store; if it serves the store, in the connection of a client.

    Never a loopback address.
    """
    own = [one for one in connections if one.state in OPEN and port in (one.local_port, one.remote_port)]
    afar = [one.local for one in own if one.remote != one.local]
    found = [address for address in (*afar, *(one.local for one in own)) if not is_loopback(address)]
    return found[0] if found else None


# --- whether other hosts can reach it -------------------------------------------------------------


@dataclass(slots=True)
class JobAddresses:
    """The known addresses of all ranks of a job."""

    far: bool  # the ranks are on several hosts
    claims: dict[str, set[Location | None]] = field(default_factory=dict)  # address -> where it is advertised
    hosts: dict[Location, Addresses] = field(default_factory=dict)

    @classmethod
    def of(cls, places: Iterable[RankAddress], far: bool) -> JobAddresses:
        """`far`: the ranks are known to be on several hosts."""
        found = cls(far)
        for one in places:
            if one.address:
                found.claims.setdefault(one.address, set()).add(one.location)
            if one.location and one.held:
                found.hosts[one.location] = one.held
        found.far = far or len(found.hosts) > 1
        return found


def address_fault(place: RankAddress, around: JobAddresses) -> str | None:
    """What is wrong with an advertised address: loopback | elsewhere; None: nothing known."""
    if place.address is None or not around.far:
        return None
    if is_loopback(place.address):
        return LOOPBACK
    if len(around.claims[place.address]) > 1:
        return ELSEWHERE  # every host has the same address for itself
    own, leads = place.interface, place.uplink
    if own is None or (leads and leads.name == own.name):
        return None
    others = [held for location, held in islice(around.hosts.items(), MAX_HOSTS) if location != place.location]
    bridge = place.kinds.get(own.name) == "bridge" and leads is not None  # a bridge serves guests of this host only
    if not bridge and any(shares_subnet(own, place.address, other) for held in others for other in held.interfaces):
        return None
    return ELSEWHERE if others or leads else None


def shares_subnet(own: InterfaceAddresses, address: str, other: InterfaceAddresses) -> bool:
    """True if an interface of another host has an address of its own in the subnet of our address."""
    network = next(text for text in own.addresses if plain(text) == address)
    return any(within(plain(text), network) and plain(text) != address for text in other.addresses)


def within(address: str, network: str) -> bool:
    """True if `10.0.0.7` is in `10.0.0.1/24`."""
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_interface(network).network
    except ValueError:  # a name, not an address
        return False


def is_loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")


def plain(text: str) -> str:
    """`10.0.0.1/24` without the prefix length."""
    return text.partition("/")[0]


def interface_with(held: Addresses | None, address: str | None) -> InterfaceAddresses | None:
    """The interface with an address."""
    for one in held.interfaces if held and address else ():
        if any(plain(text) == address for text in one.addresses):
            return one
    # All of 127.0.0.0/8 belongs to the loopback interface.
    loops = [one for one in held.interfaces if any(is_loopback(text) for text in one.addresses)] if held else []
    return loops[0] if loops and address and is_loopback(address) else None


# --- interface selection by environment variables ------------------------------------------------


def unknown_to_gloo(value: str, names: Sequence[str]) -> tuple[str, ...]:
    """Names in GLOO_SOCKET_IFNAME that the host lacks. gloo matches whole names."""
    return tuple(name for name in value.split(",") if name and name not in names)


def chosen_by_nccl(value: str, names: Sequence[str]) -> tuple[str, ...]:
    """Names that NCCL_SOCKET_IFNAME or NCCL_IB_HCA selects: prefixes, after `=` whole names, after `^` all except
    these.
    """
    excludes = value.startswith("^")
    exact = value.lstrip("^").startswith("=")
    wanted = [part.partition(":")[0] for part in value.lstrip("^=").split(",") if part]
    hit = {n for n in names if any(n == one if exact else n.startswith(one) for one in wanted)}
    return tuple(name for name in names if (name in hit) != excludes)
