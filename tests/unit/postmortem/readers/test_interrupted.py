"""Tracebacks of ranks that a person interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc.postmortem.readers import ReadContext
from hangdoc.postmortem.readers._input_file import Source
from hangdoc.postmortem.readers.interrupted import READER

ONE = """{p}Traceback (most recent call last):
{p}  File "/w/t.py", line 90, in <module>
{p}    main()
{p}  File "/w/t.py", line {line}, in {function}
{p}    {function}()
{p}  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2501, in all_reduce
{p}    work.wait()
{p}{end}
"""


def stood(text: str, folder: Path) -> dict[int | None, str]:
    path = folder / "stdin"
    path.write_text(text)
    source = Source(path, "stdin", path.stat().st_size)
    if not READER.recognises(source):
        return {}
    return {
        piece.process.rank: piece.record.threads[0].frames[1].function
        for piece in READER.read(source, ReadContext(print))
    }


def two(first: str, second: str, end: str = "KeyboardInterrupt") -> str:
    return ONE.format(p=first, line=10, function="step", end=end) + ONE.format(
        p=second, line=20, function="save", end=end
    )


@pytest.mark.parametrize(
    "text",
    [
        "it hangs\n^C" + two("[rank0]: ", "[rank1]: "),
        "stuck\nrank 0\n"
        + ONE.format(p="", line=10, function="step", end="KeyboardInterrupt")
        + "rank 1\n"
        + ONE.format(p="", line=20, function="save", end="KeyboardInterrupt"),
        "freezes\nProcess SpawnProcess-1:\n"
        + ONE.format(p="", line=10, function="step", end="KeyboardInterrupt")
        + "Process SpawnProcess-2:\n"
        + ONE.format(p="", line=20, function="save", end="KeyboardInterrupt"),
    ],
)
def test_each_rank_stood_where_its_traceback_ends(text: str, tmp_path: Path) -> None:
    assert stood(text, tmp_path) == {0: "step", 1: "save"}


@pytest.mark.parametrize(
    "text",
    [
        "step 9 loss 1.0\n" + two("[rank0]: ", "[rank1]: "),
        "it hangs\n" + two("[rank0]: ", "[rank1]: ", "ValueError: x"),
        "it hangs\n" + two("[rank0]: ", "[rank1]: ").replace("torch/distributed/", "json/"),
        "it hangs\n" + two("[rank0]: ", "[rank1]: ").replace("20", "10").replace("save", "step"),
        "it hangs\n" + ONE.format(p="[rank0]: ", line=10, function="step", end="KeyboardInterrupt"),
    ],
)
def test_an_interrupt_without_a_hang_says_nothing(text: str, tmp_path: Path) -> None:
    assert not stood(text, tmp_path)
