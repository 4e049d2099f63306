"""Memory for the evidence of thousands of ranks: share equal parts, pause the garbage collector.

Most of a sample equals the sample before it.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import compress
from operator import attrgetter, is_not
from typing import Any

from msgspec.structs import force_setattr

from hangdoc.evidence import Variable
from hangdoc.evidence.record import Record

PLAIN = frozenset({type(None), bool, int, float, str})


def share(new: Any, old: Any) -> Any:
    """A value equal to `new` that reuses the equal parts of `old`, recursively in tuples and records.

    Changes a new record in place, which is several times faster than building another one.
    """
    kind = new.__class__
    if new is old or kind is not old.__class__:
        return new
    if kind is tuple:
        return old if new == old else _tuple(new, old)
    names, values = _fields(kind)
    if values is None or kind is Variable:  # many ranks share equal ones already
        return old if new == old else new
    parts, before = values(new), values(old)
    if parts == before:
        return old
    for name, one, two in compress(zip(names, parts, before, strict=False), map(is_not, parts, before)):
        if type(one) not in PLAIN:
            two = share(one, two)
        elif one != two or type(one) is not type(two):
            continue
        if two is not one:
            force_setattr(new, name, two)  # frozen, but replaces only equal objects
    return new


def _tuple(new: tuple[Any, ...], old: tuple[Any, ...]) -> tuple[Any, ...]:
    # Align at the end: the outer frames of two stacks agree, at any depth of the inner ones.
    apart = len(new) - len(old)
    pairs = zip(new[max(0, apart) :], old[max(0, -apart) :], strict=True)
    return (*new[: max(0, apart)], *[one if one is two else share(one, two) for one, two in pairs])


@cache
def _fields(kind: Any) -> tuple[Sequence[str], attrgetter[Any] | None]:
    """Field names of a record, and a getter of all values as a tuple, in which the first comes again at the end."""
    names = kind.__struct_fields__ if issubclass(kind, Record) else ()
    return names, attrgetter(*names, *names[:1]) if names else None  # attrgetter of a single name returns no tuple


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause cyclic GC while building acyclic data: each collection would traverse all evidence."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()  # moves the new objects to the oldest generation, so the next collection skips them
            gc.unfreeze()
            gc.enable()


def share_heap() -> None:
    """Let the threads that start from now on share one heap: glibc's malloc gives each its own, with its own holes.

    Saves 8 of 80 MB in a live watch (`tests.benchmarks.footprint`). M_ARENA_MAX is -8 in glibc's malloc.h.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(-8, 1)


def trim_heap() -> None:
    """Return freed memory to the system; glibc's malloc keeps the holes that messages of many hosts leave."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def release() -> None:
    """Free what a job that has ended leaves behind, and return it to the system; takes some 50 ms."""
    gc.collect()
    trim_heap()


def collect_rarely() -> None:
    """Make GC rare for the rest of this process: with thousands of ranks a collection takes seconds."""
    gc.set_threshold(100_000, 20, 20)
