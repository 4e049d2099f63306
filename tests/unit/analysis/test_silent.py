"""Payloads, batch sizes and gradient synchronisation over several looks."""

from __future__ import annotations

import pytest

from hangdoc.evidence import Variable
from tests.support.synthetic_evidence import BACKWARD, At, Stage, in_c10d, tensor

SCRIPT = """\
def train(model, x):
    loss = model.module(x).sum()
    loss.backward()
    dist.all_reduce(metric)

def train_wrapped(model, x):
    loss = model(x).sum()
    loss.backward()
    model.module.save("x")

def average(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


def reduce(*shape: int, dtype: str = "float32") -> At:
    return in_c10d("all_reduce", ("train", 4), variables={"all_reduce": [tensor("tensor", *shape, dtype=dtype)]})


@pytest.mark.parametrize(
    ("ranks", "mismatch", "odd"),
    [
        ([reduce(8), reduce(8), reduce(7)], True, [2]),
        ([reduce(8), reduce(8, dtype="float16"), reduce(8)], True, [1]),
        ([reduce(8), reduce(2, 4), reduce(8)], False, []),  # the same number of elements
    ],
)
def test_payloads_of_ranks_in_one_call(stage: Stage, ranks: list[At], mismatch: bool, odd: list[int]) -> None:
    facts = stage.facts(ranks)
    assert facts.job.payload.mismatch is mismatch
    assert [rank.rank for rank in facts.ranks if rank.payload.differs] == odd


def test_one_payload_alone_is_compared_with_nothing(stage: Stage) -> None:
    assert stage.facts([reduce(8), At([("train", 3)])]).job.payload.mismatch is None


def test_while_a_rank_waits_elsewhere_the_others_may_be_at_different_tensors(stage: Stage) -> None:
    elsewhere = in_c10d("barrier", ("train", 3))
    assert not stage.facts([elsewhere, reduce(8), reduce(7)]).job.payload.standing


def averaging(size: int) -> At:
    return in_c10d("all_reduce", ("average", 13), variables={"all_reduce": [tensor("tensor", size)]}, state="R")


def test_the_tensors_of_a_list_differ_from_turn_to_turn(stage: Stage) -> None:
    away = At([("train", 3)], state="R")
    looks = [[averaging(64), away], [away, averaging(8)]] * 3
    assert not stage.facts(*looks, [away, away]).job.payload.mismatch


def test_a_running_job_s_payloads_are_compared_by_call(stage: Stage) -> None:
    away = At([("train", 3)], state="R")
    assert stage.facts(*[[reduce(64), away], [away, reduce(8)]] * 4, [away, away]).job.payload.mismatch


def with_batch(size: int) -> At:
    return At([("train_wrapped", 7)], variables={"train_wrapped": [tensor("x", size, 16)]}, state="R")


def test_a_batch_that_is_smaller_look_after_look(stage: Stage) -> None:
    facts = stage.facts(*[[with_batch(31), with_batch(32)]] * 6)
    assert [rank.batch.odd for rank in facts.ranks] == [True, False]
    assert (facts.ranks[0].batch.size, facts.ranks[0].batch.size_others) == (31, 32)


def test_a_last_batch_is_not_a_smaller_batch(stage: Stage) -> None:
    looks = [[with_batch(32 if i % 4 else 10), with_batch(32)] for i in range(8)]
    assert not any(rank.batch.odd for rank in stage.facts(*looks).ranks)


def test_going_round_the_wrapper(stage: Stage) -> None:
    model = Variable("model", "<DistributedDataParallel at 0x7f00>", kind="object")
    around = At([("train", 3)], BACKWARD, {"train": [model]}, state="R")
    through = At([("train_wrapped", 8)], BACKWARD, {"train_wrapped": [model]}, state="R")
    facts = stage.facts(*[[around, through]] * 4)
    assert facts.ranks[0].sync.bypass == "model.module in train (job.py)"
    assert facts.ranks[0].sync.wrapped == "model"
    assert facts.ranks[1].sync.bypass is None
    assert [rank.sync.trains for rank in facts.ranks] == [True, True]
