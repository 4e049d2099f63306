"""Batch sizes over several looks."""

from __future__ import annotations

import pytest

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


def with_batch(size: int) -> At:
    return At([("train_wrapped", 7)], variables={"train_wrapped": [tensor("x", size, 16)]}, state="R")


def test_a_batch_that_is_smaller_in_every_look(stage: Stage) -> None:
    facts = stage.facts(*[[with_batch(31), with_batch(32)]] * 6)
    assert [rank.batch.outlier for rank in facts.ranks] == [True, False]
    assert (facts.ranks[0].batch.size, facts.ranks[0].batch.size_others) == (31, 32)


def test_a_last_batch_is_not_a_smaller_batch(stage: Stage) -> None:
    looks = [[with_batch(32 if i % 4 else 10), with_batch(32)] for i in range(8)]
    assert not any(rank.batch.outlier for rank in stage.facts(*looks).ranks)
