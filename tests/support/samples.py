"""Samples of stacks, logs and dumps, `tests/data/samples/READER/*`: taken from real jobs or built after the sources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hangdoc.evidence import Stacks
from hangdoc.evidence.pieces import Piece
from hangdoc.postmortem.readers import EvidenceItem, ReadContext, Reader, Source, load_readers
from tests.support.paths import DATA, RECORDINGS

SAMPLES = DATA / "samples"
RECORDING = RECORDINGS / "tie2.jsonl.zst"
SCRIPT = SAMPLES / "train.py.txt"  # what ran when the stacks of uneven batches were taken


def every() -> Iterator[tuple[str, Path]]:
    """Name of the reader's module, and a sample that only it may take."""
    for folder in sorted(path for path in SAMPLES.iterdir() if path.is_dir()):
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            yield folder.name, file
    yield "recording", RECORDING


def source(path: Path) -> Source:
    return Source(path, str(path), path.stat().st_size)


def reader(module: str) -> Reader:
    return next(one for one in load_readers() if type(one).__module__ == f"hangdoc.postmortem.readers.{module}")


def read(module: str, path: Path) -> tuple[list[EvidenceItem], list[str]]:
    """What a reader finds in a file, and what it has to say."""
    problems: list[str] = []
    return list(reader(module).read(source(path), ReadContext(problems.append))), problems


def pieces(module: str, path: Path) -> list[Piece]:
    return [one for one in read(module, path)[0] if isinstance(one, Piece)]


def text(module: str, folder: Path, content: str | bytes, name: str = "paste.txt") -> list[Piece]:
    """The pieces in a text."""
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return pieces(module, file)


def stacks(piece: Piece) -> Stacks:
    record: Any = piece.record
    assert isinstance(record, Stacks)
    return record
