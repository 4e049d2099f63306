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
    """Also what is beyond the last whole chunk: zstandard's own reader loses it."""
    last = 1500
    texts = [b"look %d\n" % number + b"x" * 900 for number in range(20)]
    texts.append(b"y" * (3 * CHUNK + beyond - sum(map(len, texts[:12]))))
    texts = [*texts[:12], texts[-1], b"z" * last]
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
