"""Streams a log and yields only the lines that contain an anchor; memory stays constant.

The search runs in the `regex` crate that pydantic-core ships: it tests a block for some hundred literals at 0.4 GB/s;
`re` and `bytes.find` reach 0.01 GB/s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import IO

CHUNK = 4 * 2**20  # bytes read at once
AHEAD, BEHIND = 512 * 2**10, 8 * 2**10  # bytes of context available around a line
BLOCKS = (128 * 2**10, 8 * 2**10)  # bytes searched at once, coarse and fine
GROUP = 40  # literals searched at once in a line; the crate is fastest below 64
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
MAX_LINE = 16 * 2**10  # bytes of a line that are kept, around the match


@dataclass(frozen=True)
class Anchors:
    """Literals to search for."""

    literals: Sequence[str]

    @cached_property
    def longest(self) -> int:
        return max(map(len, self.literals), default=1)

    @cached_property
    def _any(self) -> Callable[[str], bool]:
        return _contains_any(self.literals)

    @cached_property
    def _groups(self) -> Sequence[tuple[Callable[[str], bool], Sequence[str]]]:
        groups = [self.literals[at : at + GROUP] for at in range(0, len(self.literals), GROUP)]
        return [(_contains_any(group), group) for group in groups]

    @cached_property
    def within(self) -> Callable[[str], Sequence[str]]:
        """The literals in a line. Remembered: whoever finds a line asks a second time for what is in it."""
        return lru_cache(2)(self._within)

    def _within(self, text: str) -> Sequence[str]:
        return [one for holds, group in self._groups if holds(text) for one in group if one in text]

    def occur(self, text: str) -> bool:
        """True if a literal is in the text."""
        return self._any(text)


@dataclass(slots=True)
class AnchorSearch:
    """The search for anchors in one file. An anchor that occurs too often can be dropped on the way."""

    active: Anchors
    dropped: set[str] = field(default_factory=set)  # still searched for
    searches: int = 1  # built so far

    def drop(self, literal: str) -> None:
        """Stop the search for an anchor, the later, the more searches were built: each costs milliseconds and MiB."""
        self.dropped.add(literal)
        if len(self.dropped) >= self.searches:
            self.active = Anchors(tuple(one for one in self.active.literals if one not in self.dropped))
            self.searches += 1
            self.dropped.clear()

    def positions(self, data: bytes, start: int, end: int, level: int = 0) -> Iterator[int]:
        """Offsets in [start, end) at which an anchor begins: the first of each line."""
        step, more = BLOCKS[level], self.active.longest - 1
        for at in range(start, end, step):
            upto = min(at + step, end)
            if not self.active.occur(data[at : min(upto + more, len(data))].decode("latin-1")):
                continue
            if level + 1 < len(BLOCKS):
                yield from self.positions(data, at, upto, level + 1)
            else:
                yield from self._in_lines(data, at, upto, min(upto + more, len(data)))

    def _in_lines(self, data: bytes, start: int, end: int, most: int) -> Iterator[int]:
        """The same, line by line; anchors end before `most`."""
        while start < end:
            upto = data.find(b"\n", start, most)
            upto = most if upto < 0 else upto
            text = data[start:upto].decode("latin-1")
            if self.active.occur(text):
                at = start + min(map(text.find, self.active.within(text)))
                if at < end:
                    yield at
            start = upto + 1


def _contains_any(literals: Sequence[str]) -> Callable[[str], bool]:
    if not literals:
        return lambda text: False
    from pydantic_core import SchemaValidator, core_schema

    pattern = "|".join(re.sub(r"([\\.+*?()|\[\]{}^$#&~-])", r"\\\1", literal) for literal in literals)
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")).isinstance_python


@dataclass(frozen=True, slots=True)
class MatchedLine:
    """A line that contains an anchor, with the block around it."""

    number: int  # from 1
    start: int
    end: int
    data: bytes

    @property
    def raw(self) -> bytes:
        return self.data[self.start : self.end]

    @property
    def text(self) -> str:
        return self.raw.decode("utf-8", "replace")

    def after(self, most: int) -> Iterator[str]:
        """The following lines, up to the end of the block."""
        at = self.data.find(b"\n", self.end) + 1
        for _ in range(most if at else 0):
            end = self.data.find(b"\n", at)
            upto = len(self.data) if end < 0 else end
            if at >= len(self.data):
                return
            yield self.data[at : min(upto, at + MAX_LINE)].decode("utf-8", "replace").rstrip("\r")
            if end < 0:
                return
            at = end + 1

    def with_prefix(self, prefix: bytes, most: int) -> Iterator[str]:
        """The following lines with this prefix, without the prefix."""
        at = self.end
        for _ in range(most):
            at = self.data.find(b"\n" + prefix, at)
            if at < 0:
                return
            at += 1 + len(prefix)
            end = self.data.find(b"\n", at)
            upto = len(self.data) if end < 0 else end
            yield self.data[at : min(upto, at + MAX_LINE)].decode("utf-8", "replace").rstrip("\r")

    def before(self, most: int) -> list[str]:
        """The preceding lines, nearest first."""
        found: list[str] = []
        end = self.data.rfind(b"\n", 0, self.start)
        while end > 0 and len(found) < most:
            start = self.data.rfind(b"\n", max(0, end - MAX_LINE), end) + 1
            found.append(self.data[start:end].decode("utf-8", "replace").rstrip("\r"))
            end = start - 1
        return found


@dataclass(slots=True)
class ScanSummary:
    """Totals of a scan."""

    lines: int = 0
    head: bytes = b""  # first chunk
    tail: bytes = b""  # last bytes
    damage: str | None = None  # why reading stopped before the end


def matched_lines(
    file: IO[bytes], anchors: AnchorSearch, progress: Callable[[int], None], summary: ScanSummary
) -> Iterator[MatchedLine]:
    """The lines of a stream that contain an anchor, each once, in order, up to the first read error."""
    data, begin, done = b"", 0, False  # `begin`: start of the unsearched part
    while not done:
        chunk = _chunk(file, summary)
        progress(len(chunk))
        done = not chunk
        data += chunk
        summary.head = summary.head or chunk
        summary.tail = data[-AHEAD:]
        limit = len(data) if done else _scan_limit(data, begin)
        if limit <= begin and not done:
            continue
        yield from _matched_in(data, begin, limit, anchors, summary.lines + 1)
        summary.lines += data.count(b"\n", begin, limit)
        keep = max(0, limit - BEHIND)
        data, begin = data[keep:], limit - keep
    summary.lines += bool(data) and not data.endswith(b"\n")


def _chunk(file: IO[bytes], summary: ScanSummary) -> bytes:
    try:
        return file.read(CHUNK)
    except Exception as error:  # disk errors, or any exception of a decompressor
        summary.damage = " ".join(str(error).split())[:200] or type(error).__name__
        return b""


def _scan_limit(data: bytes, begin: int) -> int:
    """End of the last line that has enough context after it."""
    far = len(data) - AHEAD
    if far <= begin:
        return begin
    return data.rfind(b"\n", begin, far) + 1 or far  # a line longer than the buffer is cut


def _matched_in(data: bytes, begin: int, limit: int, anchors: AnchorSearch, number: int) -> Iterator[MatchedLine]:
    counted = last = begin
    for at in anchors.positions(data, begin, limit):
        if at < last:
            continue  # in the line yielded last
        start = data.rfind(b"\n", max(0, at - MAX_LINE), at) + 1 or max(0, at - MAX_LINE)
        start = data.rfind(b"\r", start, at) + 1 or start  # after a progress bar
        end = data.find(b"\n", at)
        last = end = len(data) if end < 0 else end
        end = min(end, at + MAX_LINE)
        end = data.find(b"\r", at, end) if b"\r" in data[at:end] else end
        number += data.count(b"\n", counted, at)
        counted = at
        yield MatchedLine(number, start, end, data)


def wrap_width(head: bytes) -> int | None:
    """The width at which a terminal or ticket system hard-wrapped the lines; None: not wrapped."""
    lines = head.splitlines()[:1000]
    widest = max((len(line) for line in lines if line.isascii()), default=0)
    if not 60 <= widest <= 400:
        return None
    after = [b for a, b in pairwise(lines) if len(a) == widest]
    starts = {_start_shape(lines[0]), *(_start_shape(b) for a, b in pairwise(lines) if len(a) != widest)}
    # Starts unlike any real line; a row of a table goes on nowhere.
    goes_on = [line for line in after if _start_shape(line) not in starts and line[:1] not in (b"|", b"+")]
    return widest if len(goes_on) >= max(5, len(after) * 0.5, len(lines) * 0.1) else None


def _start_shape(line: bytes) -> bytes:
    return line[:6].translate(_DIGITS)


class UnwrappedStream:
    """A stream in which each line of exactly `width` bytes is joined with the next one."""

    def __init__(self, file: IO[bytes], width: int) -> None:
        self._file = file
        self._break = re.compile(rb"(?m)^([^\n]{%d})\n" % width)
        self._rest = b""

    def read(self, count: int) -> bytes:
        """About `count` bytes; empty at the end."""
        chunk = self._file.read(count)
        data = self._rest + chunk
        cut = data.rfind(b"\n") + 1 if chunk else len(data)
        if len(data) - cut > CHUNK:
            cut = len(data)
        data, self._rest = data[:cut], data[cut:]
        return self._break.sub(rb"\1", data) or (self.read(count) if chunk else b"")
