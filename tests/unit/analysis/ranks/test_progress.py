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
        ("search", 9, [(3,), (), (20,), (40,)], True),  # as in a generator, which is not on the stack in between
        ("search", 9, [(3,), (40,), (), (2,), (20,)], False),  # it was outside in between, and began again
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
        if look
        else [At([("search", 7)])]
        for look in values
    ]
    assert stage.facts(*looks).ranks[0].progress.advanced is advanced


@pytest.mark.parametrize(
    ("lines", "every_s", "pause_s"),
    [
        ((3, 4, 3, 4), 30.0, 0.0),  # looks at a calm job are far apart, and each finds it elsewhere
        ((3, 4, 4, 4, 4, 3), 1.0, 3.0),
        ((3, 4, 4, 4), 1.0, 0.0),  # the pause that goes on has not ended
        ((3, 3, 3), 1.0, None),
    ],
)
def test_a_pause_is_a_time_in_which_a_rank_was_seen_to_stand(
    lines: Sequence[int], every_s: float, pause_s: float | None, tmp_path: Path
) -> None:
    stage = Stage(SCRIPT, tmp_path)
    looks = [[At([("train", line)])] for line in lines]
    assert stage.facts(*looks, every_s=every_s).ranks[0].progress.pause_s == pause_s
