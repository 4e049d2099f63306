"""Training logs, of one rank or of many, with the prefixes that launchers, clusters and containers add."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import IO, cast

from msgspec.structs import replace as replace_record

from hangdoc.evidence import End
from hangdoc.evidence.logs import Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import EvidenceItem, ReadContext, Source, interrupted
from hangdoc.postmortem.readers._common_lines import lacking_line
from hangdoc.postmortem.readers._logs.catalogue import EVERY_RANK, LinePattern, anchors, patterns_by_anchor
from hangdoc.postmortem.readers._logs.collect import LogCollector
from hangdoc.postmortem.readers._logs.figures import read_figures
from hangdoc.postmortem.readers._logs.prefixes import Line, PrefixStyle, parse, prefix_style
from hangdoc.postmortem.readers._logs.scan import (
    AnchorSearch,
    MatchedLine,
    ScanSummary,
    UnwrappedStream,
    matched_lines,
    wrap_width,
)
from hangdoc.postmortem.readers._text_source import TextSource, is_text, text_source
from hangdoc.postmortem.readers._told_state import said_stuck, several_jobs
from hangdoc.system import input_limits

MAX_MATCHES = 20_000  # lines per anchor in one file
MAX_OTHERS = 500  # the same, of messages that not every rank prints
MAX_FIGURES, LEAST_FIGURES = 2**18, 2**10  # bytes searched for figures: in all files together, and in each at least
MAX_UNWRAPPED = 64 * 2**20  # bytes; hard-wrapped lines are joined in files up to this size


class LogReader:
    name = "training log"
    order = 90  # last: accepts any text
    help = "keep each rank's output: `torchrun --log-dir DIR --redirects 3 --tee 3`, `srun --output log.%t`"

    def recognises(self, source: Source) -> bool:
        return is_text(source.head)

    def read(self, source: Source, context: ReadContext) -> Iterable[EvidenceItem]:
        source = text_source(source, context)
        summary, counts, search = ScanSummary(), dict.fromkeys(anchors().literals, 0), AnchorSearch(anchors())
        style = prefix_style(source.head_text, _modified_at(source.path))
        collector = LogCollector(source, style, crashes="faulthandler dump" not in context.taken)
        if isinstance(source, TextSource):
            collector.place(source.content, source.placement, source.addresses.host_of)
        with source.open() as file:
            packed = isinstance(source, TextSource) or source.head[:64] != _raw_head(source.path)
            progress = (lambda count: None) if packed else context.progress
            stream: IO[bytes] = file
            unwrapped = isinstance(source, TextSource)  # by what its lines show; a width alone takes tables for text
            if not unwrapped and source.size <= MAX_UNWRAPPED and (width := wrap_width(source.head)):
                stream = cast("IO[bytes]", UnwrappedStream(file, width))
            most = input_limits.most_lines(source.size)
            for number, matched in enumerate(matched_lines(stream, search, progress, summary)):
                if number >= most:
                    summary.damage = "it has more lines than a file of its size can hold"
                    break
                collector.text_line = matched.number
                if (in_file := source.line_number(matched.number)) != matched.number:
                    matched = replace(matched, number=in_file)
                if found := _anchors_in(matched, search, counts):
                    for pattern, line, match in _events(matched, parse(matched.text, style), found, style):
                        collector.add(pattern.kind, matched, line, match)
        if packed:
            context.progress(source.size)
        if summary.damage:
            context.warn(f"{source.name}: {summary.damage}; read up to there")
        for anchor, count in counts.items():
            if count >= (most := _most_matches(anchor)):
                context.warn(f"{source.name}: many lines with `{anchor}`; only the first {most} were read")
        pieces: Iterable[Piece] = collector.pieces(summary)
        if isinstance(source, TextSource):
            pieces = _with_words(list(pieces), source)
        yield from _without_interrupts(pieces) if interrupted.NAME in context.taken else pieces
        if isinstance(source, TextSource) and (lacking := lacking_line(source.head_text, source.name)):
            yield Piece(ProcessRef(), "logs", Logs((lacking,)))
        placement = source.placement if isinstance(source, TextSource) else None
        tail = summary.tail[-max(LEAST_FIGURES, MAX_FIGURES // context.files) :]
        if found_figures := read_figures(tail, summary.lines, style, source.name, placement):
            yield Piece(ProcessRef(), "figures", found_figures)


def _with_words(pieces: list[Piece], source: TextSource) -> list[Piece]:
    """With what a person says of the job as a whole, beside the events of a rank.

    As an event of no known rank, it would count as a log of every rank.
    """
    for at, piece in enumerate(pieces):
        record = piece.record
        if piece.process.rank is not None and isinstance(record, Logs) and record.said:
            said = said_stuck(source.head_text, source.name), several_jobs(source.head_text, source.name)
            record = replace_record(record, said=(*record.said, *filter(None, said)))
            pieces[at] = replace_record(piece, record=record)
            break
    return pieces


def _without_interrupts(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces without what an interrupt of a hung job left: `interrupted` has read where its ranks stood."""
    for piece in pieces:
        record = piece.record
        if isinstance(record, Logs):
            said = tuple(event for event in record.said if event.fields.get("type") != "KeyboardInterrupt")
            if said or not record.said:
                yield replace_record(piece, record=replace_record(record, said=said))
        elif piece.probe != "stacks" and not (isinstance(record, End) and record.signal == signal.SIGINT):
            yield piece


def _anchors_in(matched: MatchedLine, search: AnchorSearch, counts: dict[str, int]) -> list[str]:
    """The anchors in a line, without those that occurred too often."""
    found = []
    for anchor in search.active.within(matched.text):
        counts[anchor] += 1
        most = _most_matches(anchor)
        if counts[anchor] == most:
            search.drop(anchor)
        if counts[anchor] <= most:
            found.append(anchor)
    return found


def _events(
    matched: MatchedLine, line: Line, found: list[str], style: PrefixStyle
) -> Iterator[tuple[LinePattern, Line, re.Match[str]]]:
    """The events in a line; if it was hard-wrapped, in the line joined with the next ones."""
    kinds: set[str] = set()
    joined: tuple[str, ...] = ()
    for pattern in (pattern for anchor in found for pattern in patterns_by_anchor()[anchor]):
        if pattern.kind in kinds:
            continue
        match = pattern.match.search(line.text)
        if match is None:
            joined = joined or _with_next_lines(matched, line, style)
            found_in = (pattern.match.search(text) for text in joined)
            match = next((match for match in found_in if match and match.start() <= len(line.text)), None)
        if match is not None:
            kinds.add(pattern.kind)
            yield pattern, line, match


def _with_next_lines(matched: MatchedLine, line: Line, style: PrefixStyle) -> tuple[str, ...]:
    """The line and those after it as one, as if it was wrapped between words, or anywhere; or printed as several."""
    after = list(matched.after(4))
    wrapped = " ".join([line.text, *(text.strip() for text in after)]), "".join([line.text, *after])
    if line.text == matched.text.rstrip():  # no prefix, which each printed line would have
        return wrapped
    return (*wrapped, " ".join([line.text, *(parse(text, style).text.strip() for text in after)]))


@cache
def _most_matches(anchor: str) -> int:
    """Lines with this anchor that are read in one file."""
    return MAX_MATCHES if any(one.kind in EVERY_RANK for one in patterns_by_anchor()[anchor]) else MAX_OTHERS


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
