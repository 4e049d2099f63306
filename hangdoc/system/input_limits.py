"""Limits on the cost of reading a file, by its size on disk: a small file that unpacks or parses to much is a bomb.

Each limit has a floor that every genuine small file meets, and grows with the size of the file. Measured: recordings
unpack to 10 to 60 times their size, Flight Recorder dumps to 70 times; a parsed dump takes up to 24 times its size in
memory.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MIB = 2**20
STREAM, STREAM_TIMES, MAX_STREAM = 256 * MIB, 1024, 64 * 2**30  # unpacked bytes, read in chunks
WHOLE, WHOLE_TIMES, MAX_WHOLE = 16 * MIB, 128, 2**30  # unpacked bytes, parsed as a whole
LINES = 200_000  # lines examined one by one, plus one for each byte of the file
MEMORY, MEMORY_TIMES, MEMORY_RATIO = 128 * MIB, 24, 1024  # bytes of memory for parsing
SMALL = 100 * 2**10  # bytes; the file size up to which parsing gets no more than MEMORY


class InputTooLarge(ValueError):
    """An input over a limit; the text is the end of a sentence."""


def most_streamed(packed: int) -> int:
    """Unpacked bytes allowed for a file of `packed` bytes that is read in chunks."""
    return min(STREAM + STREAM_TIMES * packed, MAX_STREAM)


def most_whole(packed: int) -> int:
    """Unpacked bytes allowed if the file, or one line of it, is parsed at once."""
    return min(WHOLE + WHOLE_TIMES * packed, MAX_WHOLE)


def most_lines(packed: int) -> int:
    """Lines allowed for line-by-line reading, at up to 35 microseconds each."""
    return LINES + packed


def most_memory(packed: int, text: int) -> int:
    """Bytes of memory allowed for parsing `text` bytes from a file of `packed` bytes."""
    return MEMORY + min(MEMORY_TIMES * text, MEMORY_RATIO * max(0, packed - SMALL))


@contextmanager
def limited_memory(more: int) -> Iterator[None]:
    """Raise MemoryError if this process allocates `more` bytes on top of its current size (RLIMIT_AS, getrlimit(2))."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    limit = now + more
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def parsed_json(data: bytes | str, packed: int) -> Any:
    """The value of a JSON text from a file of `packed` bytes. Raises ValueError, in particular InputTooLarge."""
    try:
        with limited_memory(most_memory(packed, len(data))):
            return json.loads(data)
    except RecursionError:
        raise InputTooLarge("it is nested too deeply") from None
    except MemoryError:
        raise InputTooLarge("it takes more memory than a file of its size can need") from None
