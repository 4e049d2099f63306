"""Processes at the other end of a pipe or FIFO, found among the descriptors of every process of this host."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from hangdoc.evidence import Peer
from hangdoc.system import procfs
from hangdoc.system.command_text import command_text

_MOST = 8  # peers kept per pipe
_MODES = {os.O_RDONLY: "r", os.O_WRONLY: "w", os.O_RDWR: "rw"}
_LONGEST = 60  # characters of a command


def peers(wanted: Mapping[str, str], own: Collection[int]) -> dict[str, tuple[Peer, ...]]:
    """For each path in `wanted` (as in /proc/PID/fd), the processes that have it open in that mode, `r` or `w`.

    Misses processes that we may not read. `own`: PIDs of ranks and their helpers.
    """
    found: dict[str, dict[int, Peer]] = {path: {} for path in wanted}
    for pid in procfs.numbers("/proc") if wanted else ():
        for fd in procfs.descriptors(pid):
            path = procfs.link(f"/proc/{pid}/fd/{fd}")
            if path in found and pid not in found[path] and wanted[path] in _mode(pid, fd):
                peer = _peer(pid, pid in own)
                if peer is not None and len(found[path]) < _MOST:
                    found[path][pid] = peer
    return {path: tuple(by_pid.values()) for path, by_pid in found.items()}


def _mode(pid: int, fd: int) -> str:
    info = procfs.text(f"/proc/{pid}/fdinfo/{fd}") or ""
    flags = next((line.split()[1] for line in info.splitlines() if line.startswith("flags:")), "0")
    return _MODES.get(int(flags, 8) & os.O_ACCMODE, "")


def _peer(pid: int, own: bool) -> Peer | None:
    stat = procfs.stat(pid)
    if stat is None:
        return None
    return Peer(
        pid,
        command_text(pid, _LONGEST, folder=False) or stat.comm,
        stat.state,
        own,
        stat.cpu_s,
        procfs.moved_bytes(pid),
    )
