"""Probe `nics`: the network interfaces of each rank's namespace.

Seen when a stall is examined, and before that where bytes pile up: a link may be slow, and nothing ever stands still.
Interfaces come from rtnetlink inside the namespace; sysfs shows speed and radio, but belongs to a mount, so it is
read through the rank's root and believed only where the hardware address agrees.
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
_PILED_BYTES = 6000  # unacknowledged, in two looks one after the other: several full segments
_MOST_BYTES = 4096  # of a file in /sys
_AGAIN_S = 60.0  # so often it looks where bytes go on piling up


class NicsProbe:
    """Looks once a namespace and hands the same record to every rank in it."""

    name = "nics"
    scope = "rank"
    tier = Tier.LOOK
    needs = "nothing"
    record = Interfaces
    order = 50
    steady = False

    def __init__(self) -> None:
        self._looked_s: dict[int, float] = {}  # PID -> when it was looked at because bytes piled up

    def observe(self, request: Request) -> Observation:
        if request.tier < Tier.EXAMINE and not self._called_for(request):
            return Observation({})
        unseen: list[Unseen] = []
        networks: dict[int, list[Target]] = defaultdict(list)
        for target in request.targets:
            try:
                networks[namespace(target.pid)].append(target)
            except OSError as error:
                unseen.append(_unseen(target, error))
        records: dict[int, Interfaces] = {}
        for network, targets in networks.items():
            pid = targets[0].pid
            try:
                held = call_inside(pid, partial(_interfaces, pid), timeout_s=rtnetlink.TIMEOUT_S)
            except Exception as error:  # whatever the other process or a namespace answers
                unseen.extend(_unseen(target, error) for target in targets)
                continue
            records.update(dict.fromkeys((one.pid for one in targets), Interfaces(held, network)))
        return Observation(records, unseen=tuple(unseen))

    def _called_for(self, request: Request) -> bool:
        """Bytes pile up between ranks, and not all of them have been looked at for that reason lately."""
        now, before = time.monotonic(), request.previous
        due = [one.pid for one in request.targets if now - self._looked_s.get(one.pid, -_AGAIN_S) >= _AGAIN_S]
        earlier = {one.target.pid: one.records for one in before.ranks} if before and due else {}
        records = request.records or {}
        if not any(_piled(records[pid]) and _piled(earlier.get(pid, {})) for pid in records):
            return False
        self._looked_s = {one.pid: now for one in request.targets}
        return True


def _piled(records: Mapping[str, Any]) -> bool:
    """A connection has several segments on their way that the other end would take."""
    seen = records.get("sockets")
    connections = seen.connections if isinstance(seen, Sockets) else ()
    return any(one.send_queue >= _PILED_BYTES and one.send_window != 0 for one in connections)


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
    if state in (None, "UNKNOWN"):  # what loopback and tunnels say: only the carrier counts
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
    """The files of the interface in /sys as the rank sees it, or as we do; None where neither shows this interface."""
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
    """Of a file; a folder has none. Raises OSError: sysfs says EINVAL for the speed of a link that is down."""
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        return ""
    return content(fd, _MOST_BYTES).data.decode(errors="replace").strip()


def _unseen(target: Target, error: Exception) -> Unseen:
    if isinstance(error, PermissionError):
        why = "may not enter its network namespace: run hangdoc as root"
    elif isinstance(error, (FileNotFoundError, ProcessLookupError)):
        why = f"process {target.pid} is gone"
    else:
        why = f"interfaces not readable: {error}"
    return Unseen("nics", why, target.rank, target.pid, target.host)


PROBE = NicsProbe()
