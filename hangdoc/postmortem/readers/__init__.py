"""Readers: one module per file format, which turns files into the evidence that live probes record. No analysis.

A reader is a module with a `READER` that satisfies `Reader`; adding one needs no other change. It recognises files by
content, not by name, streams them, runs nothing in them and yields evidence. It reports damage through
`ReadContext.warn` and raises only OSError.
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
    """Messages, progress and state shared between the sources of one report."""

    warn: Callable[[str], None]  # takes one sentence for each thing that could not be read
    progress: Callable[[int], None] = lambda count: None  # takes the bytes read since the last call
    shared: dict[str, Any] = field(default_factory=dict)  # state that a reader keeps between sources


@runtime_checkable
class Reader(Protocol):
    """A file format. The first reader that recognises a file, by ascending `order`, reads it."""

    name: str  # for people: "Flight Recorder dump"
    order: int  # strict formats first; logs, which accept any text, last
    help: str  # how to collect such a file next time; one line

    def recognises(self, source: Source) -> bool:
        """True if the first bytes of the source show this format."""
        ...

    def read(self, source: Source, context: ReadContext) -> Iterable[EvidenceItem]:
        """The evidence in a source, up to any damage, which is reported."""
        ...


def load_readers() -> tuple[Reader, ...]:
    """All readers of this package, by `order`."""
    found: list[Reader] = []
    for module in pkgutil.iter_modules(__path__):
        reader = getattr(importlib.import_module(f"{__name__}.{module.name}"), "READER", None)
        if isinstance(reader, Reader):
            found.append(reader)
    return tuple(sorted(found, key=lambda reader: (reader.order, reader.name)))


__all__ = ["End", "Found", "Notes", "Piece", "Reader", "Source", "load_readers"]
