"""Ranks that died before hangdoc started: missing ranks, and zombies that their parents have not collected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from hangdoc.discovery.environment import on_loopback
from hangdoc.evidence import Target, Unseen, limits
from hangdoc.system import procfs
from hangdoc.system.procfs import Stat


def missing_ranks(targets: Sequence[Target]) -> tuple[Target, ...]:
    """Missing ranks of jobs that run only on this host, with negative PIDs.

    A job with its store on loopback cannot have ranks elsewhere. A job with an unknown rank number is left out, and so
    are one with a number that two processes have, and one with too many missing ranks to name: see `mass_absences`.
    """
    return tuple(
        replace(first, pid=-1 - rank, start_ticks=0, rank=rank, local_rank=None, children=())
        for first, size, numbers in _local(targets)
        for rank in limits.absent_ranks(size, numbers)
    )


def mass_absences(targets: Sequence[Target]) -> tuple[Unseen, ...]:
    """A sentence for each job on this host with too many missing ranks to name."""
    return tuple(
        Unseen(
            "discover",
            f"{lacking:,} of {size:,} ranks are missing on this host, but the job's store is at {first.master}, so it "
            "cannot have ranks elsewhere; check WORLD_SIZE and MASTER_ADDR",
            pid=first.pid,
            host=first.host,
        )
        for first, size, numbers in _local(targets)
        if (lacking := limits.count_absent(size, numbers)) > limits.MAX_NAMED
    )


def _local(targets: Sequence[Target]) -> Iterator[tuple[Target, int, set[int | None]]]:
    """First rank, world size and found rank numbers of each job that runs only on this host."""
    jobs: dict[str, list[Target]] = defaultdict(list)
    for target in targets:
        jobs[target.job].append(target)
    for members in jobs.values():
        first, numbers = members[0], {member.rank for member in members}
        numbered = None not in numbers and len(numbers) == len(members)
        if numbered and first.world_size is not None and on_loopback(first.master):
            yield first, first.world_size, numbers


def missing_ranks_of(chosen: Sequence[Target], everyone: Sequence[Target]) -> tuple[Target, ...]:
    """Missing ranks of the jobs of the chosen ranks. A rank that was not chosen is not missing."""
    names = {target.pid: target.job for target in chosen}
    jobs = {target.job: names[target.pid] for target in everyone if target.pid in names}
    return tuple(replace(gone, job=jobs[gone.job]) for gone in missing_ranks(everyone) if gone.job in jobs)


def match_zombies(absent: Sequence[Target], living: Sequence[Target]) -> tuple[Target, ...]:
    """The missing ranks, with the PIDs of their zombies if known.

    If a job's living ranks have as many zombie siblings as the job has missing ranks, these are the missing ranks, in
    order of start: launchers start ranks in order of their number.
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
    """Zombie children of the ranks' parents that ran the same program, oldest first."""
    stats = [stat for target in living if (stat := procfs.stat(target.pid))]
    names, own = {stat.comm for stat in stats}, {stat.pid for stat in stats}
    kids = {kid for parent in {stat.ppid for stat in stats} if parent > 1 for kid in procfs.children(parent)}
    dead = [stat for kid in kids - own if (stat := procfs.stat(kid)) and stat.state in "ZX" and stat.comm in names]
    return sorted(dead, key=lambda stat: (stat.start_ticks, stat.pid))
