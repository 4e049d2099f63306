"""Where what ranks say of themselves puts them into the wrong job: two jobs that meet at one place, one job at two."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hangdoc.discovery.process_table import Table
from hangdoc.evidence.limits import count_absent
from hangdoc.system import procfs

TOGETHER_S = 60.0  # within which the ranks of a job are started on one host


@dataclass(frozen=True, slots=True)
class Part:
    """A process of a job: its rank, or a launcher's node, the size of the world, and by what its like is known."""

    pid: int
    number: int | None
    world_size: int | None
    like: Hashable

    @property
    def tells_nothing(self) -> bool:
        return self.number is None and self.world_size is None


def apart(parts: Sequence[Part], table: Table) -> list[list[Part]]:
    """The jobs among processes that mean to meet at one place.

    Where a rank is there twice they are two, and where those started from one place are a whole job themselves. Those
    started from one place belong together; of these, those started one after the other. What says nothing of itself and
    was started elsewhere than ranks that do is none of them.
    """
    stated = [part for part in parts if part.number is not None]
    apart_from = [part for part in parts if part.tells_nothing and stated and not _near(part, stated, table)]
    if apart_from:
        rest = [part for part in parts if part not in apart_from]
        return [*_by_place(rest, table), *([part] for part in apart_from)]
    return _by_place(parts, table)


def _near(part: Part, others: Sequence[Part], table: Table) -> bool:
    """It has started one of them, or one of them it, or what started it has started one of them."""
    place = _started_from(part.pid, table)
    return any(
        place == _started_from(other.pid, table)
        or part.pid in table.ancestors(other.pid)
        or other.pid in table.ancestors(part.pid)
        for other in others
    )


def _by_place(parts: Sequence[Part], table: Table) -> list[list[Part]]:
    places: dict[Hashable, list[Part]] = defaultdict(list)
    for part in parts:
        places[_started_from(part.pid, table)].append(part)
    often = Counter(part.number for part in parts if part.number is not None)
    if max(often.values(), default=1) < 2 and (len(places) < 2 or not any(map(_whole, places.values()))):
        return [list(parts)]
    return [job for group in places.values() for job in _in_turn(group, table)]


def _whole(parts: Sequence[Part]) -> bool:
    """Every rank of a world of the size that they were told is there."""
    numbers: dict[int, set[int]] = defaultdict(set)
    for part in parts:
        if part.world_size and part.number is not None:
            numbers[part.world_size].add(part.number)
    return any(count_absent(size, there) == 0 for size, there in numbers.items())


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

    Neither part is a whole job, one of them has not come as far as a process group (whose threads run before the others
    have come), they were started alike, together and from one place, and none is what another is.
    """
    every = [*one, *other]
    numbers = {part.number for part in every}
    starts = [table.procs[part.pid].start_ticks / procfs.TICKS for part in every]
    return (
        None not in numbers
        and len(numbers) == len(every)
        and not any(len(parts) >= (part.world_size or 0) for parts in (one, other) for part in parts)
        and len({part.like for part in every}) == 1
        and len({_started_from(part.pid, table) for part in every}) == 1
        and max(starts) - min(starts) <= TOGETHER_S
        and any(not any(table.grouped(part.pid) for part in parts) for parts in (one, other))
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
