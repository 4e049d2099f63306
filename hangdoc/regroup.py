"""Where what ranks say of themselves puts them into the wrong job: two jobs that meet at one place, one job at two."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hangdoc.processes import Table


@dataclass(frozen=True, slots=True)
class Part:
    """A process of a job: its rank, or a launcher's node, the size of the world, and by what its like is known."""

    pid: int
    number: int | None
    world_size: int | None
    like: Hashable


def apart(parts: Sequence[Part], table: Table) -> list[list[Part]]:
    """The jobs among processes that mean to meet at one place: where a rank is there twice they are two.

    Those started from one place belong together; of these, those started one after the other.
    """
    often = Counter(part.number for part in parts if part.number is not None)
    if max(often.values(), default=1) < 2:
        return [list(parts)]
    places: dict[Hashable, list[Part]] = defaultdict(list)
    for part in parts:
        places[_started_from(part.pid, table)].append(part)
    return [job for group in places.values() for job in _in_turn(group, table)]


def _in_turn(parts: Iterable[Part], table: Table) -> Iterator[list[Part]]:
    jobs: list[list[Part]] = []
    for part in sorted(parts, key=lambda part: (table.procs[part.pid].start_ticks, part.pid)):
        free = (job for job in jobs if part.number is None or all(other.number != part.number for other in job))
        job = next(free, None)
        if job is None:
            jobs.append([part])
        else:
            job.append(part)
    yield from jobs


def together(one: Sequence[Part], other: Sequence[Part], table: Table) -> bool:
    """Whether processes that mean to meet at two places were meant for one job.

    Neither part is a whole job, none of them is in a process group yet, they were started alike and from one place, and
    none is what another is.
    """
    every = [*one, *other]
    numbers = {part.number for part in every}
    return (
        None not in numbers
        and len(numbers) == len(every)
        and not any(len(parts) >= (part.world_size or 0) for parts in (one, other) for part in parts)
        and len({part.like for part in every}) == 1
        and len({_started_from(part.pid, table) for part in every}) == 1
        and not any(table.grouped(part.pid) for part in every)
    )


def _started_from(pid: int, table: Table) -> Hashable:
    """The parent of a process; of an orphan its session."""
    parent = table.procs[pid].ppid
    if parent > 1:
        return parent
    try:
        return "session", os.getsid(pid)
    except OSError:
        return "alone", pid
