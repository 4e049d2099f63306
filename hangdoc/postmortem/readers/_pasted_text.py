"""Pasted text: separates interleaved dumps by line prefix, finds the process of each, and finds JSON documents.

Tickets quote (`> `), indent and fence text; pdsh, clush, srun, mpirun and log collectors prefix each line with a host
or rank and interleave processes. The text before the opening line of a dump is taken as its prefix; lines with the same
prefix form one channel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.readers import ReadContext, Source
from hangdoc.system import input_limits

MAX_LINE = 16 * 2**10  # bytes kept per line
MOST_CHANNELS = 4096
MAX_PREFIX = 80  # characters

_TERMINAL = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
_TIME = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?[ \t]")
_NAME = r"[A-Za-z0-9][\w.\-]{0,252}"
_HOST_PREFIX = re.compile(rf"({_NAME}): ?$")
_RANK_PREFIX = re.compile(
    r"\[(?:rank|default)?(\d{1,6})\]:?\s*$|\[\d+,(\d{1,6})\]<std(?:out|err)>:?\s*$|^\s*(\d{1,6}): ?$"
)
_POD_PREFIX = re.compile(rf"\[pod/({_NAME})/[^\]]*\]\s*$|^({_NAME})\s+\|\s*$")
_RAY_PREFIX = re.compile(rf"pid=(\d{{1,9}})(?:, ip=({_NAME}))?\)\s*$")

_RANK = re.compile(r"(?<![A-Za-z_])(?:global[ _-]?)?rank[\s:=#_-]{0,4}(\d{1,6})(?!\d)", re.IGNORECASE)
_OTHER_RANK = re.compile(
    r"(?:local|node|group)[ _-]?rank[\s:=#_-]{0,4}\d+|world[ _-]?size[\s:=]{0,3}\d+", re.IGNORECASE
)
_PID = re.compile(r"(?<![A-Za-z_])(?:--)?pid[\s:=#_]{0,4}(\d{1,9})(?!\d)", re.IGNORECASE)
_HOST = re.compile(
    rf"(?<![A-Za-z_])(?:host(?:name)?|node|pod)(?:\s*[:=]\s*|\s+)({_NAME})|(?:\bon\s+|@\s*)({_NAME})", re.IGNORECASE
)
_FILLER_WORDS = re.compile(
    r"\b(?:stack|stacks|trace|dump|dumps|of|for|on|the|py-spy|process|worker|gpu\s*\d+|begin|start|output|txt|log|out|err)\b",
    re.IGNORECASE,
)
_DECORATION = re.compile(r"[\s=\-#*>\[\]():.,;|~+/$<_]+")
_RULER = re.compile(r"[-=*#]{4,}\s*")
_TITLE = re.compile(rf"\s*[=\-#*]{{2,}}\s*({_NAME})\s*[=\-#*]{{2,}}\s*|==> ({_NAME}) <==\s*")
_ALONE = re.compile(rf"({_NAME})\s*")
_ENDING = re.compile(r"\.(?:txt|log|out|err|json|dump)$")
_NEUTRAL = " \t>|"  # indents and quotes, which name no process
_MOST_BROKEN = 50  # invalid documents, then the rest of the text is ignored
_JSON_BEFORE = 200 * 2**10  # characters of context before a document
_JSON_START = re.compile(r"^[ \t]*(?=(?:\[\s*\{|\{\s*\"))", re.MULTILINE)


def text_lines(source: Source, context: ReadContext) -> Iterator[str]:
    """The lines of a source without colours and line ends, long ones cut. Warns and stops at damage."""
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
    return _TIME.sub("", text, count=1) if text[:2] == "20" else text


@dataclass(slots=True)
class OwnerHints:
    """Hints at the process of the next dump, from its prefix and the lines before it.

    A rank or PID holds for one dump, a host until the next host.
    """

    rank: int | None = None
    pid: int | None = None
    host: str | None = None
    fixed: ProcessRef = field(default_factory=ProcessRef)  # from the prefix: holds for every dump
    updated: bool = False  # a line since the last dump gave a hint
    _before: tuple[str, str] = ("", "")

    def take(self, pid: int | None = None) -> ProcessRef:
        """The process of the dump that begins here; consumes its rank and PID."""
        process = ProcessRef(
            self.fixed.rank if self.fixed.rank is not None else self.rank,
            self.fixed.host or self.host,
            pid if pid is not None else self.pid if self.pid is not None else self.fixed.pid,
        )
        self.rank = self.pid = None
        self.updated = False
        return process

    def observe(self, text: str) -> None:
        """Read a line between dumps; most are prose without a reliable hint."""
        before, self._before = self._before, (self._before[1], text)
        if len(text) > 200 or not text.strip():
            return
        if title := _TITLE.fullmatch(text):
            name = _ENDING.sub("", title[1] or title[2])
            if not _RANK.search(name) and _is_host(name):
                self.host, self.updated = name, True
                return
        if _RULER.fullmatch(text) and _RULER.fullmatch(before[0]) and (alone := _ALONE.fullmatch(before[1])):
            self.host, self.updated = alone[1], True  # header of clush and dshbak
            return
        self._observe_labels(text)

    def _observe_labels(self, text: str) -> None:
        rest = _OTHER_RANK.sub(" ", text)
        rank, pid = _RANK.search(rest), _PID.search(rest)
        if rank is None and pid is None:
            return
        rest = _PID.sub(" ", _RANK.sub(" ", rest, count=1), count=1)
        host = _HOST.search(rest)
        rest = _FILLER_WORDS.sub(" ", _HOST.sub(" ", rest, count=1))
        words = [
            word for word in _DECORATION.sub(" ", rest.replace("-", "\0")).replace("\0", "-").split() if word.strip("-")
        ]
        if len(words) > 1 or (words and host):
            return  # a sentence
        named = _ENDING.sub("", host[1] or host[2]) if host else next(filter(_is_host, words), None)
        self.rank = int(rank[1]) if rank else None
        self.pid = int(pid[1]) if pid else None
        self.host = named or self.host
        self.updated = True


def _is_host(word: str) -> bool:
    """True if a single word looks like a host: `node-a`, `gpu07`, `10.0.0.3`."""
    return bool(_ALONE.fullmatch(word) and re.search(r"[\d.-]", word) and not _FILLER_WORDS.fullmatch(word))


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
    unprefixed = OwnerHints()  # shared by indented and quoted text: hints outside a quote hold inside it
    hints_by_prefix = {"": unprefixed}
    parsers: dict[str, ChannelParser] = {"": factory(unprefixed)}
    lengths: list[int] = []
    for text in texts:
        prefix, start = _prefix(text, opening, parsers, lengths)
        if prefix not in parsers:
            named = prefix.strip(_NEUTRAL)
            hints_by_prefix[prefix] = OwnerHints(fixed=_process_in_prefix(prefix)) if named else unprefixed
            parsers[prefix] = factory(hints_by_prefix[prefix])
            lengths = sorted({len(one) for one in parsers if one}, reverse=True)
        rest = text[start:]
        if not parsers[prefix].feed(rest):
            hints_by_prefix[prefix].observe(rest)
        if parsers[prefix].pieces:
            yield from parsers[prefix].pieces
            parsers[prefix].pieces.clear()
    for parser in parsers.values():
        parser.end()
        yield from parser.pieces


def _prefix(
    text: str, opening: re.Pattern[str], known: dict[str, ChannelParser], lengths: list[int]
) -> tuple[str, int]:
    """The prefix of a line, and the offset of the text after it."""
    found = opening.search(text, 0, MAX_PREFIX + 400)
    if found and found.start() <= MAX_PREFIX:
        prefix = text[: found.start()]
        if prefix in known or (_is_prefix(prefix) and len(known) < MOST_CHANNELS):
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
    rest, rank, pid, host = prefix, None, None, None
    for _ in range(3):
        if ray := _RAY_PREFIX.search(rest):
            return ProcessRef(rank, ray[2] or host, int(ray[1]))
        if found := _RANK_PREFIX.search(rest):
            rank = int(next(group for group in found.groups() if group))
        elif (found := _POD_PREFIX.search(rest)) or (found := _HOST_PREFIX.search(rest)):
            host = next(group for group in found.groups() if group)
        else:
            break
        rest = rest[: found.start()]
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
            if broken > _MOST_BROKEN:
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
