"""Ranks that had died before we came: which are gone, and the zombies that their parents have not collected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hangdoc.discovery.environment import on_loopback
from hangdoc.evidence import Target, Unseen, limits
from hangdoc.system import procfs
from hangdoc.system.procfs import Stat


def absent_of(targets: Sequence[Target]) -> tuple[Target, ...]:
    """The ranks that are gone from jobs whose every rank belongs on this host; their PID is negative.

    A job whose store is on loopback cannot have ranks elsewhere. Where a rank's number is not known, nothing is said,
    nor of more ranks than may be named: see `uncounted`.
    """
    return tuple(
        replace(first, pid=-1 - rank, start_ticks=0, rank=rank, local_rank=None, children=())
        for first, size, numbers in _local(targets)
        for rank in limits.absent_ranks(size, numbers)
    )


def uncounted(targets: Sequence[Target]) -> tuple[Unseen, ...]:
    """A sentence for each of those jobs that lacks more ranks than may be named."""
    return tuple(
        Unseen(
            "discover",
            f"{lacking:,} of {size:,} ranks do not run on this host, though the job meets at {first.master} and so can "
            "have no rank elsewhere; check WORLD_SIZE and MASTER_ADDR",
            pid=first.pid,
            host=first.host,
        )
        for first, size, numbers in _local(targets)
        if (lacking := limits.count_absent(size, numbers)) > limits.NAMED_MOST
    )


def _local(targets: Sequence[Target]) -> Iterator[tuple[Target, int, set[int | None]]]:
    """The first rank, the size, and the ranks seen, of each job whose every rank belongs on this host."""
    jobs: dict[str, list[Target]] = defaultdict(list)
    for target in targets:
        jobs[target.job].append(target)
    for members in jobs.values():
        first, numbers = members[0], {member.rank for member in members}
        if None not in numbers and first.world_size is not None and on_loopback(first.master):
            yield first, first.world_size, numbers


def absent_beside(chosen: Sequence[Target], everyone: Sequence[Target]) -> tuple[Target, ...]:
    """The absent ranks of the jobs that the chosen ranks are of: a rank not asked for is not a rank gone."""
    names = {target.pid: target.job for target in chosen}
    jobs = {target.job: names[target.pid] for target in everyone if target.pid in names}
    return tuple(replace(gone, job=jobs[gone.job]) for gone in absent_of(everyone) if gone.job in jobs)


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
