"""A loss that is NaN, as a number and as a tensor, in user code and in a library."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc.analysis.compute.loss import nonfinite_loss
from hangdoc.evidence import Tensor, Variable
from tests.support.synthetic_evidence import At, Stage, number

SCRIPT = """
def train(model, batches):
    for step, batch in enumerate(batches):
        running_loss = model(batch)
"""


def scalar(name: str, value: str) -> Variable:
    return Variable(name, "Tensor([], float32, cpu)", kind="tensor", tensor=Tensor((), "float32", "cpu", value))


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        (Variable("running_loss", "nan", kind="float"), "running_loss is nan at step 412"),
        (Variable("loss", "-inf", kind="float"), "loss is inf at step 412"),
        (scalar("loss", "nan"), "loss is nan at step 412"),
        (scalar("loss", ""), None),
        (Variable("loss", "0.25", number=0.25, kind="float"), None),
        (Variable("best", "inf", kind="float"), None),  # as initialised
        (Variable("closs", "nan", kind="float"), None),
    ],
)
def test_loss(variable: Variable, said: str | None, tmp_path: Path) -> None:
    at = At([("train", 4)], variables={"train": [number("step", 412), variable]})
    found = Stage(SCRIPT, tmp_path).facts([at])
    (key,) = found.case.ranks
    assert nonfinite_loss(found.case, key) == said
