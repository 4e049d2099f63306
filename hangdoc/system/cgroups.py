"""Control groups of a process: the mounted hierarchies, the group's folder in each, and its count of OOM kills.

Source: proc_pid_mountinfo(5), cgroups(7). A container mounts only part of a hierarchy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hangdoc.system import procfs

_HOST = "/proc/vmstat"
_OOM_KILLS = re.compile(rb"^oom_kill (\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted cgroup hierarchy."""

    point: str
    root: str  # part of the hierarchy that is mounted here
    controllers: frozenset[str]  # empty: v2


def parse_mounts(text: str) -> Iterator[Mount]:
    """The cgroup file systems in the text of /proc/PID/mountinfo."""
    for line in text.splitlines():
        head, found, tail = line.partition(" - ")
        fields, kind = head.split(), tail.split()
        if not found or len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        names = frozenset(kind[2].split(",")) if kind[0] == "cgroup" else frozenset[str]()
        yield Mount(fields[4].replace("\\040", " "), fields[3], names)


def memberships(text: str, mounts: Sequence[Mount]) -> Iterator[tuple[Mount, str]]:
    """Mount and group of each v1 hierarchy for CPU or memory, and of v2, from the text of /proc/PID/cgroup."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        wanted = {name for name in names.split(",") if name in ("cpu", "memory")}
        if path.startswith("/..") or not (wanted or (number == "0" and not names)):
            continue  # "/..": outside our cgroup namespace
        mount = next((m for m in mounts if (wanted <= m.controllers if wanted else not m.controllers)), None)
        if mount is not None:
            yield mount, path


def path_in_mount(mount: Mount, path: str) -> str:
    """The path of a group below the mount point, which shows the hierarchy from `mount.root` on."""
    root = mount.root.rstrip("/")
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :]
    return path.rstrip("/")


def folders(mount: Mount, path: str) -> Iterator[str]:
    """The group's folder and its parents up to the mount point, innermost first."""
    group = path_in_mount(mount, path)
    if not os.path.isdir(mount.point + group):
        group = ""  # another part of the hierarchy is mounted; its top is the container's own group
    while group:
        yield mount.point + group
        group = group.rpartition("/")[0]
    yield mount.point


@dataclass(frozen=True, slots=True)
class OomCounter:
    """A counter of OOM kills at one instant."""

    path: str
    kills: int


def own_mounts() -> Sequence[Mount]:
    """The cgroup file systems in our mount namespace."""
    return list(parse_mounts(procfs.text("/proc/self/mountinfo") or ""))


def oom_counter(pid: int, mounts: Sequence[Mount]) -> OomCounter | None:
    """The counter of the process's cgroup, else of the host; None: neither is readable.

    The kernel counts a kill in the victim's own group, even if the exceeded limit is on a parent.
    """
    counters = []
    for mount, group in memberships(procfs.text(f"/proc/{pid}/cgroup") or "", mounts):
        folder = mount.point + path_in_mount(mount, group)
        folder = folder if os.path.isdir(folder) else mount.point
        name = "memory.oom_control" if "memory" in mount.controllers else "memory.events"
        counters.append(reread(OomCounter(f"{folder}/{name}", 0)))
    return next((counter for counter in counters if counter), None) or reread(OomCounter(_HOST, 0))


def reread(counter: OomCounter | None) -> OomCounter | None:
    """The same counter now; None: its cgroup is gone."""
    match = _OOM_KILLS.search(procfs.read(counter.path) or b"") if counter else None
    return replace(counter, kills=int(match[1])) if counter and match else None
