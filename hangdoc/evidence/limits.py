"""How much of what processes, agents and files claim about the size of a job is believed.

A rank number or a world size is a claim of whoever wrote it: an environment, a command line, a file. It must never
decide how much memory or time hangdoc takes: nothing here, nor in those who use it, makes as many objects as a claimed
world has ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import islice

from hangdoc.evidence import Target

RANKS_MOST = 1 << 20  # ranks of a job; the largest known run on some 100,000 accelerators
HOST_MOST = 8192  # ranks of one host; Linux runs on no more CPUs than that (NR_CPUS, arch/x86/Kconfig)
NAMED_MOST = 128  # absent ranks that are named one by one (16 hosts of 8): more are counted


def parse_count(text: str | None, most: int = RANKS_MOST) -> int | None:
    """A number in ASCII digits, from 0 to `most`; None where the text is anything else."""
    if text is None or not (text.isascii() and text.isdecimal() and len(text) <= len(str(most))):
        return None
    number = int(text)
    return number if number <= most else None


def valid_world_size(size: int | None) -> int | None:
    """A world size that a job may have; None for any other."""
    return size if size is not None and 0 < size <= RANKS_MOST else None


def valid_rank(number: int | None) -> int | None:
    """A rank that a job may have; None for any other."""
    return number if number is not None and 0 <= number < RANKS_MOST else None


def validated(target: Target) -> Target:
    """What a file or an agent says of a process, without a rank or a world size that no job has."""
    number, size = valid_rank(target.rank), valid_world_size(target.world_size)
    if number == target.rank and size == target.world_size:
        return target
    return replace(target, rank=number, world_size=size)


def count_absent(size: int, there: Iterable[int | None]) -> int:
    """How many ranks of a world are absent; numbers beyond it do not count as there."""
    return size - len({number for number in there if number is not None and 0 <= number < size})


def absent_ranks(size: int, there: Collection[int | None]) -> tuple[int, ...]:
    """The absent ranks of a world, while they are few enough to be named; else none."""
    if not 0 < count_absent(size, there) <= NAMED_MOST:
        return ()
    known = set(there)
    return tuple(islice((number for number in range(size) if number not in known), NAMED_MOST))


def absent_ranges(size: int, there: Iterable[int | None]) -> tuple[tuple[int, int], ...]:
    """The absent ranks of a world as runs, first and last of each: at most one run more than there are known ranks."""
    found: list[tuple[int, int]] = []
    start = 0
    for number in sorted({number for number in there if number is not None and 0 <= number < size}):
        if number > start:
            found.append((start, number - 1))
        start = number + 1
    return (*found, (start, size - 1)) if start < size else tuple(found)
