"""Batch sizes over several looks."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hangdoc.analysis.compute.batch_size import SAME
from tests.support.synthetic_evidence import At, Stage, tensor

SCRIPT = """\
def train(model, x):
    loss = model.module(x).sum()
    loss.backward()
    dist.all_reduce(metric)

def train_wrapped(model, x):
    loss = model(x).sum()
    loss.backward()
    model.module.save("x")
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


def with_batch(size: int, name: str = "x") -> At:
    return At([("train_wrapped", 7)], variables={"train_wrapped": [tensor(name, size, 16)]}, state="R")


def test_a_batch_that_is_smaller_in_every_look(stage: Stage) -> None:
    facts = stage.facts(*[[with_batch(31), with_batch(32)]] * 6)
    assert [rank.batch.outlier for rank in facts.ranks] == [True, False]
    assert (facts.ranks[0].batch.size, facts.ranks[0].batch.size_others) == (31, 32)
    assert facts.ranks[0].batch.tied  # of two ranks, nothing shows which has the usual size


@pytest.mark.parametrize(("size", "outlier"), [(853, False), (800, True)])
def test_shards_that_differ_by_a_sample_are_no_batches(stage: Stage, size: int, outlier: bool) -> None:
    facts = stage.facts(*[[with_batch(854), with_batch(854), with_batch(size)]] * 6)
    assert [rank.batch.outlier for rank in facts.ranks] == [False, False, outlier]
    assert not any(rank.batch.tied for rank in facts.ranks)


@pytest.mark.parametrize(("renewed", "outlier"), [(False, None), (True, True)])
def test_a_tensor_that_stays_is_no_batch(stage: Stage, renewed: bool, outlier: bool | None) -> None:
    """The part of the data that a rank has may be of any size."""

    def held(size: int, look: int) -> At:
        part = replace(tensor("x", size, 16), address=4096 + (look % 2 if renewed else 0))
        return At([("train_wrapped", 7)], variables={"train_wrapped": [part]}, state="R")

    facts = stage.facts(*[[held(5200, look), held(6600, look)] for look in range(6)])
    assert facts.ranks[0].batch.outlier is outlier


def test_a_last_batch_is_not_a_smaller_batch(stage: Stage) -> None:
    looks = [[with_batch(32 if i % 4 else 10), with_batch(32)] for i in range(8)]
    assert not any(rank.batch.outlier for rank in stage.facts(*looks).ranks)


def test_variables_that_were_each_seen_rarely_agree(stage: Stage) -> None:
    """On a busy host a look takes seconds, and finds now one variable of the batch and now another."""
    looks = [[with_batch(31, name), with_batch(32, name)] for name in ("x", "x", "noisy", "noisy")]
    facts = stage.facts(*looks)
    assert [rank.batch.outlier for rank in facts.ranks] == [True, False]
    assert facts.ranks[0].batch.agreeing == 1


@pytest.mark.parametrize(
    ("looks", "undecided"),
    [
        ([(31, 32)] * 2, True),
        ([(31, 32)] * 6, False),  # decided
        ([(32, 32)] * 2, False),  # equal so far
        ([(31, 32), (40, 32)], False),  # its size varies
        ([(32, 32)] * 6 + [(10, 32)], False),
    ],
)
def test_a_difference_in_too_few_looks(stage: Stage, looks: list[tuple[int, int]], undecided: bool) -> None:
    facts = stage.facts(*[[with_batch(size) for size in sizes] for sizes in looks])
    assert facts.ranks[0].batch.undecided is undecided
    assert not facts.ranks[1].batch.undecided


def test_a_variable_seen_often_outweighs_one_seen_rarely(stage: Stage) -> None:
    looks = [[with_batch(32), with_batch(32)]] * 6 + [[with_batch(31, "part"), with_batch(32, "part")]]
    assert [rank.batch for rank in stage.facts(*looks).ranks] == [SAME, SAME]
