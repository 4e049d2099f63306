"""Training logs: of one rank or of all, with whatever launchers, clusters and containers put in front of the lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, cast

import yaml

from hangdoc.postmortem.readers import EvidenceItem, ReadContext, Source
from hangdoc.postmortem.readers._logs.collect import Journal
from hangdoc.postmortem.readers._logs.prefixes import Line, habits, parse
from hangdoc.postmortem.readers._logs.scan import Anchors, Spot, Tally, Unbroken, spots, width_of
from hangdoc.system import input_limits

MOST = 20_000  # lines of one form in one file
MOST_UNBROKEN = 64 * 2**20  # bytes of a file whose broken lines are joined
_CONTROL = bytes(set(range(9)) | set(range(14, 27)) | {28, 29, 30, 31})


@dataclass(frozen=True, slots=True)
class Form:
    """A form of line that means something: an entry of lines.yaml."""

    kind: str
    anchor: str
    match: re.Pattern[str]


@cache
def forms() -> tuple[Form, ...]:
    """All of lines.yaml, in its order."""
    entries = yaml.safe_load((Path(__file__).parent / "_logs" / "patterns.yaml").read_text(encoding="utf-8"))
    return tuple(Form(entry["kind"], entry["anchor"], re.compile(entry["match"], re.DOTALL)) for entry in entries)


@cache
def anchors() -> Anchors:
    return Anchors(tuple(dict.fromkeys(form.anchor for form in forms())))


class LogReader:
    name = "training log"
    order = 90  # takes any text
    help = "keep each rank's output: `torchrun --log-dir DIR --redirects 3 --tee 3`, `srun --output log.%t`"

    def recognises(self, source: Source) -> bool:
        head = source.head[:4096]
        return bool(head) and len(head.translate(None, _CONTROL)) >= len(head) * 0.95

    def read(self, source: Source, context: ReadContext) -> Iterable[EvidenceItem]:
        tally, counts = Tally(), dict.fromkeys((form.anchor for form in forms()), 0)
        told = habits(source.head.decode("utf-8", "replace"), _written(source.path))
        journal = Journal(source, told)
        with source.open() as file:
            packed = source.head[:64] != _first(source.path)
            progress = (lambda count: None) if packed else context.progress
            stream: IO[bytes] = file
            if source.size <= MOST_UNBROKEN and (width := width_of(source.head)):
                stream = cast("IO[bytes]", Unbroken(file, width))
            most = input_limits.most_lines(source.size)
            for number, spot in enumerate(spots(stream, anchors(), progress, tally)):
                if number >= most:
                    tally.damage = "it says more than a file of its size can hold"
                    break
                for form, line, match in _understood(spot, parse(spot.text, told), counts):
                    journal.add(form.kind, spot, line, match)
        if packed:
            context.progress(source.size)
        if tally.damage:
            context.warn(f"{source.name}: {tally.damage}; read up to there")
        for anchor, count in counts.items():
            if count > MOST:
                context.warn(f"{source.name}: {count} lines with `{anchor}`; read are the first {MOST}")
        yield from journal.pieces(tally)


def _understood(spot: Spot, line: Line, counts: dict[str, int]) -> Iterator[tuple[Form, Line, re.Match[str]]]:
    """What a line says; where it was broken inside, with what follows."""
    said: set[str] = set()
    raw = spot.text
    for form in forms():
        if form.anchor not in raw or form.kind in said:
            continue
        counts[form.anchor] += 1
        if counts[form.anchor] > MOST:
            continue
        match = form.match.search(line.text)
        if match is None:
            match = form.match.search(" ".join([line.text, *(text.strip() for text in spot.after(4))]))
        if match is None:
            match = form.match.search("".join([line.text, *(text for text in spot.after(4))]))
        if match is not None:
            said.add(form.kind)
            yield form, line, match


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _first(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError:
        return b""


READER = LogReader()
