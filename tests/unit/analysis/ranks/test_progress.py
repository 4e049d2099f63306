"""Whether a rank goes through a loop, or round and round in one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.synthetic_evidence import At, Stage, number

SCRIPT = """\
def train(loader):
    for step in range(100):
        for row in range(8):
            work(row)

def search(items):
    while items:
        for at in range(64):
            if items[at]:
                break

def retry():
    tries = 0
    while True:
        tries += 1
        attempt()
"""


@pytest.mark.parametrize(
    ("function", "line", "values", "advanced"),
    [
        ("train", 4, [(1, 7), (2, 0), (2, 5)], True),  # the inner loop starts again in each step
        ("train", 4, [(1, 7), (1, 0), (1, 5)], False),
        ("search", 9, [(60,), (3,), (40,)], False),
        ("search", 9, [(3,), (20,), (40,)], True),
        ("retry", 16, [(1,), (2,), (3,)], False),  # it may try for ever
        ("train", 4, [(1, 1), (1, 1)], False),
    ],
)
def test_a_rank_advances_in_a_loop_that_comes_to_an_end(
    function: str, line: int, values: Sequence[tuple[int, ...]], advanced: bool, tmp_path: Path
) -> None:
    names = {"train": ("step", "row"), "search": ("at",), "retry": ("tries",)}[function]
    stage = Stage(SCRIPT, tmp_path)
    looks = [
        [At([(function, line)], variables={function: [number(*one) for one in zip(names, look, strict=True)]})]
        for look in values
    ]
    assert stage.facts(*looks).ranks[0].progress.advanced is advanced
