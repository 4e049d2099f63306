"""A text as the readers see it: cleaned, unwrapped, with headings above its stacks; and the parts of a long one."""

from __future__ import annotations

import io
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import IO, Any

from hangdoc.postmortem.readers import ReadContext
from hangdoc.postmortem.readers._cleaning import TextLine, clean_lines, decode
from hangdoc.postmortem.readers._cut_names import with_whole_names
from hangdoc.postmortem.readers._glued_lines import with_glued_lines_apart
from hangdoc.postmortem.readers._headless import with_headings
from hangdoc.postmortem.readers._host_output import with_hosts
from hangdoc.postmortem.readers._input_file import HEAD_BYTES, Source
from hangdoc.postmortem.readers._logs.scan import BLOCKS, CHUNK, Anchors, AnchorSearch
from hangdoc.postmortem.readers._placement.addresses import AddressBook, address_book
from hangdoc.postmortem.readers._placement.placement import Placement, outer_lines, placement_of
from hangdoc.postmortem.readers._rank_output import with_ranks
from hangdoc.postmortem.readers._unwrapping import unwrapped, with_cut_lines_joined
from hangdoc.postmortem.readers._worker_labels import with_worker_ranks

MAX_CLEANED = 4 * 2**20  # bytes; longer texts are programs' output, which nobody pasted
ALWAYS_CLEANED = 32 * 2**10  # bytes
MAX_CLEANED_FILES = 16 * 2**20  # bytes of one report; in later files, only those that need it at their beginning
CLEANED = "bytes cleaned"  # key of ReadContext.shared
OPEN_ENDS = "a text whose last line may be cut"  # key of ReadContext.shared
SAMPLE = 8 * 2**10  # bytes at the beginning of a longer text, to see whether it needs cleaning
MAX_SEARCHES = 64  # built for one text: each costs milliseconds and a MiB
BEFORE, BEHIND = 16 * 2**10, 2 * 2**20  # bytes of a long text around the literals of a format
_BINARY = bytes(set(range(7)) | set(range(14, 27)) | {28, 29, 30, 31})


@dataclass(frozen=True)
class TextSource(Source):
    """A cleaned text in memory, of the same file."""

    content: bytes = b""
    numbers: array[int] = field(default_factory=lambda: array("I"), compare=False)  # of each line in the file
    # Number that was written in front of a line, by index of the line.
    listed: Mapping[int, int] = field(default_factory=dict, compare=False)

    @property
    def head(self) -> bytes:
        """The whole text."""
        return self.content

    def drop_head(self) -> None:
        """Nothing is cached."""

    @cached_property
    def placement(self) -> Placement:
        """Where the text says that the ranks run."""
        return placement_of(self.content.decode("utf-8", "replace"))

    @cached_property
    def addresses(self) -> AddressBook:
        """Which host has which address, as the text says."""
        return address_book(outer_lines(self.content.decode("utf-8", "replace")), self.content)

    def line_number(self, line: int) -> int:
        return self.numbers[line - 1] if 0 < line <= len(self.numbers) else line

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        yield io.BufferedReader(io.BytesIO(self.content))


@dataclass(frozen=True)
class PlainSource(Source):
    """A text that needs no cleaning, or is too long for it."""


def placement_in(source: Source) -> Placement:
    """Where a text says that the ranks run; nothing for long ones, which are logs and have prefixes."""
    return source.placement if isinstance(source, TextSource) else Placement()


def text_source(source: Source, context: ReadContext) -> Source:
    """The cleaned text of a source; the source itself if it is too long, binary, or clean already."""
    if isinstance(source, (TextSource, TextPart, PlainSource)) or not is_text(source.head):
        return source
    same = (source.path, source.name, source.size, source.node, source.earlier_segments, source.skipped_segments)
    always = ALWAYS_CLEANED if context.shared.get(CLEANED, 0) < MAX_CLEANED_FILES else 0
    if source.size > MAX_CLEANED or (len(source.head) > always and _is_clean(source.head[:SAMPLE])):
        return PlainSource(*same)
    data, damage = _content(source)
    if len(data) > MAX_CLEANED:
        return PlainSource(*same)
    context.shared[CLEANED] = context.shared.get(CLEANED, 0) + len(data)
    written = decode(data)
    if not written.endswith(("\n", "\r")):
        context.shared[OPEN_ENDS] = True
        written = written[: written.rfind("\n") + 1] if context.whole_lines else written
    lines = cleaned(written)
    if damage:
        context.warn(f"{source.name}: {damage}; the text before that is used")
    content = "\n".join(line.text for line in lines).encode("utf-8", "replace")
    listed = {index: line.listed for index, line in enumerate(lines) if line.listed is not None}
    return TextSource(*same, content, array("I", (line.number for line in lines)), listed)


