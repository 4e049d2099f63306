"""Probe `echo`: whether small and full-size packets pass between hosts, where a rank's bytes are repeated in vain.

What TCP repeats is always the same segment: it does not tell a dead path from one on which only full-size packets
vanish, nor from one that has swallowed that segment several times by chance. Ten ICMP echo requests to the host at the
other end do; the same to the hosts of its other peers tell whose line it is. They are sent only where the user asks for
it (`--ask ping`), by hangdoc itself, from inside the rank's network namespace, to hosts that the kernel shows this rank
connected to. A host that answers none may merely not be allowed to.
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

REPEATED = 2  # times in a row a segment was repeated
MOST = 8  # hosts asked from one namespace
TIMES = 5  # for each size
APART_S = 0.1
PATIENCE_S = 0.6  # for the last answer
SMALL = 64  # bytes of the IP packet
HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}  # IP and ICMP
REQUEST = {socket.AF_INET: 8, socket.AF_INET6: 128}  # ICMP type
REPLY = {socket.AF_INET: 0, socket.AF_INET6: 129}
_DISCOVER = {socket.AF_INET: 10, socket.AF_INET6: 23}  # IP_MTU_DISCOVER, IPV6_MTU_DISCOVER
_NEVER_FRAGMENT = 3  # IP_PMTUDISC_PROBE: whatever the kernel believes of the path


class EchoProbe:
    """Asks once a namespace, all hosts side by side, and hands the answers to every rank in it."""

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
            with suppress(OSError):  # it is gone, as other probes say
                members[namespace(target.pid)].append(target)
        records: dict[int, Echoes] = {}
        for targets in members.values():
            remotes = wanted(seen.get(target.pid, {}).get("sockets") for target in targets)
            first = targets[0]
            if remotes and PING not in request.ask:
                unseen += [
                    Unseen(self.name, _unasked(remotes), target.rank, target.pid, target.host)
                    for target in targets
                    if wanted([seen.get(target.pid, {}).get("sockets")])
                ]
                continue
            try:
                heard = Echoes(ask(first.pid, remotes)) if remotes else None
            except OSError as error:
                why = f"no echo request could be sent: {error.strerror or error}; run hangdoc as root"
                unseen.append(Unseen(self.name, why, first.rank, first.pid, first.host))
                continue
            if heard:
                records |= dict.fromkeys((target.pid for target in targets), heard)
        return Observation(records, unseen=tuple(unseen))


def wanted(sockets: Iterable[object]) -> dict[str, int]:
    """Where segments are repeated again and again: the peers, those in question first, at most so many; and the bytes
    of a packet that should get there."""
    peers = [
        one
        for record in sockets
        for one in (record.connections if isinstance(record, Sockets) else ())
        if one.state == "established" and one.remote != one.local
    ]
    in_vain = [one for one in peers if one.send_queue and (one.retransmits or 0) >= REPEATED]
    found: dict[str, int] = {}
    for one in (*in_vain, *peers) if in_vain else ():
        found.setdefault(one.remote, min(max(one.pmtu or 1500, 2 * SMALL), 9000))
    return dict(list(found.items())[:MOST])


def _unasked(remotes: Mapping[str, int]) -> str:
    sent = 2 * TIMES  # small and large
    return (
        f"no ping was sent to {', '.join(remotes)}: whether small packets pass where large ones do not, or some pass "
        f"by chance, is not known; `--ask ping` sends {sent} to each"
    )


def ask(pid: int, remotes: Mapping[str, int]) -> tuple[Echo, ...]:
    """What hosts answer to the namespace of `pid`; `remotes`: address -> bytes of a full packet. Raises OSError."""
    limit_s = TIMES * APART_S + PATIENCE_S + 2.0
    found: list[Echo] = []
    for family in HEADERS:
        asked = {remote: size for remote, size in remotes.items() if (":" in remote) == (family == socket.AF_INET6)}
        if asked:
            found += call_inside(pid, partial(_ask, family, asked), timeout_s=limit_s)
    return tuple(found)


def _ask(family: socket.AddressFamily, remotes: Mapping[str, int]) -> list[Echo]:
    """Requests are numbered by turn, host and size; who answers one says its number."""
    ip, icmp = (socket.IPPROTO_IP, socket.IPPROTO_ICMP), (socket.IPPROTO_IPV6, socket.IPPROTO_ICMPV6)
    level, protocol = ip if family == socket.AF_INET else icmp
    mine = os.getpid() & 0xFFFF
    sizes = [(host, size) for host, full in remotes.items() for size in (SMALL, full)]
    heard: set[int] = set()
    with socket.socket(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK, protocol) as link:
        link.setsockopt(level, _DISCOVER[family], _NEVER_FRAGMENT)
        for turn in range(TIMES):
            for number, (host, size) in enumerate(sizes, turn * len(sizes)):
                with suppress(OSError):  # no route, an interface that is down: no answer either
                    link.sendto(_request(family, mine, number, size), (host, 0))
            _listen(link, family, mine, heard, APART_S if turn < TIMES - 1 else PATIENCE_S, (turn + 1) * len(sizes))
    answered = Counter(sizes[number % len(sizes)] for number in heard if number < TIMES * len(sizes))
    return [Echo(host, TIMES, answered[host, SMALL], answered[host, full], full) for host, full in remotes.items()]


def _request(family: socket.AddressFamily, mine: int, number: int, size: int) -> bytes:
    body = struct.pack("!HH", mine, number) + bytes(size - HEADERS[family])
    checksum = 0
    if family == socket.AF_INET:  # of ICMPv6 the kernel makes it
        data = struct.pack("!BBH", REQUEST[family], 0, 0) + body
        total = sum(struct.unpack(f"!{len(data) // 2}H", data[: len(data) & ~1])) + (data[-1] << 8) * (len(data) & 1)
        total = (total >> 16) + (total & 0xFFFF)
        checksum = ~(total + (total >> 16)) & 0xFFFF
    return struct.pack("!BBH", REQUEST[family], 0, checksum) + body


def _listen(
    link: socket.socket, family: socket.AddressFamily, mine: int, heard: set[int], limit_s: float, all_of: int
) -> None:
    """Notes the numbers of the answers that come within `limit_s`, or until all have come."""
    until = time.monotonic() + limit_s
    while len(heard) < all_of and select.select([link], [], [], max(0.0, until - time.monotonic()))[0]:
        try:
            packet = link.recv(256)
        except OSError:  # an error of an earlier request
            continue
        start = (packet[0] & 15) * 4 if family == socket.AF_INET and packet else 0
        answer = packet[start : start + 8]
        if len(answer) == 8 and answer[0] == REPLY[family]:
            identifier, number = struct.unpack_from("!HH", answer, 4)
            if identifier == mine:
                heard.add(number)


PROBE = EchoProbe()
