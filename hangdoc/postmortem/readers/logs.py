"""Training logs, of one rank or of many, with the prefixes that launchers, clusters and containers add."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, cast

import yaml

from hangdoc.postmortem.readers import EvidenceItem, ReadContext, Source
from hangdoc.postmortem.readers._logs.collect import LogCollector
from hangdoc.postmortem.readers._logs.prefixes import Line, parse, prefix_style
from hangdoc.postmortem.readers._logs.scan import (
    Anchors,
    MatchedLine,
    ScanSummary,
    UnwrappedStream,
    matched_lines,
    wrap_width,
)
from hangdoc.system import input_limits

MOST_MATCHES = 20_000  # lines per anchor in one file
MOST_UNWRAPPED = 64 * 2**20  # bytes; hard-wrapped lines are joined in files up to this size
_CONTROL = bytes(set(range(9)) | set(range(14, 27)) | {28, 29, 30, 31})


@dataclass(frozen=True, slots=True)
class LinePattern:
    """An entry of patterns.yaml."""

    kind: str
    anchor: str
    match: re.Pattern[str]


@cache
def line_patterns() -> tuple[LinePattern, ...]:
    """All entries of patterns.yaml, in file order."""
    entries = yaml.safe_load((Path(__file__).parent / "_logs" / "patterns.yaml").read_text(encoding="utf-8"))
    return tuple(
        LinePattern(entry["kind"], entry["anchor"], re.compile(entry["match"], re.DOTALL)) for entry in entries
    )


@cache
def anchors() -> Anchors:
    return Anchors(tuple(dict.fromkeys(pattern.anchor for pattern in line_patterns())))


class LogReader:
    name = "training log"
    order = 90  # last: accepts any text
    help = "keep each rank's output: `torchrun --log-dir DIR --redirects 3 --tee 3`, `srun --output log.%t`"

    def recognises(self, source: Source) -> bool:
        head = source.head[:4096]
        return bool(head) and len(head.translate(None, _CONTROL)) >= len(head) * 0.95

    def read(self, source: Source, context: ReadContext) -> Iterable[EvidenceItem]:
        summary, counts = ScanSummary(), dict.fromkeys((pattern.anchor for pattern in line_patterns()), 0)
        style = prefix_style(source.head.decode("utf-8", "replace"), _modified_at(source.path))
        collector = LogCollector(source, style)
        with source.open() as file:
            packed = source.head[:64] != _raw_head(source.path)
            progress = (lambda count: None) if packed else context.progress
            stream: IO[bytes] = file
            if source.size <= MOST_UNWRAPPED and (width := wrap_width(source.head)):
                stream = cast("IO[bytes]", UnwrappedStream(file, width))
            most = input_limits.most_lines(source.size)
            for number, matched in enumerate(matched_lines(stream, anchors(), progress, summary)):
                if number >= most:
                    summary.damage = "it has more lines than a file of its size can hold"
                    break
                for pattern, line, match in _events(matched, parse(matched.text, style), counts):
                    collector.add(pattern.kind, matched, line, match)
        if packed:
            context.progress(source.size)
        if summary.damage:
            context.warn(f"{source.name}: {summary.damage}; read up to there")
        for anchor, count in counts.items():
            if count > MOST_MATCHES:
                context.warn(f"{source.name}: {count} lines with `{anchor}`; only the first {MOST_MATCHES} were read")
        yield from collector.pieces(summary)


def _events(
    matched: MatchedLine, line: Line, counts: dict[str, int]
) -> Iterator[tuple[LinePattern, Line, re.Match[str]]]:
    """The events in a line; if it was hard-wrapped, in the line joined with the next ones."""
    found: set[str] = set()
    raw = matched.text
    for pattern in line_patterns():
        if pattern.anchor not in raw or pattern.kind in found:
            continue
        counts[pattern.anchor] += 1
        if counts[pattern.anchor] > MOST_MATCHES:
            continue
        match = pattern.match.search(line.text)
        if match is None:
            match = pattern.match.search(" ".join([line.text, *(text.strip() for text in matched.after(4))]))
        if match is None:
            match = pattern.match.search("".join([line.text, *(text for text in matched.after(4))]))
        if match is not None:
            found.add(pattern.kind)
            yield pattern, line, match


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _raw_head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError:
        return b""


READER = LogReader()
