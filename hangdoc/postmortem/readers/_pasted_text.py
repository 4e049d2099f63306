"""Text that somebody pasted: its lines, freed of what stands in front of them, and whose they are.

A ticket quotes (`> `), indents and fences; pdsh, clush, srun, mpirun and log collectors put the host or the rank before
each line, and mix the lines of many. Whatever stands before the line that opens a dump is taken for such a prefix:
lines with the same one belong together.
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

LINE = 16 * 2**10  # bytes of a line that are kept
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
_FILLER = re.compile(
    r"\b(?:stack|stacks|trace|dump|dumps|of|for|on|the|py-spy|process|worker|gpu\s*\d+|begin|start|output|txt|log|out|err)\b",
    re.IGNORECASE,
)
_DECORATION = re.compile(r"[\s=\-#*>\[\]():.,;|~+/$<_]+")
_RULER = re.compile(r"[-=*#]{4,}\s*")
_TITLE = re.compile(rf"\s*[=\-#*]{{2,}}\s*({_NAME})\s*[=\-#*]{{2,}}\s*|==> ({_NAME}) <==\s*")
_ALONE = re.compile(rf"({_NAME})\s*")
_ENDING = re.compile(r"\.(?:txt|log|out|err|json|dump)$")
_NOBODY = " \t>|"  # an indent or a quote: of nobody in particular
_MOST_BROKEN = 50  # documents that are none, after which a text is given up
_JSON_BEFORE = 200 * 2**10  # characters before a document that are looked at
_JSON_START = re.compile(r"^[ \t]*(?=(?:\[\s*\{|\{\s*\"))", re.MULTILINE)


def text_lines(source: Source, context: ReadContext) -> Iterator[str]:
    """The lines of a source without colours and line ends; long ones are cut. Stops at damage and says so."""
    done, left = 0, input_limits.most_lines(source.size)
    try:
        with source.open() as file:
            while raw := file.readline(LINE):
                done += len(raw)
                left -= 1
                if left < 0:
                    raise OSError("it has more lines than a file of its size can need")
                yield _text(raw)
                while raw and not raw.endswith(b"\n") and (raw := file.readline(LINE)):
                    done += len(raw)
                if done >= 2**20:
                    context.progress(done)
                    done = 0
    except OSError as error:
        context.warn(f"{source.name}: {error.strerror or error}; what came before is used")
    context.progress(done)


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace").rstrip("\r\n")
    if "\x1b" in text:
        text = _TERMINAL.sub("", text)
    if "\r" in text:  # a progress bar that was overwritten
        text = text.rpartition("\r")[2]
    return _TIME.sub("", text, count=1) if text[:2] == "20" else text


@dataclass(slots=True)
class OwnerHints:
    """Whose the next dump is, as lines before it and prefixes say. A rank holds for one dump, a host until another."""

    rank: int | None = None
    pid: int | None = None
    host: str | None = None
    fixed: ProcessRef = field(default_factory=ProcessRef)  # of the prefix: for every dump
    said: bool = False  # something was said since the last dump
    _before: tuple[str, str] = ("", "")

    def take(self, pid: int | None = None) -> ProcessRef:
        """Who the dump that begins here is of."""
        process = ProcessRef(
            self.fixed.rank if self.fixed.rank is not None else self.rank,
            self.fixed.host or self.host,
            pid if pid is not None else self.pid if self.pid is not None else self.fixed.pid,
        )
        self.rank = self.pid = None
        self.said = False
        return process

    def note(self, text: str) -> None:
        """A line between dumps; most are prose and say nothing that could be trusted."""
        before, self._before = self._before, (self._before[1], text)
        if len(text) > 200 or not text.strip():
            return
        if title := _TITLE.fullmatch(text):
            name = _ENDING.sub("", title[1] or title[2])
            if not _RANK.search(name) and _is_host(name):
                self.host, self.said = name, True
                return
        if _RULER.fullmatch(text) and _RULER.fullmatch(before[0]) and (alone := _ALONE.fullmatch(before[1])):
            self.host, self.said = alone[1], True  # as clush and dshbak write it
            return
        self._marks(text)

    def _marks(self, text: str) -> None:
        rest = _OTHER_RANK.sub(" ", text)
        rank, pid = _RANK.search(rest), _PID.search(rest)
        if rank is None and pid is None:
            return
        rest = _PID.sub(" ", _RANK.sub(" ", rest, count=1), count=1)
        host = _HOST.search(rest)
        rest = _FILLER.sub(" ", _HOST.sub(" ", rest, count=1))
        words = [
            word for word in _DECORATION.sub(" ", rest.replace("-", "\0")).replace("\0", "-").split() if word.strip("-")
        ]
        if len(words) > 1 or (words and host):
            return  # a sentence
        named = _ENDING.sub("", host[1] or host[2]) if host else next(filter(_is_host, words), None)
        self.rank = int(rank[1]) if rank else None
        self.pid = int(pid[1]) if pid else None
        self.host = named or self.host
        self.said = True


def _is_host(word: str) -> bool:
    """Whether a word alone may be the name of a host: `node-a`, `gpu07`, `10.0.0.3`."""
    return bool(_ALONE.fullmatch(word) and re.search(r"[\d.-]", word) and not _FILLER.fullmatch(word))


class ChannelParser(Protocol):
    """Takes the lines of one channel, one by one; finished pieces are kept until they are asked for."""

    pieces: list[Piece]

    def feed(self, text: str) -> bool:
        """Whether the line was of this format."""
        ...

    def end(self) -> None: ...


class ParserFactory(Protocol):
    def __call__(self, claim: OwnerHints, /) -> ChannelParser: ...


def parse_channels(texts: Iterable[str], opening: re.Pattern[str], make: ParserFactory) -> Iterator[Piece]:
    """The pieces in these lines. `opening`: how a line begins that opens a dump."""
    nobodys = OwnerHints()  # an indent or a quote is of nobody: what is said beside them holds within them
    claims = {"": nobodys}
    parsers: dict[str, ChannelParser] = {"": make(nobodys)}
    lengths: list[int] = []
    for text in texts:
        prefix, start = _prefix(text, opening, parsers, lengths)
        if prefix not in parsers:
            claims[prefix] = OwnerHints(fixed=_whose(prefix)) if prefix.strip(_NOBODY) else nobodys
            parsers[prefix] = make(claims[prefix])
            lengths = sorted({len(one) for one in parsers if one}, reverse=True)
        rest = text[start:]
        if not parsers[prefix].feed(rest):
            claims[prefix].note(rest)
        if parsers[prefix].pieces:
            yield from parsers[prefix].pieces
            parsers[prefix].pieces.clear()
    for parser in parsers.values():
        parser.end()
        yield from parser.pieces


def _prefix(
    text: str, opening: re.Pattern[str], known: dict[str, ChannelParser], lengths: list[int]
) -> tuple[str, int]:
    """What stands before the line proper, and where that begins."""
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
    """Whether each line may have this before it: an indent, a quote, a host, a rank."""
    return not text.strip(_NOBODY) or _whose(text) != ProcessRef()


def _whose(prefix: str) -> ProcessRef:
    """Whom a prefix names."""
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
    """Every document of a source, of which the first `most` bytes are read."""
    return (one for _, one in json_documents_with_context(source, context, most))


def json_documents_with_context(source: Source, context: ReadContext, most: int) -> Iterator[tuple[list[str], object]]:
    """The same, with the lines before each."""
    text = _joined_text(source, context, most)
    decoder, at, broken = json.JSONDecoder(), 0, 0
    while start := _JSON_START.search(text, at):
        before = text[max(at, start.start() - _JSON_BEFORE) : start.start()].splitlines()[-200:]
        try:
            with input_limits.limited_memory(input_limits.most_memory(source.size, len(text))):
                found, at = decoder.raw_decode(text, start.end())
        except MemoryError:
            context.warn(f"{source.name}: it takes more memory than a file of its size can need; read up to there")
            return
        except (ValueError, RecursionError):
            at, broken = start.end() + 1, broken + 1
            if broken == 1:
                context.warn(f"{source.name}: a part of it is cut off or damaged; the rest is used")
            if broken > _MOST_BROKEN:
                return
            continue
        yield before, found


def _joined_text(source: Source, context: ReadContext, most: int) -> str:
    found, size, most = [], 0, min(most, input_limits.most_whole(source.size))
    for line in text_lines(source, context):
        size += len(line) + 1
        if size > most:
            context.warn(f"{source.name}: only the first {most >> 20} MiB are read")
            break
        found.append(line)
    return "\n".join(found)
