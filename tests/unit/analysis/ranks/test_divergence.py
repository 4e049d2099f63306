"""Where call paths of ranks diverge, and what follows for a stall."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hangdoc.analysis.facts import where
from tests.support.synthetic_evidence import LIB, At, Stage, in_backward, in_c10d, number, tensor

SCRIPT = """\
import torch.distributed as dist

def train(rank, loader):
    for epoch in range(2):
        for step, batch in enumerate(loader):
            loss(batch).backward()
            if rank == 0:
                dist.barrier()
        dist.all_reduce(epoch)
    return rank

def finish():
    dist.barrier()

def serve(queue):
    while True:
        request = queue.get()
        dist.broadcast(request, 0)

def main():
    train(rank, loader)
    finish()
    evaluate()
"""

LOOP = (("main", 21), ("train", 6))


EXPERTS = """\
import torch.distributed as dist

def forward(self, x, lang):
    for e, expert in enumerate(self.experts):
        chosen = pick(lang, e)
        if chosen.numel() == 0:
            continue
        x = x + expert(chosen)
    return x

def train(net, loader):
    for step, batch in enumerate(loader):
        loss = net(batch)
        loss.backward()
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


def test_the_rank_that_left_the_loop_is_the_outlier(stage: Stage) -> None:
    inside = in_backward(*LOOP, variables={"train": [number("step", 5)]})
    facts = stage.facts([inside, inside, in_c10d("barrier", ("main", 22), ("finish", 13))])
    left = facts.ranks[2].divergence
    assert (left.outlier, left.relation, left.loop_line) == (True, "left_loop", 5)
    assert (left.loop_counter, left.loop_count) == ("step", 5)
    assert facts.job.divergence.outlier == (2,)
    assert [rank.divergence.side for rank in facts.ranks] == [0, 0, 1]
    assert facts.job.stall.stalled


def test_a_save_or_an_evaluation_that_only_one_side_is_in(stage: Stage) -> None:
    def aside(*path: tuple[str, int]) -> list[str | None]:
        return [rank.divergence.aside for rank in stage.facts([in_c10d("all_reduce", *path), inside, inside]).ranks]

    inside = in_backward(*LOOP)
    assert aside(("main", 23), ("evaluate", 13)) == ["evaluate (job.py:13)", None, None]
    assert aside(("main", 22), ("_save_checkpoint", 13)) == ["_save_checkpoint (job.py:13)", None, None]
    for name in ("load_checkpoint", "finish", "saved_tensors", "retrieval"):
        assert aside(("main", 22), (name, 13)) == [None, None, None]
    both = [in_c10d("barrier", ("main", 22), ("save", 13)), in_c10d("all_reduce", ("main", 23), ("validate", 13))]
    assert [rank.divergence.aside for rank in stage.facts(both).ranks] == [None, None]


def test_a_part_of_the_model_that_one_rank_skipped(tmp_path: Path) -> None:
    """Experts are wrapped one by one; the batch of a rank has no sample for some."""
    stage = Stage(EXPERTS, tmp_path)
    variables = {"train": [number("step", 25)], "forward": [number("e", 1), tensor("chosen", 3, 8)]}
    inside = in_c10d("all_gather_into_tensor", ("train", 13), ("forward", 8), variables=variables)
    facts = stage.facts([inside, in_backward(("train", 14), variables={"train": [number("step", 25)]}), inside])
    skipping = facts.ranks[1].divergence
    assert (skipping.outlier, skipping.relation) == (True, "out_of_branch")
    assert skipping.branch == "chosen.numel() != 0"


def test_of_two_ranks_the_one_ahead_is_the_outlier(stage: Stage) -> None:
    facts = stage.facts([in_c10d("barrier", ("main", 22), ("finish", 13)), in_backward(*LOOP)])
    assert facts.job.divergence.outlier == (0,)
    assert facts.job.divergence.tied


def test_counters_of_a_loop_that_both_have_left(stage: Stage) -> None:
    after = ("main", 21), ("train", 9)
    mine, others = ({"train": [number("step", count)]} for count in (6, 7))
    waiting = in_c10d("all_reduce", *after, variables=others)
    facts = stage.facts([waiting, waiting, in_c10d("barrier", *after, variables=mine)])
    position = facts.ranks[2].divergence
    assert (position.counter, position.count, position.count_other, position.passed) == ("step", 6, 7, True)


def test_a_condition_on_the_rank(stage: Stage) -> None:
    facts = stage.facts([in_c10d("barrier", ("main", 21), ("train", 8)), in_backward(*LOOP), in_backward(*LOOP)])
    assert (facts.ranks[0].divergence.relation, facts.ranks[0].divergence.branch) == ("in_branch", "rank == 0")


