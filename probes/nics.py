"""Probe `nics`: the network interfaces in each rank's namespace.

Runs when a stall is examined, and earlier if send queues build up: a slow link need not stall the job.
Interfaces come from rtnetlink inside the namespace. Speed and radio come from sysfs, which belongs to a mount: it is
read through the rank's root and used only if the MAC address matches.
"""

from __future__ import annotations

import os
import stat
import time
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

from hangdoc.evidence import Interface, Interfaces, Sockets, Target, Unseen
from hangdoc.system import rtnetlink
from hangdoc.system.netns import call_inside, namespace
from hangdoc.system.target_files import TargetFiles, content
from probes import Observation, Request, Tier

_IFF_UP = 0x1
_HARDWARE = {772: "loopback", 32: "infiniband", **dict.fromkeys((768, 769, 776, 778, 823), "tunnel")}  # ARPHRD_*
_TUNNELS = {"tun", "wireguard", "vxlan", "geneve", "gre", "gretap", "ip6gre", "ipip", "ip6tnl", "sit", "vti", "xfrm"}
_QUEUED_BYTES = 6000  # unacknowledged in two consecutive rounds: several full segments
_MAX_BYTES = 4096  # of a file in /sys
_ENDED = (FileNotFoundError, ProcessLookupError)  # what procfs raises for a process that is gone
_INTERVAL_S = 60.0  # between reads while send queues stay full


class NicsProbe:
    """Reads each namespace once; every rank in it gets the same record."""

    name = "nics"
    scope = "rank"
    tier = Tier.LOOK
    needs = "nothing"
    record = Interfaces
    order = 50
    steady = False

    def __init__(self) -> None:
        self._read_s: dict[int, float] = {}  # PID -> last read because of full send queues

    def observe(self, request: Request) -> Observation:
        if request.tier < Tier.EXAMINE and not self._queues_build_up(request):
            return Observation({})
        seen: dict[int, Interfaces | Exception] = {}
        records: dict[int, Interfaces] = {}
        unseen: list[Unseen] = []
        for target in request.targets:
            try:
                network = namespace(target.pid)
                if network not in seen:
                    seen[network] = _read(target.pid, network)
                found = seen[network]
            except OSError as error:
                found = error
            if isinstance(found, Interfaces):
                records[target.pid] = found
            else:
                unseen.append(_unseen(target, found))
        return Observation(records, unseen=tuple(unseen))

    def _queues_build_up(self, request: Request) -> bool:
        """True if send queues build up, and not all ranks were read for that reason lately."""
        now, before = time.monotonic(), request.previous
        due = [
            target.pid for target in request.targets if now - self._read_s.get(target.pid, -_INTERVAL_S) >= _INTERVAL_S
        ]
        earlier = {rank.target.pid: rank.records for rank in before.ranks} if before and due else {}
        records = request.records or {}
        if not any(_has_queue(records[pid]) and _has_queue(earlier.get(pid, {})) for pid in records):
            return False
        self._read_s = {target.pid: now for target in request.targets}
        return True


def _has_queue(records: Mapping[str, Any]) -> bool:
    """True if a connection has several unacknowledged segments and an open window."""
    seen = records.get("sockets")
    connections = seen.connections if isinstance(seen, Sockets) else ()
    return any(connection.send_queue >= _QUEUED_BYTES and connection.send_window != 0 for connection in connections)


def _read(pid: int, network: int) -> Interfaces | Exception:
    """The interfaces of a namespace, or why they cannot be read. Raises OSError if the process has ended."""
    try:
        return Interfaces(call_inside(pid, partial(_interfaces, pid), timeout_s=rtnetlink.TIMEOUT_S), network)
    except _ENDED:
        raise  # another process of this namespace may be there
    except Exception as error:  # from another process and namespace: anything may fail
        return error


def _interfaces(pid: int) -> tuple[Interface, ...]:
    """The interfaces of the calling thread's network namespace."""
    seen = rtnetlink.query()
    networks: dict[int, list[str]] = defaultdict(list)
    for index, address, prefix in seen["addresses"]:
        if address:
            networks[index].append(f"{address}/{prefix}")
    rates = {index: (kind, rate) for index, kind, rate in seen["rates"]}
    return tuple(
        _interface(pid, link, networks[link["index"]], link["index"] in seen["default"], rates.get(link["index"]))
        for link in seen["links"]
    )


def _interface(pid: int, link: Any, networks: list[str], default: bool, queue: tuple[str, int] | None) -> Interface:
    name = link.get("IFLA_IFNAME")
    sysfs = _sysfs(pid, name, link.get("IFLA_ADDRESS"))
    counters = link.get("IFLA_STATS64") or {}
    return Interface(
        name=name,
        addresses=tuple(network.partition("/")[0] for network in networks),
        kind=_kind(link, sysfs),
        up=bool(link["flags"] & _IFF_UP),
        carrier=_carrier(link),
        mtu=link.get("IFLA_MTU"),
        speed_mbit=_speed(sysfs),
        rx_errors=counters.get("rx_errors"),
        tx_errors=counters.get("tx_errors"),
        rx_bytes=counters.get("rx_bytes"),
        tx_bytes=counters.get("tx_bytes"),
        default_route=default,
        networks=tuple(networks),
        queue=queue[0] if queue else None,
        queue_rate=queue[1] if queue else None,
    )


def _carrier(link: Any) -> bool | None:
    state = link.get("IFLA_OPERSTATE")
    if state in (None, "UNKNOWN"):  # as loopback and tunnels report: use the carrier
        carrier = link.get("IFLA_CARRIER")
        return None if carrier is None else bool(carrier)
    return bool(state == "UP")


def _kind(link: Any, sysfs: Mapping[str, str] | None) -> str:
    made = link["kind"]
    if made in ("bridge", "veth"):
        return str(made)
    if made in _TUNNELS:
        return "tunnel"
    if link["ifi_type"] in _HARDWARE:
        return _HARDWARE[link["ifi_type"]]
    if sysfs and sysfs.keys() & {"wireless", "phy80211"}:
        return "wireless"
    return "ethernet" if link["ifi_type"] == 1 else "other"


def _sysfs(pid: int, name: str, hardware: str | None) -> Mapping[str, str] | None:
    """Files of the interface in /sys, as the rank or as we see it; None: neither shows this interface."""
    paths = {f"/sys/class/net/{name}/{file}": file for file in ("address", "speed", "wireless", "phy80211")}
    for process in (pid, os.getpid()):
        found = TargetFiles(process).each(paths, _text)
        texts = {paths[path]: text for path, text in found.items() if isinstance(text, str)}
        if hardware and texts.get("address") == hardware:
            return texts
    return None


def _speed(sysfs: Mapping[str, str] | None) -> int | None:
    speed = sysfs.get("speed") if sysfs else None
    return int(speed) if speed and speed.isdigit() and int(speed) > 0 else None


def _text(fd: int) -> str:
    """Text of a file; empty for a folder. Raises OSError (EINVAL: speed of a link that is down)."""
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        return ""
    return content(fd, _MAX_BYTES).data.decode(errors="replace").strip()


def _unseen(target: Target, error: Exception) -> Unseen:
    if isinstance(error, PermissionError):
        why = "no permission to enter its network namespace; run hangdoc as root"
    elif isinstance(error, _ENDED):
        why = f"process {target.pid} has ended"
    else:
        why = f"its interfaces could not be read: {error}"
    return Unseen("nics", why, target.rank, target.pid, target.host)


PROBE = NicsProbe()
