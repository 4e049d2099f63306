"""Limits for rank numbers and world sizes that processes, agents and files claim.

A claim from an environment, a command line or a file is untrusted. It must never decide how much memory or time hangdoc
takes: neither this module nor its callers create an object for each rank of a claimed world.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

from msgspec.structs import replace

from hangdoc.evidence import Target

MAX_RANKS = 1 << 20  # ranks of a job; the largest known jobs use about 100,000 accelerators
MAX_RANKS_PER_HOST = 8192  # ranks of one host; the most CPUs that Linux supports (NR_CPUS, arch/x86/Kconfig)
MAX_NAMED = 128  # absent ranks listed one by one (16 hosts of 8); beyond that only a count


def parse_count(text: str | None, most: int = MAX_RANKS) -> int | None:
    """A number from 0 to `most` in ASCII digits; None for any other text."""
    if text is None or not (text.isascii() and text.isdecimal() and len(text) <= len(str(most))):
        return None
    number = int(text)
    return number if number <= most else None


def valid_world_size(size: int | None) -> int | None:
    """`size` if a job can have that world size, else None."""
    return size if size is not None and 0 < size <= MAX_RANKS else None


def valid_rank(number: int | None) -> int | None:
    """`number` if a job can have that rank, else None."""
    return number if number is not None and 0 <= number < MAX_RANKS else None


def validated(target: Target) -> Target:
    """The target of a file or an agent, with an impossible rank or world size replaced by None."""
    number, size = valid_rank(target.rank), valid_world_size(target.world_size)
    if number == target.rank and size == target.world_size:
        return target
    return replace(target, rank=number, world_size=size)


def count_absent(size: int, there: Iterable[int | None]) -> int:
    """Number of absent ranks in a world of `size`; numbers outside the world are ignored."""
    return size - len({number for number in there if number is not None and 0 <= number < size})


def absent_ranks(size: int, there: Collection[int | None]) -> tuple[int, ...]:
    """The absent ranks of a world; empty if there are more than MAX_NAMED."""
    if not 0 < count_absent(size, there) <= MAX_NAMED:
        return ()
    known = set(there)
    return tuple(islice((number for number in range(size) if number not in known), MAX_NAMED))


def absent_ranges(size: int, there: Iterable[int | None]) -> tuple[tuple[int, int], ...]:
    """The absent ranks of a world as ranges (first, last): at most one more than there are known ranks."""
    found: list[tuple[int, int]] = []
    start = 0
    for number in sorted({number for number in there if number is not None and 0 <= number < size}):
        if number > start:
            found.append((start, number - 1))
        start = number + 1
    return (*found, (start, size - 1)) if start < size else tuple(found)