def test_the_frameworks_frames_are_shown_where_the_users_line_is_on_both_paths(stage: Stage) -> None:
    """The innermost one outside torch and the standard library."""
    engine, wrapper = "/v/lib/python3.11/site-packages/engine/loop.py", ("wrapper", "/usr/lib/python3.11/contextlib.py")
    saves, steps = (in_c10d(op, ("main", 21)) for op in ("barrier", "all_reduce"))
    facts = stage.facts(
        [
            replace(saves, inner=[*saves.inner, wrapper, ("save", engine), ("fit", engine)]),
            replace(steps, inner=[*steps.inner, ("step", engine), ("fit", engine)]),
            replace(steps, inner=[*steps.inner, ("step", engine), ("fit", engine)]),
            in_c10d("barrier", ("main", 22), ("finish", 13)),
        ]
    )
    shown = [rank.divergence.inner for rank in facts.ranks]
    assert shown == ["save (loop.py:1)", "step (loop.py:1)", "step (loop.py:1)", None]
    assert where(facts.ranks[0]) == "save (loop.py:1), called at main (job.py:21)"


def test_a_rank_that_compiles_shows_no_frame_of_the_compiler(tmp_path: Path) -> None:
    """Whatever it runs at the moment, such as a lock, is no reason."""
    stage = Stage("def main():\n    trainer.fit()\n", tmp_path)
    torch, lock = f"{LIB}/_dynamo/convert_frame.py", "/v/lib/python3.11/site-packages/filelock/_api.py"
    compiling = At([("main", 2)], [("_poll", lock), ("compile_inner", torch)])
    other = At([("main", 2)], [("step", "/v/lib/python3.11/site-packages/engine/loop.py")])
    facts = stage.facts([compiling, other])
    assert facts.ranks[0].stack.phase == "compile"
    assert [rank.divergence.inner is None for rank in facts.ranks] == [True, False]


def test_a_rank_that_will_arrive_is_not_stuck(stage: Stage) -> None:
    waiting = in_c10d("broadcast", ("serve", 18))
    idle = At((("serve", 17),), [("wait", "/usr/lib/python3.11/threading.py"), ("get", "/usr/lib/python3.11/queue.py")])
    facts = stage.facts([idle, waiting])
    assert facts.ranks[0].stack.phase == "idle"
    assert facts.ranks[0].divergence.will_arrive is True
    assert not facts.job.stall.stalled
    assert facts.job.stall.idle


def test_a_rank_that_computes_is_not_stuck(stage: Stage) -> None:
    waiting = in_c10d("barrier", ("main", 22), ("finish", 13))
    looks = [[At((("main", 23),), state="R", cpu_s=float(second)), waiting] for second in range(4)]
    facts = stage.facts(*looks)
    assert facts.ranks[0].stack.phase == "compute"
    assert not facts.job.stall.stalled


def test_a_stopped_rank_does_not_make_progress(stage: Stage) -> None:
    facts = stage.facts([At(LOOP, state="T"), in_backward(*LOOP)])
    assert facts.ranks[0].stack.phase == "stopped"
    assert facts.job.stall.stalled


def test_a_changing_counter_is_progress(stage: Stage) -> None:
    looks = [[in_backward(*LOOP, variables={"train": [number("step", n)]})] * 2 for n in range(5)]
    facts = stage.facts(*looks)
    assert facts.ranks[0].progress.period_s == pytest.approx(1.0)
    assert facts.job.progress.period_s == pytest.approx(1.0)
    assert not facts.job.stall.stalled


LAPS = """\
def train():
    for step in range(9):
        exchange(step)
        reduce(step)

def blind(loader):
    for epoch in range(2):
        for batch in loader:
            exchange(batch)
            reduce(batch)
"""


@pytest.mark.parametrize(
    ("function", "line", "counter", "counts", "same"),
    [
        ("train", 3, "step", (5, 5), True),
        ("train", 3, "step", (5, 6), False),
        ("blind", 9, "epoch", (1, 1), False),  # the batches have no number
    ],
)
def test_a_rank_that_is_ahead_in_the_same_iteration(
    function: str, line: int, counter: str, counts: tuple[int, int], same: bool, tmp_path: Path
) -> None:
    stage = Stage(LAPS, tmp_path)
    held, ahead = ({function: [number(counter, count)]} for count in counts)
    waiting = in_c10d("all_to_all_single", (function, line), variables=held)
    facts = stage.facts([waiting, waiting, in_c10d("all_reduce", (function, line + 1), variables=ahead)])
    position = facts.ranks[2].divergence
    assert (position.relation, position.outer, position.same_lap) == ("ahead", counter, same)


SWALLOWS = """\
import torch.distributed as dist

def train(loader):
    for step, batch in enumerate(loader):
        try:
            loss(batch).backward()
        except ValueError:
            skipped += 1
        dist.all_reduce(skipped)

def main():
    train(loader)
    dist.barrier()
"""


@pytest.mark.parametrize(("line", "swallows"), [(6, True), (9, False)])
def test_an_exception_may_have_left_out_a_call_in_the_body_of_a_try(tmp_path: Path, line: int, swallows: bool) -> None:
    inside = in_backward(("main", 12), ("train", line))
    facts = Stage(SWALLOWS, tmp_path).facts([inside, inside, in_c10d("barrier", ("main", 13))])
    assert (facts.ranks[2].divergence.relation, facts.ranks[2].divergence.in_try) == ("left_loop", swallows)
