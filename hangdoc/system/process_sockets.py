"""Where hangdoc may connect to: the TCP ends that the kernel shows one process listening on or connected to.

What a target says of itself (MASTER_ADDR, a value in its store) never decides where a packet goes.
"""

from __future__ import annotations

import os
import socket
from itertools import islice
from typing import NamedTuple

from hangdoc.system import procfs
from hangdoc.system.netns import call_inside
from hangdoc.system.sockdiag import Fields, SockDiag, from_proc

_ANY: dict[str, str] = {
    "0.0.0.0": "127.0.0.1",
    "::": "::1",
}  # where a server that listens everywhere is reached from beside it


class End(NamedTuple):
    """A numeric address (never a name) and a port, in the network namespace of the process."""

    address: str
    port: int


def listens(pid: int, port: int) -> End | None:
    """Where the process itself listens on that port; None where it does not. Raises OSError."""
    return next(
        (
            End(_ANY.get(str(one["local"]), str(one["local"])), port)
            for one in own(pid)
            if one["state"] == "listen" and one["local_port"] == port
        ),
        None,
    )


def connected(pid: int, port: int) -> End | None:
    """The other end of a connection that the process has to that port; None where it has none. Raises OSError."""
    return next(
        (End(one["remote"], port) for one in own(pid) if one["state"] == "established" and one["remote_port"] == port),
        None,
    )


def own(pid: int) -> list[Fields]:
    """The TCP sockets that the process has open, as the kernel has them now. Raises OSError."""
    inodes, _ = inodes_of(pid)
    try:
        diag = call_inside(pid, SockDiag)
    except OSError:
        return list(from_proc(pid, inodes))
    try:
        return list(diag.connections(inodes))
    except OSError:
        return list(from_proc(pid, inodes))
    finally:
        diag.close()


def inodes_of(pid: int) -> tuple[frozenset[int], bool]:
    """Inodes of the sockets a process has open, from /proc/PID/fd, and whether all of them were looked at.

    Raises OSError.
    """
    found = []
    with os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in islice(entries, procfs.MOST_DESCRIPTORS):
            try:
                link = os.readlink(entry.path)
            except FileNotFoundError:
                continue  # closed meanwhile
            if link.startswith("socket:["):
                found.append(int(link[8:-1]))
        return frozenset(found), next(entries, None) is None


def connect(end: End, timeout_s: float) -> socket.socket:
    """A connection to `end` from the calling thread's network namespace. No name is ever looked up. Raises OSError."""
    link = socket.socket(socket.AF_INET6 if ":" in end.address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        link.settimeout(timeout_s)
        link.connect(tuple(end))
    except BaseException:
        link.close()
        raise
    return link
