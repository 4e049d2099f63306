"""Ranks that wait for DDP's reducer, and ranks that have left backward without it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hangdoc.analysis.collectives.reducer import ReducerFacts
from hangdoc.evidence.parameters import Gradients, ReplicatedModel
from tests.support.synthetic_evidence import At, Stage, in_backward, in_c10d, number

SCRIPT = """\
def run(model, loader, steps):
    for step in range(steps):
        loss = model(next(loader))
        if loss < 0.1:
            break
        loss.backward()
        optimizer.step()
        log(loss)
    dist.barrier()

def count(model, loader):
    done = 0
    while True:
        model(next(loader)).backward()
        done += 1
        log(done)

def log(loss):
    dist.all_reduce(loss)
"""
BACKWARD, LOG, BARRIER, FORWARD = 6, 8, 9, 3
LOSS = ("log", 20)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


def model(missing: int, expected: int = 10, **more: bool) -> dict[str, object]:
    without = tuple(f"experts.{n}.weight" for n in range(missing))[:2]
    return {"gradients": Gradients((ReplicatedModel("model", expected, missing, without, **more),))}


def waits(step: int, records: dict[str, object] | None = None) -> At:
    """A rank that waits in backward, native frames seen."""
    native = ("pthread_cond_wait", "c10d::Reducer::finalize_backward")
    variables = {"run": [number("step", step)]}
    return in_backward(("run", BACKWARD), variables=variables, native=native, records=records or {})


def logs(step: int, records: dict[str, object] | None = None) -> At:
    return in_c10d("all_reduce", ("run", LOG), LOSS, variables={"run": [number("step", step)]}, records=records or {})


def facts(stage: Stage, *ranks: At) -> Sequence[ReducerFacts]:
    return [rank.reducer for rank in stage.facts(ranks).ranks]


def test_a_rank_lacks_gradients_that_the_waiting_ranks_have(stage: Stage) -> None:
    first, second, late = facts(stage, waits(7, model(0)), waits(7, model(0)), logs(7, model(3, find_unused=True)))
    assert (first.waits, second.waits, late.waits) == (True, True, False)
    assert (late.passed, late.step, late.missing, late.expected) == (True, "step = 7", 3, 10)
    assert (late.without, late.find_unused) == ("experts.0.weight, experts.1.weight and 1 more", True)
    assert first.missing == 0


@pytest.mark.parametrize(
    ("of_peer", "of_rank"),
    [
        (model(1), model(3)),  # another model is in backward, or an unused parameter of every rank
        (model(0), model(10)),  # reset since
        (model(0, expected=12), model(3)),  # another model
        ({}, model(3)),  # not seen
    ],
)
def test_what_proves_nothing_of_the_gradients(
    stage: Stage, of_peer: dict[str, object], of_rank: dict[str, object]
) -> None:
    _, rank = facts(stage, waits(7, of_peer), logs(7, of_rank))
    assert (rank.missing, rank.without) == (None, None)
    assert rank.step == "step = 7"


def test_one_waiting_rank_without_a_gradient_is_enough_to_know_nothing(stage: Stage) -> None:
    assert facts(stage, waits(7, model(0)), waits(7, model(1)), logs(7, model(3)))[2].missing is None


def test_a_waiting_rank_that_was_not_read_does_not_matter(stage: Stage) -> None:
    assert facts(stage, waits(7, model(0)), waits(7), logs(7, model(3)))[2].missing == 3


def test_a_rank_in_another_step_has_not_passed(stage: Stage) -> None:
    """One step behind its peers, it has not reached their backward; counted up already, it may have passed it."""
    assert [rank.passed for rank in facts(stage, waits(7), logs(6))] == [None, False]
    ahead = facts(stage, waits(7), logs(8))[1]
    assert (ahead.passed, ahead.step) == (True, None)


def test_a_rank_before_backward_has_not_passed(stage: Stage) -> None:
    forward = At([("run", FORWARD)], variables={"run": [number("step", 7)]})
    assert facts(stage, waits(7), forward)[1].passed is False


def test_a_rank_that_left_the_loop_may_have_left_by_break(stage: Stage) -> None:
    left = in_c10d("barrier", ("run", BARRIER), variables={"run": [number("step", 7)]})
    rank = facts(stage, waits(7), left)[1]
    assert (rank.passed, rank.step) == (True, None)


def test_a_counter_of_the_body_proves_no_step(stage: Stage) -> None:
    done = {"count": [number("done", 7)]}
    waiting = in_backward(("count", 14), variables=done, native=("c10d::Reducer::finalize_backward",))
    late = in_c10d("all_reduce", ("count", 16), LOSS, variables={"count": [number("done", 8)]})
    rank = facts(stage, waiting, late)[1]
    assert (rank.passed, rank.step) == (True, None)


def test_without_ddp_nobody_waits_for_its_reducer(stage: Stage) -> None:
    other = in_backward(("run", BACKWARD), native=("pthread_cond_wait", "custom::Exchange::wait"))
    assert [rank.waits for rank in facts(stage, other, logs(7))] == [False, False]
