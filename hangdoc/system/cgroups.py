"""Where the files of a process's control groups are: the hierarchies that are mounted, and the group's place in each.

Source: proc(5) (mountinfo), cgroups(7); in a container only a part of a hierarchy is mounted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a hierarchy is mounted."""

    point: str
    root: str  # part of the hierarchy that is visible there
    controllers: frozenset[str]  # empty: v2


def mounts_in(text: str) -> Iterator[Mount]:
    """The cgroup file systems of /proc/PID/mountinfo."""
    for line in text.splitlines():
        head, found, tail = line.partition(" - ")
        fields, kind = head.split(), tail.split()
        if not found or len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        names = frozenset(kind[2].split(",")) if kind[0] == "cgroup" else frozenset[str]()
        yield Mount(fields[4].replace("\\040", " "), fields[3], names)


def places(membership: str, mounts: list[Mount]) -> Iterator[tuple[Mount, str]]:
    """For each hierarchy that limits CPU or memory, or is v2: its mount, and the group of the process."""
    for line in membership.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        wanted = {name for name in names.split(",") if name in ("cpu", "memory")}
        if path.startswith("/..") or not (wanted or (number == "0" and not names)):
            continue  # "/..": outside the part that our namespace shows
        mount = next((m for m in mounts if (wanted <= m.controllers if wanted else not m.controllers)), None)
        if mount is not None:
            yield mount, path


def below(mount: Mount, path: str) -> str:
    """The path of a group under the mount point: in a container only a part of the hierarchy is mounted."""
    root = mount.root.rstrip("/")
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :]
    return path.rstrip("/")


def levels(mount: Mount, path: str) -> Iterator[str]:
    """The group's folder and those above it, the root left out: it has no limits."""
    group = below(mount, path)
    if not os.path.isdir(mount.point + group):
        group = ""  # the mount shows another part of the hierarchy: its top is the container's own group
    while group:
        yield mount.point + group
        group = group.rpartition("/")[0]
    yield mount.point
