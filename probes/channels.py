"""Probe `channels`: memory and Unix sockets through which a rank without a process group may reach other ranks.

Ranks can exchange gradients without a TCP connection: MPI does so on one host, and so do programs with shared tensors.
Sources: /proc/PID/maps, proc_pid_maps(5); unix_diag, sock_diag(7).
"""

from __future__ import annotations

import re

from hangdoc.evidence import Target, Unseen
from hangdoc.evidence.process import Channels
from hangdoc.system import procfs
from hangdoc.system.netns import call_inside
from hangdoc.system.permissions import remedy
from hangdoc.system.process_sockets import socket_inodes
from hangdoc.system.sockdiag import SockDiag
from probes import Observation, Request, Tier
from probes.joins import without_group

_MAX = 512  # segments of a rank, and as many sockets
# address, permissions with "w" and "s" (shared), offset, device, inode, path
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) .w.s [0-9a-f]+ ([0-9a-f]+:[0-9a-f]+) (\d+) *(.*)")
_DEVICE = re.compile(r"/dev/(?!shm/|zero\b)")
_RDMA = "/dev/infiniband/"


class ChannelsProbe:
    name = "channels"
    scope = "rank"
    tier = Tier.LOOK
    needs = "nothing"
    record = Channels
    order = 16
    steady = False

    def observe(self, request: Request) -> Observation:
        records: dict[int, Channels] = {}
        unseen: list[Unseen] = []
        for target in request.targets:
            if not without_group(request, target.pid):
                continue
            maps = procfs.text(f"/proc/{target.pid}/maps")
            if not maps:
                unseen.append(_unseen(target, f"no permission to read its memory map; {remedy(target.pid)}"))
                continue
            pairs = None
            try:
                pairs = _socket_pairs(target.pid)
            except OSError as error:
                unseen.append(_unseen(target, f"its Unix sockets could not be read: {error.strerror or error}"))
            records[target.pid] = Channels(shared_memory(maps), pairs, _uses_rdma(maps))
        return Observation(records, unseen=tuple(unseen))


def shared_memory(maps: str) -> dict[str, int]:
    """Bytes of the shared writable mappings in the text of /proc/PID/maps, by device and inode."""
    sizes: dict[str, int] = {}
    for line in maps.splitlines():
        found = _MAPPING.fullmatch(line)
        if found is None or _DEVICE.match(found[5]):
            continue
        name = f"{found[3]}:{found[4]}"
        if name in sizes or len(sizes) < _MAX:
            sizes[name] = sizes.get(name, 0) + int(found[2], 16) - int(found[1], 16)
    return sizes


def _uses_rdma(maps: str) -> bool:
    return f" {_RDMA}" in maps


def _socket_pairs(pid: int) -> tuple[str, ...]:
    """The connections of its Unix sockets, each as both inodes in ascending order. Raises OSError."""
    inodes, _ = socket_inodes(pid)
    if not inodes:
        return ()
    diag = call_inside(pid, SockDiag)
    try:
        peers = diag.unix_peers(inodes)
        return tuple(f"{min(pair)}-{max(pair)}" for pair in sorted(peers.items())[:_MAX])
    finally:
        diag.close()


def _unseen(target: Target, why: str) -> Unseen:
    return Unseen("channels", why, target.rank, target.pid, target.host)


PROBE = ChannelsProbe()
