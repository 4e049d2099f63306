"""Readers: what is left of a job, as the evidence that live probes would have given.

A reader is a module here with a `READER` that satisfies `Reader`; adding one touches nothing else. It knows its files
by what they hold, not by their names, reads them as a stream, runs nothing of what it reads, and yields pieces of
evidence. What it cannot read it says through `Notes`; it raises nothing but OSError.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from hangdoc.evidence import End, Snapshot
from hangdoc.evidence.pieces import Piece
from hangdoc.postmortem.readers._input_file import Source

EvidenceItem = Piece | Snapshot


@dataclass(slots=True)
class ReadContext:
    """What readers have to say to the user."""

    warn: Callable[[str], None]  # one sentence for each thing that could not be read
    progress: Callable[[int], None] = lambda count: None  # bytes read since the last call
    shared: dict[str, Any] = field(default_factory=dict)  # what a reader keeps from one source for the next


@runtime_checkable
class Reader(Protocol):
    """One format.

    `order`: those with a lower one are asked first (the strict ones; logs, which take any text, last).
    """

    name: str  # for people: "Flight Recorder dump"
    order: int
    help: str  # how to collect one next time, one line

    def recognises(self, source: Source) -> bool:
        """Whether the source is of this format, by its head."""
        ...

    def read(self, source: Source, context: ReadContext) -> Iterable[EvidenceItem]:
        """What it holds; stops at damage, says so, and keeps what came before."""
        ...


def load() -> tuple[Reader, ...]:
    """Every reader in this package, in the order they are asked."""
    found: list[Reader] = []
    for module in pkgutil.iter_modules(__path__):
        reader = getattr(importlib.import_module(f"{__name__}.{module.name}"), "READER", None)
        if isinstance(reader, Reader):
            found.append(reader)
    return tuple(sorted(found, key=lambda reader: (reader.order, reader.name)))


__all__ = ["End", "Found", "Notes", "Piece", "Reader", "Source", "load"]
