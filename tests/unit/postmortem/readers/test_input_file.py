"""Input files: compressed, damaged, truncated."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import zstandard

from hangdoc.postmortem.readers import ReadContext, _input_file, load_readers
from hangdoc.postmortem.readers._input_file import find_sources
from hangdoc.postmortem.report import IdentifiedSource, _read_evidence
from hangdoc.system import input_limits
from tests.support.samples import source

CONTENT = b"".join(b"line %d\n" % number for number in range(100_000))


def pack(kind: str) -> bytes:
    return gzip.compress(CONTENT) if kind == "gzip" else zstandard.compress(CONTENT)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_decompression(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(pack(kind))
    assert source(path).head == CONTENT[: _input_file.HEAD_BYTES]
    with source(path).open() as file:
        assert file.read() == CONTENT


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_data_before_damage_is_read(kind: str, tmp_path: Path) -> None:
    path, packed = tmp_path / "x", bytearray(pack(kind))
    middle = len(packed) * 3 // 4
    packed[middle : middle + 2000] = b"\xff" * 2000
    path.write_bytes(packed)
    assert CONTENT.startswith(source(path).head)
    assert source(path).head
    lines: list[bytes] = []
    with source(path).open() as file, pytest.raises(OSError, match="damaged archive"):
        lines.extend(iter(file.readline, b""))
    assert CONTENT.startswith(b"".join(lines)[: len(CONTENT) // 2])
    assert len(lines) > 40_000
    with source(path).open() as file:
        assert len(file.read(2**30)) >= len(b"".join(lines))
        with pytest.raises(OSError, match="damaged archive"):
            file.read(1)


def test_decompression_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_limits, "STREAM", 2**20)
    monkeypatch.setattr(input_limits, "STREAM_TIMES", 64)
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(bytes(2**22)))
    with source(path).open() as file, pytest.raises(OSError, match="decompresses to more than"):
        list(iter(lambda: file.read(2**16), b""))


def test_heads_are_dropped_after_reading(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.log").write_bytes(pack("zstd"))
    context, read = ReadContext(lambda text: None), list[IdentifiedSource]()
    list(_read_evidence(find_sources([tmp_path], print), load_readers(), context, read))
    assert [one.format for one in read] == ["training log"] * 3
    assert not any("head" in vars(one.source) for one in read)
