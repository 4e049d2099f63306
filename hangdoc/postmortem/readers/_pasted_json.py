"""JSON documents in a text, one after another, whatever stands between them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from hangdoc.postmortem.readers import Notes, Source
from hangdoc.postmortem.readers import _pasted_text as paste
from hangdoc.system import input_limits

_BROKEN = 50  # documents that are none, after which a text is given up
_BEFORE = 200 * 2**10  # characters before a document that are looked at
_START = re.compile(r"^[ \t]*(?=(?:\[\s*\{|\{\s*\"))", re.MULTILINE)


def whole(source: Source, notes: Notes, most: int) -> Iterator[object]:
    """Every document of a source, of which the first `most` bytes are read."""
    return (one for _, one in documents(source, notes, most))


def documents(source: Source, notes: Notes, most: int) -> Iterator[tuple[list[str], object]]:
    """The same, with the lines before each."""
    text = _text(source, notes, most)
    decoder, at, broken = json.JSONDecoder(), 0, 0
    while start := _START.search(text, at):
        before = text[max(at, start.start() - _BEFORE) : start.start()].splitlines()[-200:]
        try:
            with input_limits.limited_memory(input_limits.most_memory(source.size, len(text))):
                found, at = decoder.raw_decode(text, start.end())
        except MemoryError:
            notes.problem(f"{source.name}: it takes more memory than a file of its size can need; read up to there")
            return
        except (ValueError, RecursionError):
            at, broken = start.end() + 1, broken + 1
            if broken == 1:
                notes.problem(f"{source.name}: a part of it is cut off or damaged; the rest is used")
            if broken > _BROKEN:
                return
            continue
        yield before, found


def _text(source: Source, notes: Notes, most: int) -> str:
    found, size, most = [], 0, min(most, input_limits.most_whole(source.size))
    for line in paste.lines(source, notes):
        size += len(line) + 1
        if size > most:
            notes.problem(f"{source.name}: only the first {most >> 20} MiB are read")
            break
        found.append(line)
    return "\n".join(found)
