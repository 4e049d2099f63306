"""What is left of ranks that had died before we came: zombies that their parent has not collected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from hangdoc import procfs
from hangdoc.evidence import Target
from hangdoc.procfs import Stat


def identified(absent: Sequence[Target], living: Sequence[Target]) -> tuple[Target, ...]:
    """The absent ranks, each with the process that it was where that is still to be seen.

    The zombies among the siblings of a job's living ranks are its dead ranks where there are as many: ranks are
    started in the order of their numbers.
    """
    jobs: dict[str, list[Target]] = defaultdict(list)
    for target in absent:
        jobs[target.job].append(target)
    found: list[Target] = []
    for job, gone in jobs.items():
        dead = _zombies([target for target in living if target.job == job])
        if len(dead) == len(gone):
            gone = [
                replace(target, pid=stat.pid, start_ticks=stat.start_ticks)
                for target, stat in zip(sorted(gone, key=lambda t: t.rank or 0), dead, strict=True)
            ]
        found += gone
    return tuple(found)


def _zombies(living: Sequence[Target]) -> list[Stat]:
    """Dead children of the ranks' parents that ran the same program, by age."""
    stats = [stat for target in living if (stat := procfs.stat(target.pid))]
    names, own = {stat.comm for stat in stats}, {stat.pid for stat in stats}
    kids = {kid for parent in {stat.ppid for stat in stats} if parent > 1 for kid in procfs.children(parent)}
    dead = [stat for kid in kids - own if (stat := procfs.stat(kid)) and stat.state in "ZX" and stat.comm in names]
    return sorted(dead, key=lambda stat: (stat.start_ticks, stat.pid))
