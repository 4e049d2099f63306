"""Probe `sockets`: the TCP connections of each rank with the kernel's tcp_info, and the rank at the other end.

Socket inodes come from /proc/PID/fd, their state from sock_diag inside the rank's network namespace. Without
permission to enter it, /proc/PID/net/tcp gives queues but no ages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress

from hangdoc.evidence import Connection, Sockets, Target, Unseen
from hangdoc.system import procfs
from hangdoc.system.netns import call_inside, namespace
from hangdoc.system.permissions import remedy
from hangdoc.system.process_sockets import socket_inodes
from hangdoc.system.sockdiag import Fields, SockDiag, read_proc_tables
from probes import Observation, Request, Tier

Inodes = dict[int, list[int]]  # inode of a socket -> PIDs that have it open
End = tuple[int, str, int, str, int]  # namespace (0 unless loopback), local, port, remote, port


class _Table:
    """A network namespace: its sock_diag socket, and the interface of each local address."""

    def __init__(self, pid: int) -> None:
        self.diag = call_inside(pid, SockDiag)
        self.interfaces: dict[str, str] = {}
        self._missing: frozenset[str] = frozenset()  # addresses without an interface at the last query

    def name_interfaces(self, pid: int, addresses: frozenset[str]) -> None:
        """Find the interfaces of `addresses`. Known addresses keep theirs: an interface that goes down may lose it."""
        if addresses - self.interfaces.keys() - self._missing:
            kept = {address: name for address, name in self.interfaces.items() if address in addresses}
            self.interfaces = kept | call_inside(pid, _interfaces)
            self._missing = addresses - self.interfaces.keys()


class SocketsProbe:
    """Keeps one sock_diag socket open for each namespace with a rank."""

    name = "sockets"
    scope = "rank"
    tier = Tier.PULSE
    needs = "nothing"
    record = Sockets
    order = 20
    steady = False

    def __init__(self) -> None:
        self._tables: dict[int, _Table] = {}

    def observe(self, request: Request) -> Observation:
        unseen: list[Unseen] = []
        members: dict[int, list[Target]] = defaultdict(list)
        inodes: dict[int, Inodes] = {}
        for target in request.targets:
            try:
                where = namespace(target.pid)
                opened, whole = socket_inodes(target.pid)
            except OSError as error:
                unseen.append(_unseen(target, _why_not(error, target.pid)))
                continue
            members[where].append(target)
            if not whole:
                most = procfs.MAX_DESCRIPTORS
                unseen.append(
                    _unseen(target, f"only the first {most} open files of PID {target.pid} are searched for sockets")
                )
            for inode in opened:
                inodes.setdefault(where, {}).setdefault(inode, []).append(target.pid)
        self._forget(members)
        found: dict[int, list[Fields]] = {}
        for where, targets in members.items():
            try:
                found[where] = self._look(where, targets, inodes.get(where, {}), unseen)
            except OSError as error:
                unseen.extend(_unseen(target, _why_not(error, target.pid)) for target in targets)
        return Observation(_records(found, members, inodes), unseen=tuple(unseen))

    def _look(self, where: int, targets: list[Target], inodes: Inodes, unseen: list[Unseen]) -> list[Fields]:
        pid = targets[0].pid
        try:
            table = self._tables.get(where) or _Table(pid)
            self._tables[where] = table
            found = list(table.diag.connections(inodes))
        except OSError as error:
            self._forget(self._tables.keys() - {where})
            reason = error.strerror or error
            why = f"no tcp_info: sock_diag in its network namespace failed ({reason}); run hangdoc as root"
            unseen.extend(_unseen(target, why) for target in targets)
            return list(read_proc_tables(pid, inodes))
        with suppress(OSError):  # interface names are optional
            table.name_interfaces(pid, frozenset(fields["local"] for fields in found if fields["state"] != "listen"))
        for fields in found:
            fields["interface"] = table.interfaces.get(fields["local"])
        return found

    def _forget(self, living: Iterable[int]) -> None:
        """Close the sockets of namespaces without a rank: an open socket keeps the namespace alive."""
        for where in self._tables.keys() - set(living):
            self._tables.pop(where).diag.close()


def _interfaces() -> dict[str, str]:
    """Address -> interface, in the calling thread's network namespace."""
    import psutil

    return {address.address.split("%")[0]: name for name, held in psutil.net_if_addrs().items() for address in held}


def _end(where: int, fields: Fields) -> End:
    # Addresses are unique across namespaces, except loopback: each namespace has its own.
    local = fields["local"]
    inside = where if local.startswith("127.") or local == "::1" else 0
    return inside, local, fields["local_port"], fields["remote"], fields["remote_port"]


def _records(
    found: Mapping[int, list[Fields]], members: Mapping[int, list[Target]], inodes: Mapping[int, Inodes]
) -> dict[int, Sockets]:
    """One record per rank, each connection with the PID at its other end."""
    owners = {
        _end(where, fields): inodes[where][fields["inode"]][0]
        for where, connections in found.items()
        for fields in connections
    }
    by_pid: dict[int, list[Connection]] = {target.pid: [] for where in found for target in members[where]}
    for where, connections in found.items():
        for fields in connections:
            inside, local, port, remote, remote_port = _end(where, fields)
            peer = owners.get((inside, remote, remote_port, local, port))
            connection = Connection(**fields, peer_pid=peer)
            for pid in inodes[where][fields["inode"]]:
                by_pid[pid].append(connection)
    return {target.pid: Sockets(tuple(by_pid[target.pid]), where) for where in found for target in members[where]}


def _why_not(error: OSError, pid: int) -> str:
    if isinstance(error, PermissionError):
        return f"no permission to read /proc/{pid}/fd; {remedy(pid)}"
    if isinstance(error, (FileNotFoundError, ProcessLookupError)):
        return f"process {pid} has ended"
    return f"its sockets could not be read: {error.strerror or error}"


def _unseen(target: Target, why: str) -> Unseen:
    return Unseen("sockets", why, target.rank, target.pid, target.host)


PROBE = SocketsProbe()
