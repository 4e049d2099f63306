"""Corrects jobs that the environment groups wrongly: two jobs with one rendezvous address, or one job with two."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hangdoc.discovery.process_table import Table
from hangdoc.evidence.limits import count_absent
from hangdoc.system import procfs

START_WINDOW_S = 60.0  # in which all ranks of a job start on one host


@dataclass(frozen=True, slots=True)
class Part:
    """A process of a job."""

    pid: int
    number: int | None  # rank, or a launcher's node
    world_size: int | None
    command: Hashable  # equal for the processes of a job

    @property
    def is_anonymous(self) -> bool:
        return self.number is None and self.world_size is None


def split_jobs(parts: Sequence[Part], table: Table) -> list[list[Part]]:
    """Split the processes of one rendezvous address into jobs.

    There are several jobs if a rank number occurs twice, or if the processes of one parent are a complete job. Then
    processes with the same parent belong together, grouped in order of start; they stay one job if they are as many as
    it has ranks, with a few numbers given twice. An anonymous process unrelated to the numbered ranks belongs to none
    of their jobs.
    """
    stated = [part for part in parts if part.number is not None]
    unrelated = [part for part in parts if part.is_anonymous and stated and not _related(part, stated, table)]
    if unrelated:
        rest = [part for part in parts if part not in unrelated]
        return [*_by_parent(rest, table), *([part] for part in unrelated)]
    return _by_parent(parts, table)


def _related(part: Part, others: Sequence[Part], table: Table) -> bool:
    """True if one of `others` is an ancestor, a descendant or a sibling."""
    place = _parent_or_session(part.pid, table)
    return any(
        place == _parent_or_session(other.pid, table)
        or part.pid in table.ancestors(other.pid)
        or other.pid in table.ancestors(part.pid)
        for other in others
    )


def _by_parent(parts: Sequence[Part], table: Table) -> list[list[Part]]:
    places: dict[Hashable, list[Part]] = defaultdict(list)
    for part in parts:
        places[_parent_or_session(part.pid, table)].append(part)
    often = Counter(part.number for part in parts if part.number is not None)
    if max(often.values(), default=1) < 2 and (len(places) < 2 or not any(map(_is_complete, places.values()))):
        return [list(parts)]
    return [
        job
        for group in places.values()
        for job in ([group] if _is_misnumbered(group, table) else _by_start(group, table))
    ]


def _is_misnumbered(parts: Sequence[Part], table: Table) -> bool:
    """True if these are the processes of one job, of which a few were given a rank number of another.

    They are as many as the job has ranks, and started together. Two jobs on part of their hosts may be as many, but
    every number of theirs occurs twice.
    """
    numbers = {part.number for part in parts}
    starts = [table.procs[part.pid].start_ticks / procfs.TICKS for part in parts]
    return (
        {part.world_size for part in parts} == {len(parts)}
        and None not in numbers
        and len(parts) < 2 * len(numbers)
        and max(starts) - min(starts) <= START_WINDOW_S
    )


def _is_complete(parts: Sequence[Part]) -> bool:
    """True if every rank of their world size is there."""
    numbers: dict[int, set[int]] = defaultdict(set)
    for part in parts:
        if part.world_size and part.number is not None:
            numbers[part.world_size].add(part.number)
    return any(count_absent(size, there) == 0 for size, there in numbers.items())


def _by_start(parts: Iterable[Part], table: Table) -> Iterator[list[Part]]:
    jobs: list[list[Part]] = []
    for part in sorted(parts, key=lambda part: (table.procs[part.pid].start_ticks, part.pid)):
        free = (job for job in jobs if part.number is None or all(other.number != part.number for other in job))
        job = next(free, None)
        if job is None:
            jobs.append([part])
        else:
            job.append(part)
    yield from jobs


def is_same_job(one: Sequence[Part], other: Sequence[Part], table: Table) -> bool:
    """True if two incomplete groups are one job: same command, parent and start window, disjoint ranks.

    One group must not have formed a process group yet, as its ranks would then have met.
    """
    parts = [*one, *other]
    numbers = {part.number for part in parts}
    starts = [table.procs[part.pid].start_ticks / procfs.TICKS for part in parts]
    return (
        None not in numbers
        and len(numbers) == len(parts)
        and not any(len(group) >= (part.world_size or 0) for group in (one, other) for part in group)
        and len({part.command for part in parts}) == 1
        and len({_parent_or_session(part.pid, table) for part in parts}) == 1
        and max(starts) - min(starts) <= START_WINDOW_S
        and any(not any(table.in_process_group(part.pid) for part in group) for group in (one, other))
    )


def _parent_or_session(pid: int, table: Table) -> Hashable:
    """The parent of a process; for an orphan, its session."""
    parent = table.procs[pid].ppid
    if parent > 1:
        return parent
    try:
        return "session", os.getsid(pid)
    except OSError:
        return "alone", pid
