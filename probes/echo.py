"""Probe `echo`: pings with small and full-size packets, on paths where TCP retransmits without success.

TCP retransmits one segment, which cannot distinguish a dead path from a path MTU problem or from heavy loss. Ten ICMP
echo requests to the peer's host can; pinging the other peers too shows which end is at fault. Sent only with
`--ask ping`, by hangdoc itself, from the rank's network namespace, to hosts that the kernel shows the rank connected
to. A host without any reply may just filter ICMP.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial

from hangdoc.evidence import Sockets, Target, Unseen
from hangdoc.evidence.network import Echo, Echoes
from hangdoc.system.netns import call_inside, namespace
from probes import PING, Observation, Request, Tier

RETRANSMITS = 2  # of one segment in a row
MAX_HOSTS = 8  # pinged from one namespace
COUNT = 5  # echo requests of each size
INTERVAL_S = 0.1
LAST_REPLY_S = 0.6  # wait for the last reply
SMALL = 64  # bytes of the IP packet
HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}  # IP and ICMP
REQUEST = {socket.AF_INET: 8, socket.AF_INET6: 128}  # ICMP type
REPLY = {socket.AF_INET: 0, socket.AF_INET6: 129}
_DISCOVER = {socket.AF_INET: 10, socket.AF_INET6: 23}  # IP_MTU_DISCOVER, IPV6_MTU_DISCOVER
_NEVER_FRAGMENT = 3  # IP_PMTUDISC_PROBE: ignore the cached path MTU


class EchoProbe:
    """Pings all hosts of a network namespace in parallel, once; every rank in it gets the same record."""

    name = "echo"
    scope = "rank"
    tier = Tier.EXAMINE
    needs = "root"
    record = Echoes
    order = 97
    steady = False

    def observe(self, request: Request) -> Observation:
        seen = request.records or {}
        members: dict[int, list[Target]] = defaultdict(list)
        unseen: list[Unseen] = []
        for target in request.targets:
            with suppress(OSError):  # ended: other probes report it
                members[namespace(target.pid)].append(target)
        records: dict[int, Echoes] = {}
        for targets in members.values():
            remotes = hosts_to_ping(seen.get(target.pid, {}).get("sockets") for target in targets)
            first = targets[0]
            if remotes and PING not in request.ask:
                unseen += [
                    Unseen(self.name, _unasked(remotes), target.rank, target.pid, target.host)
                    for target in targets
                    if hosts_to_ping([seen.get(target.pid, {}).get("sockets")])
                ]
                continue
            try:
                echoes = Echoes(ping(first.pid, remotes)) if remotes else None
            except OSError as error:
                why = f"no echo request could be sent: {error.strerror or error}; run hangdoc as root"
                unseen.append(Unseen(self.name, why, first.rank, first.pid, first.host))
                continue
            if echoes:
                records |= dict.fromkeys((target.pid for target in targets), echoes)
        return Observation(records, unseen=tuple(unseen))


def hosts_to_ping(sockets: Iterable[object]) -> dict[str, int]:
    """If any connection retransmits in vain: remote address -> bytes of a full packet. Suspects first, MAX_HOSTS."""
    peers = [
        connection
        for record in sockets
        for connection in (record.connections if isinstance(record, Sockets) else ())
        if connection.state == "established" and connection.remote != connection.local
    ]
    in_vain = [
        connection for connection in peers if connection.send_queue and (connection.retransmits or 0) >= RETRANSMITS
    ]
    found: dict[str, int] = {}
    for connection in (*in_vain, *peers) if in_vain else ():
        found.setdefault(connection.remote, min(max(connection.pmtu or 1500, 2 * SMALL), 9000))
    return dict(list(found.items())[:MAX_HOSTS])


def _unasked(remotes: Mapping[str, int]) -> str:
    sent = 2 * COUNT  # small and large
    return (
        f"no ping was sent to {', '.join(remotes)}, so a path MTU problem or packet loss cannot be ruled out; "
        f"`--ask ping` sends {sent} to each"
    )


def ping(pid: int, remotes: Mapping[str, int]) -> tuple[Echo, ...]:
    """Ping from the namespace of `pid`; `remotes`: address -> bytes of a full packet. Raises OSError."""
    limit_s = COUNT * INTERVAL_S + LAST_REPLY_S + 2.0
    found: list[Echo] = []
    for family in HEADERS:
        asked = {remote: size for remote, size in remotes.items() if (":" in remote) == (family == socket.AF_INET6)}
        if asked:
            found += call_inside(pid, partial(_ping, family, asked), timeout_s=limit_s)
    return tuple(found)


def _ping(family: socket.AddressFamily, remotes: Mapping[str, int]) -> list[Echo]:
    """Replies are matched by sequence number, which encodes turn, host and size."""
    ip, icmp = (socket.IPPROTO_IP, socket.IPPROTO_ICMP), (socket.IPPROTO_IPV6, socket.IPPROTO_ICMPV6)
    level, protocol = ip if family == socket.AF_INET else icmp
    identifier = os.getpid() & 0xFFFF
    sizes = [(host, size) for host, full in remotes.items() for size in (SMALL, full)]
    heard: set[int] = set()
    with socket.socket(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK, protocol) as link:
        link.setsockopt(level, _DISCOVER[family], _NEVER_FRAGMENT)
        for turn in range(COUNT):
            for number, (host, size) in enumerate(sizes, turn * len(sizes)):
                with suppress(OSError):  # no route, or the interface is down: counts as no reply
                    link.sendto(_request(family, identifier, number, size), (host, 0))
            _listen(
                link,
                family,
                identifier,
                heard,
                INTERVAL_S if turn < COUNT - 1 else LAST_REPLY_S,
                (turn + 1) * len(sizes),
            )
    answered = Counter(sizes[number % len(sizes)] for number in heard if number < COUNT * len(sizes))
    return [Echo(host, COUNT, answered[host, SMALL], answered[host, full], full) for host, full in remotes.items()]


def _request(family: socket.AddressFamily, identifier: int, number: int, size: int) -> bytes:
    body = struct.pack("!HH", identifier, number) + bytes(size - HEADERS[family])
    checksum = 0
    if family == socket.AF_INET:  # the kernel computes that of ICMPv6
        data = struct.pack("!BBH", REQUEST[family], 0, 0) + body
        total = sum(struct.unpack(f"!{len(data) // 2}H", data[: len(data) & ~1])) + (data[-1] << 8) * (len(data) & 1)
        total = (total >> 16) + (total & 0xFFFF)
        checksum = ~(total + (total >> 16)) & 0xFFFF
    return struct.pack("!BBH", REQUEST[family], 0, checksum) + body


def _listen(
    link: socket.socket, family: socket.AddressFamily, identifier: int, heard: set[int], limit_s: float, all_of: int
) -> None:
    """Collect sequence numbers of replies for `limit_s`, or until all `all_of` have arrived."""
    until = time.monotonic() + limit_s
    while len(heard) < all_of and select.select([link], [], [], max(0.0, until - time.monotonic()))[0]:
        try:
            packet = link.recv(256)
        except OSError:  # a pending error of an earlier request
            continue
        start = (packet[0] & 15) * 4 if family == socket.AF_INET and packet else 0
        answer = packet[start : start + 8]
        if len(answer) == 8 and answer[0] == REPLY[family]:
            reply_identifier, number = struct.unpack_from("!HH", answer, 4)
            if reply_identifier == identifier:
                heard.add(number)


PROBE = EchoProbe()
