"""The parts of a long text that each reader gets."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import pytest

from hangdoc.postmortem.readers._input_file import Source
from hangdoc.postmortem.readers._text_source import BEFORE, BEHIND, MAX_SEARCHES, marked_parts

MARKS = {"one": ("alpha", "beta"), "two": ("gamma",), "three": ("delta",), "never": ("omega",)}
FILL = b"an ordinary line of a log\n"


def parts(path: Path, text: bytes, marks: Mapping[str, tuple[str, ...]]) -> dict[str, bytes]:
    path.write_bytes(text)
    found = {}
    for name, part in marked_parts(Source(path, path.name, len(text)), marks).items():
        with part.open() as file:
            found[name] = file.read()
    return found


@pytest.mark.parametrize("before", [0, 1_000, 400_000])
@pytest.mark.parametrize("between", [0, 10, 300_000])
def test_a_part_reaches_from_the_first_literal_to_the_last(tmp_path: Path, before: int, between: int) -> None:
    ahead, amid = FILL * before, FILL * between
    text = ahead + b"x beta 1 gamma\n" + amid + b"alpha 2\ndelta\n" + FILL * 200_000 + b"delta\n"
    found = parts(tmp_path / "a.log", text, MARKS)
    assert found.keys() == {"one", "two", "three"}
    for part, (first, last) in {
        "one": (b"beta", b"alpha"),
        "two": (b"gamma", b"gamma"),
        "three": (b"delta",) * 2,
    }.items():
        start, end = max(0, text.index(first) - BEFORE), text.rindex(last) + len(last)
        assert text[start:].startswith(found[part][:100])
        assert end <= start + len(found[part]) <= end + BEHIND + 2**18
        assert found[part] in text


def test_many_mixtures_of_literals_lose_none(tmp_path: Path) -> None:
    marks = {f"m{n}": (f"mark{n}.",) for n in range(12)}
    mixtures = list(combinations(range(12), 3))
    assert len(mixtures) > 2 * MAX_SEARCHES
    blocks = ("".join(f"mark{n}.\n" for n in mixture).encode() + FILL * 6_000 for mixture in mixtures)
    text = FILL * 1_000 + b"".join(blocks)
    for name, part in parts(tmp_path / "a.log", text, marks).items():
        mark = marks[name][0].encode()
        assert part.count(mark) == text.count(mark)