def _is_clean(sample: bytes) -> bool:
    """True if cleaning changes nothing in the first lines."""
    text = decode(sample)
    lines = text.split("\n")[:-1]
    return text.encode("utf-8", "replace")[:64] == sample[:64] and [line.text for line in _lines("\n".join(lines))] == [
        line.removesuffix("\r") for line in lines
    ]


def cleaned(text: str) -> list[TextLine]:
    """The lines of a text as readers expect them."""
    return with_headings(with_hosts(with_ranks(with_worker_ranks(with_whole_names(unwrapped(_lines(text)))))))


def _lines(text: str) -> list[TextLine]:
    """The lines of a text as they were written, as far as their form alone shows it."""
    return with_glued_lines_apart(with_cut_lines_joined(clean_lines(text)))


def is_text(head: bytes) -> bool:
    """True if these first bytes are text, UTF-16 included."""
    sample = head[:4096]
    if sample.count(0) * 8 >= len(sample) > 0:
        return "\0" not in decode(sample)
    return bool(sample) and len(sample.translate(None, _BINARY)) >= len(sample) * 0.95


def _content(source: Source) -> tuple[bytes, str | None]:
    """Up to MAX_CLEANED bytes and one more, and why reading stopped early."""
    found = b""
    try:
        with source.open() as file:
            while len(found) <= MAX_CLEANED and (data := file.read(min(HEAD_BYTES, MAX_CLEANED + 1 - len(found)))):
                found += data
    except OSError as error:
        return found, error.strerror or str(error)
    return found, None


@dataclass(frozen=True)
class TextPart(Source):
    """The part of a long text around what a reader looks for."""

    start: int = 0  # offset in the decompressed text
    end: int = 0

    @cached_property
    def head(self) -> bytes:
        found = b""
        with suppress(OSError), self.open() as file:
            while len(found) < MAX_CLEANED and (data := file.read(HEAD_BYTES)):
                found += data
        return found

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        with super().open() as file:
            left = self.start
            while left > 0 and (skipped := file.read(min(left, CHUNK))):
                left -= len(skipped)
            yield io.BufferedReader(_Limited(file, self.end - self.start))


class _Limited(io.RawIOBase):
    def __init__(self, file: IO[bytes], left: int) -> None:
        self._file, self._left = file, left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), self._left))
        self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)


def marked_parts(source: Source, marks: Mapping[str, Sequence[str]]) -> dict[str, Source]:
    """For each key of `marks`, the part of a long text around its literals; missing: the text has none."""
    search = _MarkSearch(marks)
    spans: dict[str, tuple[int, int]] = {}
    at, data = 0, b""
    with suppress(OSError), source.open() as file:
        while chunk := file.read(CHUNK):
            kept = data[-search.longest :]
            data = kept + chunk
            offset = at - len(kept)
            for name, first, last in search.spans(data):
                spans[name] = spans.get(name, (first + offset, 0))[0], last + offset
            at += len(chunk)
    return {
        name: TextPart(
            source.path, source.name, source.size, source.node, (), 0, max(0, first - BEFORE), min(at, last + BEHIND)
        )
        for name, (first, last) in spans.items()
    }


class _MarkSearch:
    """Finds between which offsets of a text the literals of each key lie.

    Texts repeat themselves: once a key is found in a block, the rest of the block is searched for the others alone.
    """

    def __init__(self, marks: Mapping[str, Sequence[str]]) -> None:
        self._marks = marks
        self._names = frozenset(marks)
        self._searches: dict[frozenset[str], AnchorSearch] = {}
        self.longest = self._search(self._names).active.longest

    def spans(self, data: bytes) -> Iterator[tuple[str, int, int]]:
        """The keys of each block: where the first literal of the key begins, and the end of the block."""
        for start in range(0, len(data), BLOCKS[0]):
            end = min(start + BLOCKS[0], len(data))
            yield from ((name, first, end) for name, first in self._in_block(data, start, end))

    def _in_block(self, data: bytes, at: int, end: int) -> Iterator[tuple[str, int]]:
        names = self._names
        while names:
            if names not in self._searches and len(self._searches) >= MAX_SEARCHES:
                yield from ((name, at) for name in names)  # perhaps: their readers then look at more text
                return
            first = next(self._search(names).positions(data, at, end), None)
            if first is None:
                return
            here = {name for name in names if any(data.startswith(mark.encode(), first) for mark in self._marks[name])}
            yield from ((name, first) for name in here)
            names, at = names - here, first

    def _search(self, names: frozenset[str]) -> AnchorSearch:
        if names not in self._searches:
            literals = dict.fromkeys(mark for name in self._marks if name in names for mark in self._marks[name])
            self._searches[names] = AnchorSearch(Anchors(tuple(literals)))
        return self._searches[names]
