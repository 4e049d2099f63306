"""zstd files that are still written, were cut off or are damaged."""

from __future__ import annotations

import io

import pytest
from zstandard import COMPRESSOBJ_FLUSH_BLOCK, ZstdCompressor, ZstdError

from hangdoc.system.zstd_reader import ZstdReader

CHUNK = 4096


def unfinished(*texts: bytes) -> bytes:
    """A frame without an end; each text was passed on at once."""
    packer = ZstdCompressor().compressobj()
    return b"".join(packer.compress(text) + packer.flush(COMPRESSOBJ_FLUSH_BLOCK) for text in texts)


def read(packed: bytes) -> bytes:
    reader, found = ZstdReader(io.BytesIO(packed)), bytearray()
    while chunk := reader.read1(CHUNK):
        assert len(chunk) <= CHUNK
        found += chunk
    return bytes(found)


@pytest.mark.parametrize("beyond", [-700, -1, 0, 1, 700])
def test_all_that_was_written_is_read(beyond: int) -> None:
    """Also the part of the last text that is beyond a whole chunk: zstandard's own reader loses it."""
    texts = [b"x" * 3 * CHUNK, b"y" * (CHUNK + beyond), b"z" * 1500]
    assert read(unfinished(*texts)) == b"".join(texts)


def test_frames_one_after_the_other() -> None:
    pack = ZstdCompressor().compress
    assert read(pack(b"first\n") + pack(b"") + unfinished(b"second\n")) == b"first\nsecond\n"


def test_what_precedes_damage_is_read_first() -> None:
    texts = [bytes(f"look {number * number}\n", "ascii") for number in range(500)]
    packed = unfinished(*texts)
    reader = ZstdReader(io.BytesIO(packed[: len(packed) // 2] + b"\xff" * 999))
    found = reader.read1(CHUNK * len(texts))
    assert b"".join(texts).startswith(found)
    assert len(found) > CHUNK // 2
    with pytest.raises(ZstdError):
        reader.read1(CHUNK)
