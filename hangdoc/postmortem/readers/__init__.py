"""Readers: one module per file format, which turns files into the evidence that live probes record. No analysis.

A reader is a module with a `READER` that satisfies `Reader`; adding one needs no other change. It recognises files by
content, not by name, streams them, runs nothing in them and yields evidence. It reports damage through
`ReadContext.warn` and raises only OSError.

A text may contain any number of formats: each reader of text gets the whole text, finds its format anywhere in it, and
ignores the rest. Binary and whole-document formats have `exclusive = True`: nobody else reads their files.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
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
    following: deque[Source] = field(default_factory=deque)  # the next sources, for a reader that works ahead
    taken: frozenset[str] = frozenset()  # names of the readers that read the same text before
    files: int = 1  # of this report: of many, each is read less closely
    whole_lines: bool = False  # without the last line of a pasted text that does not end with a newline


@runtime_checkable
class Reader(Protocol):
    """A file format.

    Two attributes are optional. `exclusive`: the first such reader that recognises a file reads it, and no other does.
    `marks`: literals, one of which is in every text of the format; texts of megabytes are searched for them, and the
    reader gets only the part around them.
    """

    name: str  # for people: "Flight Recorder dump"
    order: int  # strict formats first; logs, which accept any text, last
    help: str  # how to collect such a file next time; one line

    def recognises(self, source: Source) -> bool:
        """True if the head of the source shows this format: its first bytes, or all of a text that was cleaned."""
        ...

    def read(self, source: Source, context: ReadContext) -> Iterable[EvidenceItem]:
        """The evidence in a source, up to any damage, which is reported."""
        ...


@cache
def load_readers() -> tuple[Reader, ...]:
    """All readers of this package, by `order`."""
    found: list[Reader] = []
    for module in pkgutil.iter_modules(__path__):
        reader = getattr(importlib.import_module(f"{__name__}.{module.name}"), "READER", None)
        if isinstance(reader, Reader):
            found.append(reader)
    return tuple(sorted(found, key=lambda reader: (reader.order, reader.name)))


__all__ = ["End", "EvidenceItem", "Piece", "ReadContext", "Reader", "Source", "load_readers"]
