"""A log as a stream of which only the lines that hold one of some literals are looked at; memory stays flat.

The engine that looks for the literals is the `regex` crate that pydantic-core brings along: it knows whether any of
fifty occur in a block at several GB/s, where `re` and `bytes.find` reach 0.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import IO

CHUNK = 4 * 2**20  # bytes read at once
AHEAD, BEHIND = 512 * 2**10, 8 * 2**10  # bytes around a line that may be read with it
BLOCKS = (128 * 2**10, 8 * 2**10)  # bytes asked about at once, coarse and fine
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
LONG = 16 * 2**10  # bytes of a line that are kept, around what was found in it


@dataclass(frozen=True)
class Anchors:
    """Literals to be looked for."""

    literals: Sequence[str]

    @cached_property
    def longest(self) -> int:
        return max(map(len, self.literals))

    @cached_property
    def _any(self) -> Callable[[str], bool]:
        from pydantic_core import SchemaValidator, core_schema

        pattern = "|".join(re.sub(r"([\\.+*?()|\[\]{}^$#&~-])", r"\\\1", literal) for literal in self.literals)
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")).isinstance_python

    @cached_property
    def _which(self) -> re.Pattern[bytes]:
        return re.compile(b"|".join(re.escape(literal.encode()) for literal in self.literals))

    def places(self, data: bytes, start: int, end: int, level: int = 0) -> Iterator[int]:
        """Where one of them begins, in [start, end)."""
        if level == len(BLOCKS):
            yield from (match.start() for match in self._which.finditer(data, start, end))
            return
        step, more = BLOCKS[level], self.longest - 1
        for at in range(start, end, step):
            upto = min(at + step, end)
            if self._any(data[at : min(upto + more, len(data))].decode("latin-1")):
                if level + 1 < len(BLOCKS):
                    yield from self.places(data, at, upto, level + 1)
                else:
                    found = self._which.finditer(data, at, min(upto + more, len(data)))
                    yield from (match.start() for match in found if match.start() < upto)


@dataclass(frozen=True, slots=True)
class Spot:
    """A line in which something was found, and what stands around it."""

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
        """The lines that follow, as far as they are at hand."""
        at = self.data.find(b"\n", self.end) + 1
        for _ in range(most if at else 0):
            end = self.data.find(b"\n", at)
            upto = len(self.data) if end < 0 else end
            if at >= len(self.data):
                return
            yield self.data[at : min(upto, at + LONG)].decode("utf-8", "replace").rstrip("\r")
            if end < 0:
                return
            at = end + 1

    def beginning(self, prefix: bytes, most: int) -> Iterator[str]:
        """Those of the lines that follow which begin so, without that beginning."""
        at = self.end
        for _ in range(most):
            at = self.data.find(b"\n" + prefix, at)
            if at < 0:
                return
            at += 1 + len(prefix)
            end = self.data.find(b"\n", at)
            upto = len(self.data) if end < 0 else end
            yield self.data[at : min(upto, at + LONG)].decode("utf-8", "replace").rstrip("\r")

    def before(self, most: int) -> list[str]:
        """The lines that stand before it, nearest first."""
        found: list[str] = []
        end = self.data.rfind(b"\n", 0, self.start)
        while end > 0 and len(found) < most:
            start = self.data.rfind(b"\n", max(0, end - LONG), end) + 1
            found.append(self.data[start:end].decode("utf-8", "replace").rstrip("\r"))
            end = start - 1
        return found


@dataclass(slots=True)
class Tally:
    """What there was to read."""

    lines: int = 0
    head: bytes = b""  # the first of it
    tail: bytes = b""  # the last of it
    damage: str | None = None  # why it could not be read to its end


def spots(file: IO[bytes], anchors: Anchors, progress: Callable[[int], None], tally: Tally) -> Iterator[Spot]:
    """The lines of a stream that hold an anchor, each once, in order; up to where it can be read."""
    data, begin, done = b"", 0, False  # `begin`: what stands before was looked at
    while not done:
        chunk = _chunk(file, tally)
        progress(len(chunk))
        done = not chunk
        data += chunk
        tally.head = tally.head or chunk
        tally.tail = data[-AHEAD:]
        limit = len(data) if done else _limit(data, begin)
        if limit <= begin and not done:
            continue
        yield from _spots(data, begin, limit, anchors, tally.lines + 1)
        tally.lines += data.count(b"\n", begin, limit)
        keep = max(0, limit - BEHIND)
        data, begin = data[keep:], limit - keep
    tally.lines += bool(data) and not data.endswith(b"\n")


def _chunk(file: IO[bytes], tally: Tally) -> bytes:
    try:
        return file.read(CHUNK)
    except Exception as error:  # of the disk, or of what unpacks: each has its own
        tally.damage = " ".join(str(error).split())[:200] or type(error).__name__
        return b""


def _limit(data: bytes, begin: int) -> int:
    """Up to which line there is enough at hand behind it."""
    far = len(data) - AHEAD
    if far <= begin:
        return begin
    return data.rfind(b"\n", begin, far) + 1 or far  # a line that is longer than all this is cut


def _spots(data: bytes, begin: int, limit: int, anchors: Anchors, number: int) -> Iterator[Spot]:
    counted = last = begin
    for at in anchors.places(data, begin, limit):
        if at < last:
            continue  # in the line that was last given
        start = data.rfind(b"\n", max(0, at - LONG), at) + 1 or max(0, at - LONG)
        start = data.rfind(b"\r", start, at) + 1 or start  # behind the progress bar
        end = data.find(b"\n", at)
        last = end = len(data) if end < 0 else end
        end = min(end, at + LONG)
        end = data.find(b"\r", at, end) if b"\r" in data[at:end] else end
        number += data.count(b"\n", counted, at)
        counted = at
        yield Spot(number, start, end, data)


def width_of(head: bytes) -> int | None:
    """The width at which the lines of a log were broken by a terminal or a ticket system; None: they were not."""
    lines = head.splitlines()[:1000]
    widest = max((len(line) for line in lines if line.isascii()), default=0)
    if not 60 <= widest <= 400:
        return None
    after = [b for a, b in pairwise(lines) if len(a) == widest]
    starts = {_beginning(lines[0]), *(_beginning(b) for a, b in pairwise(lines) if len(a) != widest)}
    goes_on = [line for line in after if _beginning(line) not in starts]  # as no line begins that is one
    return widest if len(goes_on) >= max(5, len(after) * 0.5, len(lines) * 0.1) else None


def _beginning(line: bytes) -> bytes:
    return line[:6].translate(_DIGITS)


class Unbroken:
    """A stream of which the lines that are exactly so wide are joined with what follows."""

    def __init__(self, file: IO[bytes], width: int) -> None:
        self._file = file
        self._break = re.compile(rb"(?m)^([^\n]{%d})\n" % width)
        self._rest = b""

    def read(self, count: int) -> bytes:
        """About as many bytes; empty at the end."""
        chunk = self._file.read(count)
        data = self._rest + chunk
        cut = data.rfind(b"\n") + 1 if chunk else len(data)
        if len(data) - cut > CHUNK:
            cut = len(data)
        data, self._rest = data[:cut], data[cut:]
        return self._break.sub(rb"\1", data) or (self.read(count) if chunk else b"")
