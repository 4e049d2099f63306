"""Tensors that ranks pass to the same collective."""

from __future__ import annotations

import pytest

from tests.support.synthetic_evidence import C10D, At, Stage, in_c10d, tensor

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
def test_tensors_of_ranks_in_one_call(stage: Stage, ranks: list[At], mismatch: bool, odd: list[int]) -> None:
    facts = stage.facts(ranks)
    assert facts.job.tensors.mismatch is mismatch
    assert [rank.rank for rank in facts.ranks if rank.tensors.differs] == odd


def test_a_single_tensor_is_not_compared(stage: Stage) -> None:
    assert stage.facts([reduce(8), At([("train", 3)])]).job.tensors.mismatch is None


def test_nothing_is_compared_while_a_rank_waits_in_another_call(stage: Stage) -> None:
    elsewhere = in_c10d("barrier", ("train", 3))
    assert not stage.facts([elsewhere, reduce(8), reduce(7)]).job.tensors.standing


def test_calls_of_one_line_of_the_script_are_told_apart(stage: Stage) -> None:
    """broadcast_object_list sends the sizes and then the objects: a rank that waits may be one call behind."""

    def sends(through: str, size: int) -> At:
        inner = [("broadcast", C10D), *((name, C10D) for name in through.split())]
        return At([("train", 4)], inner, {"broadcast": [tensor("tensor", size)]})

    one, other = "broadcast_object_list", "_send_sizes broadcast_object_list"
    assert stage.facts([sends(one, 1), sends(one, 290)]).job.tensors.mismatch
    assert stage.facts([sends(other, 1), sends(one, 290)]).job.tensors.mismatch is None


def averaging(size: int) -> At:
    return in_c10d("all_reduce", ("average", 13), variables={"all_reduce": [tensor("tensor", size)]}, state="R")


def test_tensors_of_a_loop_over_a_list_are_not_compared(stage: Stage) -> None:
    away = At([("train", 3)], state="R")
    looks = [[averaging(64), away], [away, averaging(8)]] * 3
    assert not stage.facts(*looks, [away, away]).job.tensors.mismatch


def test_tensors_of_a_running_job_are_compared_by_call(stage: Stage) -> None:
    away = At([("train", 3)], state="R")
    assert stage.facts(*[[reduce(64), away], [away, reduce(8)]] * 4, [away, away]).job.tensors.mismatch
