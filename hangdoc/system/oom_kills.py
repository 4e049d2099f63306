"""How often the kernel's out-of-memory killer struck in a process's cgroup; where that has no counter, on the host."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hangdoc.system import procfs
from hangdoc.system.cgroups import Mount, below, mounts_in, places

_HOST = "/proc/vmstat"
_KILLS = re.compile(rb"^oom_kill (\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Counter:
    """The counter at one instant."""

    path: str
    kills: int


def mounts() -> Sequence[Mount]:
    return list(mounts_in(procfs.text("/proc/self/mountinfo") or ""))


def counter(pid: int, known: Sequence[Mount]) -> Counter | None:
    """The counter of the cgroup that a process is in, else the host's; None where neither can be read.

    A kill counts in the victim's own group, wherever above it the limit stands.
    """
    found = []
    for mount, group in places(procfs.text(f"/proc/{pid}/cgroup") or "", list(known)):
        folder = mount.point + below(mount, group)
        folder = folder if os.path.isdir(folder) else mount.point
        name = "memory.oom_control" if "memory" in mount.controllers else "memory.events"
        found.append(again(Counter(f"{folder}/{name}", 0)))
    return next((one for one in found if one), None) or again(Counter(_HOST, 0))


def again(before: Counter | None) -> Counter | None:
    """The same counter now; None where its cgroup is gone."""
    found = _KILLS.search(procfs.read(before.path) or b"") if before else None
    return replace(before, kills=int(found[1])) if before and found else None
