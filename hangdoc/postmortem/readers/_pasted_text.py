"""Pasted text: separates interleaved dumps by line prefix, finds the process of each, and finds JSON documents.

Tickets quote (`> `), indent and fence text; pdsh, clush, srun, mpirun and log collectors prefix each line with a host
or rank and interleave processes. The text before the opening line of a dump is taken as its prefix; lines with the same
prefix form one channel.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator
from typing import Protocol

from msgspec.structs import replace

from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.postmortem.readers._host_names import NAME
from hangdoc.postmortem.readers._owner_hints import LOCAL_PIDS, MAX_COMPANIONS, OwnerHints
from hangdoc.postmortem.readers._placement.nodes import NodeContext
from hangdoc.postmortem.readers._text_source import text_source
from hangdoc.system import input_limits

MAX_LINE = 16 * 2**10  # bytes kept per line
MAX_CHANNELS = 4096
MAX_PREFIX = 80  # characters

_TERMINAL = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
_TIME = re.compile(
    r"^(\[pod/[^\]\n]{1,200}\] )?(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]{0,12}(?:Z"
    r"|[+-]\d\d:?\d\d)?\]?(?: std(?:out|err) [FP])?"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,100} [\w./-]{1,60}\[\d{1,9}\]:)(?:[ \t]|$)"
)
_HOST_PREFIX = re.compile(rf"({NAME}) kernel: ?$|(?<![A-Za-z0-9])(?!kernel:)({NAME}): ?$")
_LOCAL_PREFIX = re.compile(r"\[(?:(?!rank)[a-z]{1,24})?(\d{1,4})\]:\s*$")  # torchrun --tee: role and local rank
_RANK_PREFIX = re.compile(
    r"\[(?:rank|RANK )?(\d{1,6})\]:?\s*$|\[\d+,(\d{1,6})\]<std(?:out|err)>:?\s*$|^\s*(\d{1,6}): ?$"
)
_POD_PREFIX = re.compile(rf"\[pod/({NAME})/[^\]]*\]\s*$|^({NAME})\s+\|\s*$")
_RAY_PREFIX = re.compile(rf"pid=(\d{{1,9}})(?:, ip=({NAME}))?\)\s*$")

_NEUTRAL = " \t>|"  # indents and quotes, which name no process
_MAX_BROKEN = 50  # invalid documents, then the rest of the text is ignored
_JSON_BEFORE = 200 * 2**10  # characters of context before a document
_JSON_START = re.compile(r"^[ \t]*(?=(?:\[\s*\{|\{\s*\"))", re.MULTILINE)


def text_lines(source: Source, context: ReadContext) -> Iterator[str]:
    """The cleaned lines of a source, without times, long ones cut. Warns and stops at damage."""
    source = text_source(source, context)
    done, left = 0, input_limits.most_lines(source.size)
    try:
        with source.open() as file:
            while raw := file.readline(MAX_LINE):
                done += len(raw)
                left -= 1
                if left < 0:
                    raise OSError("it has more lines than a file of its size can hold")
                yield _text(raw)
                while raw and not raw.endswith(b"\n") and (raw := file.readline(MAX_LINE)):
                    done += len(raw)
                if done >= 2**20:
                    context.progress(done)
                    done = 0
    except OSError as error:
        context.warn(f"{source.name}: {error.strerror or error}; the text before that is used")
    context.progress(done)


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace").rstrip("\r\n")
    if "\x1b" in text:
        text = _TERMINAL.sub("", text)
    if "\r" in text:  # an overwritten progress bar
        text = text.rpartition("\r")[2]
    return without_time(text)


def without_time(text: str) -> str:
    """A line without the time at its beginning."""
    return _TIME.sub(lambda found: found[1] or "", text, count=1) if ":" in text[:40] else text


def opens(source: Source, opening: re.Pattern[str]) -> bool:
    """True if a line in the head of a source opens a dump, behind a prefix or not."""
    return re.search(rf"^.{{0,{MAX_PREFIX}}}?(?:{opening.pattern})", source.head_text, re.MULTILINE) is not None


class ChannelParser(Protocol):
    """Parses the lines of one channel; finished pieces collect in `pieces`."""

    pieces: list[Piece]

    def feed(self, text: str) -> bool:
        """True if the line belongs to this format."""
        ...

    def end(self) -> None: ...


class ParserFactory(Protocol):
    def __call__(self, hints: OwnerHints, /) -> ChannelParser: ...


def parse_channels(texts: Iterable[str], opening: re.Pattern[str], factory: ParserFactory) -> Iterator[Piece]:
    """Parse interleaved channels. `opening` matches the start of the line that opens a dump."""
    nodes = NodeContext()
    unprefixed = OwnerHints(nodes=nodes.at)  # shared by indented and quoted text: hints outside a quote hold inside it
    hints_by_prefix = {"": unprefixed}
    parsers: dict[str, ChannelParser] = {"": factory(unprefixed)}
    owners = _Owners(unprefixed)
    lengths: list[int] = []
    for text in texts:
        nodes.feed(text)
        prefix, start = _prefix(text, opening, parsers, lengths)
        if prefix not in parsers:
            named = prefix.strip(_NEUTRAL)
            hints_by_prefix[prefix] = (
                OwnerHints(fixed=_process_in_prefix(prefix), nodes=nodes.at) if named else unprefixed
            )
            parsers[prefix] = factory(hints_by_prefix[prefix])
            lengths = sorted({len(one) for one in parsers if one}, reverse=True)
        if (fixed := hints_by_prefix[prefix].fixed).local is not None:
            hints_by_prefix[prefix].fixed = replace(fixed, node=nodes.at(fixed.local))
        rest = text[start:]
        if not parsers[prefix].feed(rest):
            hints_by_prefix[prefix].observe(rest)
        if parsers[prefix].pieces:
            yield from owners.of(parsers[prefix].pieces, hints_by_prefix[prefix])
            parsers[prefix].pieces.clear()
    for prefix, parser in parsers.items():
        parser.end()
        yield from owners.of(parser.pieces, hints_by_prefix[prefix])
    yield from owners.rest()


@dataclasses.dataclass(slots=True)
class _Owners:
    """The pieces; those of a rank whose stack other ranks share, by a heading or a sentence, once a rank."""

    unprefixed: OwnerHints
    _newest: dict[int, Piece] = dataclasses.field(default_factory=dict)  # by rank
    _by_pid: dict[int, Piece] = dataclasses.field(default_factory=dict)
    _shared: dict[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)  # rank -> ranks with its stack

    def of(self, pieces: Iterable[Piece], hints: OwnerHints) -> Iterator[Piece]:
        for piece in pieces:
            yield piece
            number = _number_of(piece.process)
            if piece.process.pid is not None and len(self._by_pid) < MAX_COMPANIONS:
                self._by_pid[piece.process.pid] = piece
            self._shared = {**self.unprefixed.companions, **hints.companions}
            if number is not None:
                self._newest[number] = piece
                for rank in self._shared.get(number, ()):
                    self._newest[rank] = _copied(piece, ProcessRef(rank, piece.process.host))
                    yield self._newest[rank]
        self._shared = {**self.unprefixed.companions, **hints.companions}

    def rest(self) -> Iterator[Piece]:
        """For the ranks that the text names after the stack that they share; they have no stack of their own."""
        for number, ranks in self._shared.items():
            for rank in ranks if number in self._newest else ():
                if rank not in self._newest:
                    yield _copied(self._newest[number], ProcessRef(rank, self._newest[number].process.host))
        for pid, other in self.unprefixed.relations.twins.items():
            if pid not in self._by_pid and (piece := self._by_pid.get(other)) is not None:
                yield _copied(piece, ProcessRef(self.unprefixed.listed.get(pid), piece.process.host, pid))


def _copied(piece: Piece, process: ProcessRef) -> Piece:
    """The same stack on another process."""
    record = piece.record
    if isinstance(getattr(record, "process", None), ProcessRef):
        own = {"command": ""} if hasattr(record, "command") else {}  # what it was started with is not said
        record = dataclasses.replace(record, process=process, **own)
    return replace(piece, process=process, record=record)


def _number_of(process: ProcessRef) -> int | None:
    """Its rank, or else its number on its host."""
    return process.local if process.rank is None else process.rank


def _prefix(
    text: str, opening: re.Pattern[str], known: dict[str, ChannelParser], lengths: list[int]
) -> tuple[str, int]:
    """The prefix of a line, and the offset of the text after it."""
    found = opening.search(text, 0, MAX_PREFIX + 400)
    if found and found.start() <= MAX_PREFIX:
        prefix = text[: found.start()]
        if prefix in known or (_is_prefix(prefix) and len(known) < MAX_CHANNELS):
            return prefix, found.start()
        return "", found.start()
    for length in lengths:
        if text[:length] in known:
            return text[:length], length
    return "", 0


def _is_prefix(text: str) -> bool:
    """True if this can prefix lines: an indent, a quote, a host or a rank."""
    return not text.strip(_NEUTRAL) or _process_in_prefix(text) != ProcessRef()


def _process_in_prefix(prefix: str) -> ProcessRef:
    """The process that a prefix names."""
    rest, rank, pid, host, local = prefix, None, None, None, None
    for _ in range(3):
        if ray := _RAY_PREFIX.search(rest):
            return ProcessRef(rank, ray[2] or host, int(ray[1]))
        if rank is None and (found := _LOCAL_PREFIX.search(rest)):
            local = int(found[1])
        elif found := _RANK_PREFIX.search(rest):
            rank = int(next(group for group in found.groups() if group))
        elif (found := _POD_PREFIX.search(rest)) or (found := _HOST_PREFIX.search(rest)):
            host = next(group for group in found.groups() if group)
        else:
            break
        rest = rest[: found.start()]
    if rank is None and local is not None:
        return ProcessRef(None, host, LOCAL_PIDS - local if pid is None else pid, local=local)
    return ProcessRef(rank, host, pid)


# --- JSON documents in a text ----------------------------------------------------------------------


def json_documents(source: Source, context: ReadContext, most: int) -> Iterator[object]:
    """The JSON documents in the first `most` bytes of a source."""
    return (one for _, one in json_documents_with_context(source, context, most))


def json_documents_with_context(source: Source, context: ReadContext, most: int) -> Iterator[tuple[list[str], object]]:
    """The JSON documents in the first `most` bytes of a source, each with the lines before it."""
    text = _joined_text(source, context, most)
    decoder, at, broken = json.JSONDecoder(), 0, 0
    while start := _JSON_START.search(text, at):
        before = text[max(at, start.start() - _JSON_BEFORE) : start.start()].splitlines()[-200:]
        try:
            with input_limits.limited_memory(input_limits.most_memory(source.size, len(text))):
                found, at = decoder.raw_decode(text, start.end())
        except MemoryError:
            context.warn(f"{source.name}: it needs more memory than a file of its size should; read up to there")
            return
        except (ValueError, RecursionError):
            at, broken = start.end() + 1, broken + 1
            if broken == 1:
                context.warn(f"{source.name}: part of it is truncated or damaged; the rest is used")
            if broken > _MAX_BROKEN:
                return
            continue
        yield before, found


def _joined_text(source: Source, context: ReadContext, most: int) -> str:
    found, size, most = [], 0, min(most, input_limits.most_whole(source.size))
    for line in text_lines(source, context):
        size += len(line) + 1
        if size > most:
            context.warn(f"{source.name}: only the first {most >> 20} MiB were read")
            break
        found.append(line)
    return "\n".join(found)


__all__ = [
    "ChannelParser", "OwnerHints", "ParserFactory", "json_documents", "json_documents_with_context", "opens",
    "parse_channels", "text_lines",
]  # fmt: skip
