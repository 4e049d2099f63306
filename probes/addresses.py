"""Probe `addresses`: the IP addresses of each network interface, the host name, and what the hosts file says of it.

Cheap, and read as soon as a rank is seen, because a rank configured for a missing interface exits at once.
Interfaces and routes are read in the rank's network namespace, the hosts file through its root. Sends no DNS query.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections import defaultdict
from collections.abc import Iterator

from msgspec.structs import replace

from hangdoc.evidence import Target, Unseen
from hangdoc.evidence.network import Addresses, InterfaceAddresses
from hangdoc.system.netns import HOSTS, MAX_HOSTS_BYTES, call_inside, hosts_entries, namespace
from hangdoc.system.target_files import TargetFiles, read_failure
from probes import Observation, Request, Tier

_SIOCGIFFLAGS, _IFF_UP = 0x8913, 1
_IFREQ = struct.Struct("=16sH22x")  # struct ifreq: name, flags


class AddressesProbe:
    """Reads each set of namespaces once; every rank in it gets the same record."""

    name = "addresses"
    scope = "rank"
    tier = Tier.LOOK
    needs = "nothing"
    record = Addresses
    order = 15
    steady = True

    def observe(self, request: Request) -> Observation:
        unseen: list[Unseen] = []
        seen: dict[tuple[int, int, int], Addresses] = {}
        records: dict[int, Addresses] = {}
        for target in request.targets:
            try:
                net, uts, mnt = (namespace(target.pid, kind) for kind in ("net", "uts", "mnt"))
                known = seen.get((net, uts, mnt))
                found, lack = (known, None) if known is not None else _look(target.pid, net)
                records[target.pid] = found
                if lack is None:
                    seen[net, uts, mnt] = found
                else:  # specific to this process or its user
                    unseen.append(Unseen(self.name, lack, target.rank, target.pid, target.host))
            except OSError as error:
                unseen.append(_unseen(target, error))
        return Observation(records, unseen=tuple(unseen))


def _look(pid: int, net: int) -> tuple[Addresses, str | None]:
    """The addresses, and why the hosts file could not be read, if it exists. Raises OSError."""
    found = Addresses(call_inside(pid, _interfaces), net)
    leading = set(_default_routes(pid))
    held = tuple(replace(interface, default=interface.name in leading) for interface in found.interfaces)
    name = call_inside(pid, socket.gethostname, ("uts",))
    try:
        lines = list(hosts_entries(TargetFiles(pid).read(HOSTS, MAX_HOSTS_BYTES).data.decode(errors="replace"), name))
    except FileNotFoundError:
        return Addresses(held, net, name), None
    except OSError as error:
        return Addresses(
            held, net, name
        ), f"its {HOSTS} could not be read ({read_failure(error)}); its host names are unknown"
    named = tuple(dict.fromkeys(address for address, _, _ in lines))
    line = next((f"{HOSTS}:{number}: {text}" for _, number, text in lines), None)
    return Addresses(held, net, name, named, line), None


def _interfaces() -> tuple[InterfaceAddresses, ...]:
    """Interfaces in the calling thread's network namespace."""
    import psutil

    found: dict[str, list[str]] = defaultdict(list)
    for name, held in psutil.net_if_addrs().items():
        texts = (_with_prefix(address.address, address.netmask) for address in held)
        found[name] += [text for text in texts if text]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        return tuple(InterfaceAddresses(name, tuple(texts), _is_up(asking, name)) for name, texts in found.items())


def _is_up(asking: socket.socket, name: str) -> bool:
    """Whether an interface of the socket's namespace is up. psutil would ask the namespace of our process."""
    request = _IFREQ.pack(name.encode()[:15], 0)
    try:
        return bool(_IFREQ.unpack(fcntl.ioctl(asking, _SIOCGIFFLAGS, request))[1] & _IFF_UP)
    except OSError:  # it has just disappeared
        return False


def _with_prefix(address: str, mask: str | None) -> str | None:
    """`10.0.0.1/24`; None: not an IP address."""
    try:
        plain = ipaddress.ip_address(address.split("%")[0])
        bits = int(ipaddress.ip_address(mask)) if mask else (1 << plain.max_prefixlen) - 1
    except ValueError:  # a MAC address
        return None
    return f"{plain}/{bits.bit_count()}"


def _default_routes(pid: int) -> Iterator[str]:
    """Interfaces with a default route, from /proc/PID/net."""
    for name, interface, networks in (("route", 0, (1, 7)), ("ipv6_route", 9, (0, 1))):
        try:
            with open(f"/proc/{pid}/net/{name}", encoding="ascii", errors="replace") as file:
                rows = [line.split() for line in file]
        except OSError:
            continue
        for row in rows:
            if len(row) > 7 and all(set(row[at]) == {"0"} for at in networks) and row[interface] != "lo":
                yield row[interface]


def _unseen(target: Target, error: OSError) -> Unseen:
    if isinstance(error, PermissionError):
        text = "no permission to read the addresses in its network namespace; run hangdoc as root"
    elif isinstance(error, (FileNotFoundError, ProcessLookupError)):
        text = f"process {target.pid} has ended"
    else:
        text = f"its addresses could not be read: {error.strerror or error}"
    return Unseen("addresses", text, target.rank, target.pid, target.host)


PROBE = AddressesProbe()
