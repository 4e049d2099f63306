"""Sockets and the processes that hold them: the TCP sockets of a process, and the process behind a listening socket.

hangdoc connects only to endpoints that the kernel shows here, never to an address that a target names (MASTER_ADDR, a
value in its store).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from hangdoc.evidence import Holder, Target
from hangdoc.system import procfs
from hangdoc.system.command_text import command_text
from hangdoc.system.netns import call_inside, namespace
from hangdoc.system.sockdiag import Fields, SockDiag, read_proc_tables

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # address of a server that listens on every interface, on its host
_MAX_KNOWN = 256  # listening sockets whose process is remembered


class Endpoint(NamedTuple):
    """A numeric address (never a name) and a port, in the network namespace of the process."""

    address: str
    port: int


def listening_endpoint(pid: int, port: int) -> Endpoint | None:
    """The address on which the process listens at `port`; None: it does not. Raises OSError."""
    addresses = (
        str(fields["local"])
        for fields in tcp_sockets(pid)
        if fields["state"] == "listen" and fields["local_port"] == port
    )
    return next((Endpoint(_LOOPBACK.get(address, address), port) for address in addresses), None)


def connected_endpoint(pid: int, port: int) -> Endpoint | None:
    """The remote end of a connection of the process to `port`; None: it has no such connection. Raises OSError."""
    addresses = (
        fields["remote"]
        for fields in tcp_sockets(pid)
        if fields["state"] == "established" and fields["remote_port"] == port
    )
    return next((Endpoint(address, port) for address in addresses), None)


def tcp_sockets(pid: int) -> list[Fields]:
    """The open TCP sockets of the process, as the kernel reports them now. Raises OSError."""
    inodes, _ = socket_inodes(pid)
    try:
        diag = call_inside(pid, SockDiag)
    except OSError:
        return list(read_proc_tables(pid, inodes))
    try:
        return list(diag.connections(inodes))
    except OSError:
        return list(read_proc_tables(pid, inodes))
    finally:
        diag.close()


def socket_inodes(pid: int) -> tuple[frozenset[int], bool]:
    """Inodes of the open sockets of a process, from /proc/PID/fd; and whether every descriptor was read.

    Raises OSError.
    """
    found = []
    with os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in islice(entries, procfs.MAX_DESCRIPTORS):
            try:
                link = os.readlink(entry.path)
            except FileNotFoundError:
                continue  # closed meanwhile
            if link.startswith("socket:["):
                found.append(int(link[8:-1]))
        return frozenset(found), next(entries, None) is None


def connect(endpoint: Endpoint, timeout_s: float) -> socket.socket:
    """A connection from the calling thread's network namespace. Looks up no name. Raises OSError."""
    connection = socket.socket(socket.AF_INET6 if ":" in endpoint.address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(tuple(endpoint))
    except BaseException:
        connection.close()
        raise
    return connection


class SocketHolders:
    """Finds the process that holds a listening socket, by the socket's inode; remembers it, since it seldom changes."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}  # inode -> PID

    def find(self, target: Target, listening: Fields) -> Holder:
        """The process that holds a socket in the target's network namespace."""
        inode = listening["inode"]
        pid = self._known.get(inode)
        if pid is None or not _has(pid, inode):
            pid = next((candidate for candidate in self._candidates(target) if _has(candidate, inode)), None)
        if pid is None:
            return Holder(None, None, listening["uid"])
        if self._known.get(inode) != pid:
            known = [
                entry for entry in self._known.items() if entry[0] != inode and os.path.exists(f"/proc/{entry[1]}")
            ]
            self._known = dict(known[1 - _MAX_KNOWN :])
        self._known[inode] = pid
        stat = procfs.stat(pid)
        return Holder(pid, command_text(pid), listening["uid"], procfs.age_s(stat.start_ticks) if stat else None)

    def _candidates(self, target: Target) -> Iterable[int]:
        """The rank and its ancestors, then every other process of its network namespace, lowest PID first."""
        lineage = list(procfs.lineage(target.pid))
        yield from lineage
        own = _namespace(target.pid)
        yield from (pid for pid in sorted(procfs.numbers("/proc")) if pid not in lineage and _namespace(pid) == own)


def _has(pid: int, inode: int) -> bool:
    wanted = f"socket:[{inode}]"
    return any(procfs.link(f"/proc/{pid}/fd/{fd}") == wanted for fd in procfs.descriptors(pid))


def _namespace(pid: int) -> int | None:
    try:
        return namespace(pid)
    except OSError:
        return None
