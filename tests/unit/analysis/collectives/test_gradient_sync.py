"""Forward passes that bypass the DDP wrapper."""

from __future__ import annotations

import pytest

from hangdoc.evidence import Variable
from tests.support.synthetic_evidence import BACKWARD, At, Stage

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


def test_a_forward_pass_that_bypasses_the_wrapper(stage: Stage) -> None:
    model = Variable("model", "<DistributedDataParallel at 0x7f00>", kind="object")
    around = At([("train", 3)], BACKWARD, {"train": [model]}, state="R")
    through = At([("train_wrapped", 8)], BACKWARD, {"train_wrapped": [model]}, state="R")
    facts = stage.facts(*[[around, through]] * 4)
    assert facts.ranks[0].gradient_sync.bypass == "model.module in train (job.py)"
    assert facts.ranks[0].gradient_sync.wrapped == "model"
    assert facts.ranks[1].gradient_sync.bypass is None
    assert [rank.gradient_sync.trains for rank in facts.ranks] == [True, True]
