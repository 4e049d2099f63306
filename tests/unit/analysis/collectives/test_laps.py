"""Laps of a loop without its collective, from synthetic looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc.analysis.collectives.laps import LapsFacts
from tests.support.synthetic_evidence import C10D, At, Stage, in_c10d, number

TRAIN = """\
def train(batches):
    dropped = 0
    for index, batch in enumerate(batches):
        try:
            loss = step(batch)
            dist.all_reduce(loss)
        except RuntimeError:
            dropped += 1
            continue
"""
ACCUMULATING = """\
def train(batches):
    dropped = 0
    for index, batch in enumerate(batches):
        loss = step(batch)
        loss.backward()
        if (index + 1) % 8 == 0:
            dist.all_reduce(loss)
"""
UNSYNCED = """\
def train(batches):
    dropped = 0
    for index, batch in enumerate(batches):
        with model.no_sync():
            loss = step(batch)
        loss.backward()
        dist.all_reduce(loss)
"""
LOOKS = 8


def laps(
    folder: Path, script: str, *lines: int, meets: int = 6, counts: bool = True, peers_move: bool = False
) -> LapsFacts:
    """Facts of rank 0, which is at these lines in turn while ranks 1 and 2 stand in the collective at line `meets`."""
    stage = Stage(script, folder)
    looks = []
    for look in range(LOOKS):
        own = {"train": [number("index", look if counts else 7)]}
        peer = {"train": [number("index", 3)]}
        other = (
            At([("train", 5)]) if peers_move and look == 4 else in_c10d("all_reduce", ("train", meets), variables=peer)
        )
        runner = At([("train", lines[look % len(lines)])], variables=own)
        looks.append([runner, other, in_c10d("all_reduce", ("train", meets), variables=peer)])
    return stage.facts(*looks).ranks[0].laps


def test_laps_are_counted_by_the_numbers_of_the_loop(tmp_path: Path) -> None:
    assert laps(tmp_path, TRAIN, 5) == LapsFacts(
        LOOKS - 1, "for index, batch in enumerate(batches):", "train (job.py:3)"
    )


def test_laps_are_counted_by_returns_to_a_line_further_up(tmp_path: Path) -> None:
    assert laps(tmp_path, TRAIN, 5, 8, counts=False).count == LOOKS / 2 - 1


def test_a_rank_that_stays_in_one_lap_makes_none(tmp_path: Path) -> None:
    assert laps(tmp_path, TRAIN, 5, counts=False).count == 0


@pytest.mark.parametrize(("script", "meets"), [(ACCUMULATING, 7), (UNSYNCED, 7)])
def test_laps_prove_nothing_where_the_source_meets_in_some_of_them(tmp_path: Path, script: str, meets: int) -> None:
    assert laps(tmp_path, script, 4, meets=meets) == LapsFacts()


def test_peers_that_move_meet_somebody(tmp_path: Path) -> None:
    assert laps(tmp_path, TRAIN, 5, peers_move=True) == LapsFacts()


@pytest.mark.parametrize(
    ("file", "counted"),
    [
        ("torch/nn/parallel/distributed.py", True),
        ("accelerate/accelerator.py", True),
        ("torch/distributed/algorithms/model_averaging/averagers.py", False),
        ("deepspeed/runtime/engine.py", False),
    ],
)
def test_a_library_may_make_a_collective_in_some_calls_only(tmp_path: Path, file: str, counted: bool) -> None:
    stage = Stage(TRAIN, tmp_path)
    peer = At([("train", 6)], [("all_reduce", C10D), ("step", f"/v/lib/python3.11/site-packages/{file}")])
    looks = [[At([("train", 5)], variables={"train": [number("index", look)]}), peer, peer] for look in range(LOOKS)]
    assert (stage.facts(*looks).ranks[0].laps.count == LOOKS - 1) is counted
