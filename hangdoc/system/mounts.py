"""The mounts of a process, from /proc/PID/mountinfo. Never touches a mounted filesystem."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hangdoc.system import procfs

# Filesystems of this host only. Any other may depend on a server that does not answer.
LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "ramfs", "zfs", "bcachefs", "vfat", "overlay", "devtmpfs"}
)
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted filesystem."""

    device: tuple[int, int]  # major, minor
    point: str
    filesystem: str


def mounts(pid: int) -> dict[int, Mount]:
    """Mounts in the mount namespace of the process, by mount ID: proc_pid_mountinfo(5)."""
    found: dict[int, Mount] = {}
    for line in (procfs.text(f"/proc/{pid}/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) >= 5 and right:
            major, _, minor = fields[2].partition(":")
            point = _OCTAL.sub(lambda octal: chr(int(octal[1], 8)), fields[4])
            found[int(fields[0])] = Mount((int(major), int(minor)), point, right.split(" ", 1)[0])
    return found


def mount_of(path: str, table: Mapping[int, Mount]) -> Mount | None:
    """The mount of an absolute path, by its text alone."""
    candidates = [m for m in table.values() if path == m.point or path.startswith(m.point.rstrip("/") + "/")]
    return max(candidates, key=lambda mount: len(mount.point), default=None)
