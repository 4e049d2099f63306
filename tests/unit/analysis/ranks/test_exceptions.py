"""Ranks that stand still while they handle an exception."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hangdoc.analysis.ranks.exceptions import ExceptionFacts
from hangdoc.evidence import Frame
from hangdoc.evidence.stacks import Exceptions, HandledException
from tests.support.synthetic_evidence import At, Stage, in_c10d

SCRIPT = """\
def main(rows):
    try:
        train(rows)
    except ValueError:
        dist.barrier()
        train(rows)
    finally:
        dist.barrier()
        for row in rows:
            dist.barrier()

def train(rows):
    for row in rows:
        dist.all_reduce(read(row))

def flush():
    with Session():
        train(rows)

def __exit__(self, *args):
    dist.barrier()

def read(row):
    return row["x"]
"""
TRAINS = in_c10d("all_reduce", ("main", 3), ("train", 14))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


def handles(stage: Stage, kind: str, frames: Sequence[tuple[str, int]], *calls: tuple[str, int]) -> At:
    """A rank in a barrier that it called from the last of `calls`, and the exception that it handles."""
    path = [Frame(name, str(stage.path), line) for name, line in frames]
    handled = HandledException(101, kind, "x", (*path, Frame("decode", "/v/lib/python3.11/json/decoder.py", 9)))
    if len(frames) == 1:
        handled = HandledException(101, kind, "x", tuple(path))
    return in_c10d("barrier", *calls, records={"exceptions": Exceptions((handled,))})


def facts(stage: Stage, *ranks: At) -> Sequence[ExceptionFacts]:
    return [rank.exception for rank in stage.facts(ranks).ranks]


THROUGH = (("main", 3), ("train", 14), ("read", 24))


@pytest.mark.parametrize(
    ("kind", "frames", "calls", "part"),
    [
        ("ValueError", THROUGH, [("main", 5)], "except"),
        ("ValueError", THROUGH, [("main", 8)], "finally"),
        ("KeyError", THROUGH, [("main", 5)], "except"),  # raised further down
        ("KeyError", [("main", 3)], [("main", 8)], "finally"),
        ("KeyError", [("main", 3)], [("main", 5)], None),  # a default follows
        ("ValueError", [("flush", 18)], [("flush", 17), ("__exit__", 21)], "with"),
        ("ValueError", THROUGH, [("main", 6), ("train", 14)], None),  # it trains anew
        ("ValueError", THROUGH, [("main", 10)], None),
        ("ValueError", THROUGH, [("main", 3), ("train", 14)], None),  # in `try`: handled by a frame out of sight
        ("ValueError", [("elsewhere", 7)], [("main", 8)], None),
        ("_queue.Empty", THROUGH, [("main", 5)], None),
    ],
)
def test_part(
    stage: Stage, kind: str, frames: Sequence[tuple[str, int]], calls: Sequence[tuple[str, int]], part: str | None
) -> None:
    _, own = facts(stage, TRAINS, handles(stage, kind, frames, *calls))
    assert (own.part, own.apart, own.exhausted) == (part, True if part else None, False)
    if part and len(frames) > 1:
        assert (own.type, own.text, own.site) == (kind, "x", "read (job.py:24)")
        assert own.handler == f"main (job.py:{calls[0][1]})"


def test_the_end_of_an_iterator_is_no_failure(stage: Stage) -> None:
    _, own = facts(stage, TRAINS, handles(stage, "StopIteration", [("main", 3)], ("main", 5)))
    assert (own.part, own.exhausted) == (None, True)


def test_a_rank_that_is_there_without_an_exception(stage: Stage) -> None:
    """It came to the end of the `try`: the line shows no failure."""
    plain = in_c10d("barrier", ("main", 8))
    _, own, _ = facts(stage, plain, handles(stage, "ValueError", THROUGH, ("main", 8)), TRAINS)
    assert (own.part, own.apart) == ("finally", False)
