"""The other ends of pipes, FIFOs and sockets: which processes of this host have them open."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from hangdoc.evidence import Peer
from hangdoc.system import procfs
from hangdoc.system.command_text import command_text
from hangdoc.system.netns import call_inside
from hangdoc.system.sockdiag import Fields, SockDiag

_MAX_DESCRIPTORS = 200_000  # of the host; 4 us each
_MAX_PEERS = 8  # kept of each end
_LONGEST = 60  # characters of a command
_MAX_CONNECTIONS = 16  # of a process; each costs two walks over the connections of its network namespace
_PORTS = ("local_port", "remote_port")
_QUIET = ("/dev/null", "anon_inode:")  # what no two processes talk through
_MODES = {os.O_RDONLY: "r", os.O_WRONLY: "w", os.O_RDWR: "rw"}


@dataclass(frozen=True, slots=True)
class TcpEnd:
    """A TCP socket, and the processes that have its other end open."""

    fields: Fields
    peers: tuple[int, ...] | None  # None: on another host
    accepted: bool  # False: these processes only listen
    served: bool = False  # a client made the connection: this end's port listens


@dataclass(slots=True)
class OpenEnds:
    """One walk over the descriptors of the host, made when it is first asked something."""

    walk_s: float = 0.0  # how long the walk took
    _opened: dict[str, list[tuple[int, int]]] | None = field(default=None)  # link in /proc/PID/fd -> PID and descriptor

    def holders(self, link: str, mode: str = "") -> tuple[int, ...]:
        """The processes that have a pipe, FIFO or socket open; `mode`: to read or to write, `r` or `w`."""
        if self._opened is None:
            began_s = time.monotonic()
            self._opened = _walk()
            self.walk_s = time.monotonic() - began_s
        found = self._opened.get(link, ())
        return tuple(islice(dict.fromkeys(pid for pid, fd in found if mode in open_mode(pid, fd)), _MAX_PEERS))

    def unix_peers(self, pid: int, inodes: Collection[int]) -> dict[int, tuple[int, ...]]:
        """The processes at the other end of each connected Unix socket of a process. Empty: the kernel does not say."""
        peers: Mapping[int, int] = {}
        with suppress(OSError):
            diag = call_inside(pid, SockDiag)
            try:
                peers = diag.unix_peers(inodes)
            finally:
                diag.close()
        return {inode: self.holders(f"socket:[{peer}]") for inode, peer in peers.items() if peer}

    def tcp_ends(self, pid: int, inodes: Collection[int]) -> dict[int, TcpEnd]:
        """The TCP sockets among the sockets of a process, with their other ends. Empty: the kernel does not say."""
        found: dict[int, TcpEnd] = {}
        with suppress(OSError):
            diag = call_inside(pid, SockDiag)
            try:
                for fields in islice(list(diag.connections(inodes)), _MAX_CONNECTIONS):
                    found[fields["inode"]] = self._tcp_end(fields, *(list(diag.at_port(fields[p])) for p in _PORTS))
            finally:
                diag.close()
        return found

    def _tcp_end(self, fields: Fields, here: Iterable[Fields], there: Iterable[Fields]) -> TcpEnd:
        """`here`, `there`: the sockets of this network namespace at the ports of the two ends."""
        served = any(one["state"] == "listen" for one in here)
        ends = [one for one in there if one["remote_port"] == fields["local_port"] and one["local"] == fields["remote"]]
        holders = self.holders(f"socket:[{ends[0]['inode']}]") if ends and ends[0]["inode"] else ()
        if holders:
            return TcpEnd(fields, holders, True, served)
        if not ends and fields["local"] != fields["remote"]:
            return TcpEnd(fields, None, True, served)
        listening = [one["inode"] for one in there if one["state"] == "listen"]
        return TcpEnd(fields, self.holders(f"socket:[{listening[0]}]") if listening else (), False, served)


def peers(wanted: Mapping[str, str], own: Collection[int]) -> dict[str, tuple[Peer, ...]]:
    """For each path in `wanted` (as in /proc/PID/fd), the processes that have it open in that mode, `r` or `w`.

    Misses processes that we may not read. `own`: PIDs of ranks and their helpers.
    """
    ends = OpenEnds()
    found = {path: [_peer(pid, pid in own) for pid in ends.holders(path, mode)] for path, mode in wanted.items()}
    return {path: tuple(peer for peer in some if peer is not None) for path, some in found.items()}


def _peer(pid: int, own: bool) -> Peer | None:
    stat = procfs.stat(pid)
    if stat is None:
        return None
    command = command_text(pid, _LONGEST, folder=False) or stat.comm
    return Peer(pid, command, stat.state, own, stat.cpu_s, procfs.moved_bytes(pid))


def open_mode(pid: int, fd: int) -> str:
    """How a descriptor was opened: r | w | rw; empty: unknown."""
    info = procfs.text(f"/proc/{pid}/fdinfo/{fd}") or ""
    flags = next((line.split()[1] for line in info.splitlines() if line.startswith("flags:")), None)
    return _MODES.get(int(flags, 8) & os.O_ACCMODE, "") if flags else ""


def _walk() -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    every = ((pid, fd) for pid in procfs.numbers("/proc") for fd in procfs.descriptors(pid))
    for pid, fd in islice(every, _MAX_DESCRIPTORS):
        link = procfs.link(f"/proc/{pid}/fd/{fd}")
        if link is not None and not link.startswith(_QUIET):
            found.setdefault(link, []).append((pid, fd))
    return found
