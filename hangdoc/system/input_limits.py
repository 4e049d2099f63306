"""What reading a file may cost, by its size on disk: small files that unpack to much, or parse into much, are bombs.

Each bound has a floor, so that any honest small file passes, and grows with the file, so that any honest large one
does. Measured: recordings unpack to 10 to 60 times their size, Flight Recorder dumps to 70 times; a parsed dump takes
up to 24 times its bytes in memory.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MIB = 2**20
STREAM, STREAM_TIMES, STREAM_MOST = 256 * MIB, 1024, 64 * 2**30  # bytes of what is read piece by piece
WHOLE, WHOLE_TIMES, WHOLE_MOST = 16 * MIB, 128, 2**30  # bytes of what is parsed as a whole
LINES = 200_000  # lines that are looked at one by one; and one more for each byte of the file
MEMORY, MEMORY_TIMES, MEMORY_RATIO = 128 * MIB, 24, 1024  # bytes that parsing may take
SMALL = 100 * 2**10  # bytes of a file that may take no more than MEMORY


class InputTooLarge(ValueError):
    """Why an input is not parsed, as the end of a sentence."""


def most_streamed(packed: int) -> int:
    """Bytes that a file of so many bytes may unpack to where it is read piece by piece."""
    return min(STREAM + STREAM_TIMES * packed, STREAM_MOST)


def most_whole(packed: int) -> int:
    """Bytes that it may unpack to where all of it, or one line of it, is parsed at once."""
    return min(WHOLE + WHOLE_TIMES * packed, WHOLE_MOST)


def most_lines(packed: int) -> int:
    """Lines of it that may be looked at one by one, which takes up to 35 microseconds each."""
    return LINES + packed


def most_memory(packed: int, text: int) -> int:
    """Bytes of memory that parsing `text` bytes may take, which came of a file with `packed` bytes."""
    return MEMORY + min(MEMORY_TIMES * text, MEMORY_RATIO * max(0, packed - SMALL))


@contextmanager
def limited_memory(more: int) -> Iterator[None]:
    """MemoryError where this process asks for so many bytes on top of what it has now (RLIMIT_AS, getrlimit(2))."""
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
    """The value of a JSON text that came of a file with `packed` bytes; raises ValueError, also InputTooLarge."""
    try:
        with limited_memory(most_memory(packed, len(data))):
            return json.loads(data)
    except RecursionError:
        raise InputTooLarge("it is nested too deeply") from None
    except MemoryError:
        raise InputTooLarge("it takes more memory than a file of its size can need") from None
