"""The form in which some records cross: what is equal on many ranks apart from what is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from hangdoc.evidence import Variable
from hangdoc.evidence.limits import RANKS_MOST

MOST = RANKS_MOST  # ranks of a group
SMALL, MEDIUM = 1 << 10, 1 << 14  # ranks of a group, of which so many are kept for all hosts: none more than 80 MB
Runs = tuple[tuple[int, int], ...]  # first and last of ascending numbers without a gap


@dataclass(frozen=True, slots=True)
class Code:
    """A frame without its variables: where equal code stands, this is equal."""

    function: str
    file: str
    line: int | None
    short: str
    native: bool


@dataclass(frozen=True, slots=True)
class ThreadForm:
    """A stack in parts."""

    tid: int
    name: str | None
    code: int  # of tuple[Code, ...]
    variables: dict[int, msgspec.Raw]  # tuple[Variable, ...], by the number of the frame; the others' were not seen
    holds_gil: bool
    active: bool
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class StacksForm:
    """Stacks in parts."""

    threads: tuple[ThreadForm, ...]
    native: bool
    python: str | None
    globals: tuple[Variable, ...] | None
    children: tuple[tuple[int, tuple[ThreadForm, ...]], ...]


@dataclass(frozen=True, slots=True)
class GroupForm:
    """A process group: its members as runs, for there may be thousands, on thousands of ranks."""

    address: int
    name: str
    ranks: Runs
    default: bool
    backend: str | None


@dataclass(frozen=True, slots=True)
class GroupsForm:
    """The process groups of a rank."""

    groups: tuple[GroupForm, ...]
    rank: int | None
    world_size: int | None
    local_rank: int | None
    master: str | None


def runs(numbers: Sequence[int]) -> Runs:
    """The numbers, in their order, as runs."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return tuple(found)


def members(folded: Runs) -> tuple[int, ...]:
    """The numbers of runs; raises ValueError for more than any job has."""
    size = length(folded)
    return _small(folded) if size <= SMALL else _medium(folded) if size <= MEDIUM else _large(folded)


def length(folded: Runs) -> int:
    """How many numbers there are; raises ValueError for more than any job has."""
    size = sum(last - first + 1 for first, last in folded)
    if size > MOST or any(last < first for first, last in folded):
        raise ValueError("a process group of impossible size")
    return size


@lru_cache(maxsize=2048)
def _small(folded: Runs) -> tuple[int, ...]:
    return _unfolded(folded)


@lru_cache(maxsize=128)
def _medium(folded: Runs) -> tuple[int, ...]:
    return _unfolded(folded)


@lru_cache(maxsize=2)
def _large(folded: Runs) -> tuple[int, ...]:
    return _unfolded(folded)


def _unfolded(folded: Runs) -> tuple[int, ...]:
    return tuple(number for first, last in folded for number in range(first, last + 1))
