"""Forward passes that bypass the DDP wrapper."""

from __future__ import annotations

import pytest

from hangdoc.analysis import Case
from hangdoc.analysis.collectives.gradient_sync import _averages
from hangdoc.evidence import Connection, RankEvidence, Snapshot, Target, Variable
from hangdoc.evidence.parameters import Parameter, Parameters, Value
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


JOINED = """\
def train(model, x):
    with Join([model]):
        for batch in x:
            model(batch).sum().backward()

def train_joined(model, x):
    with model.join():
        for batch in x:
            model(batch).sum().backward()

def train_threads(model, x):
    for batch in x:
        model(batch).sum().backward()
    thread.join()
"""


@pytest.mark.parametrize(
    ("function", "line", "joined"), [("train", 4, True), ("train_joined", 9, True), ("train_threads", 13, False)]
)
def test_ranks_that_stand_by_for_the_others(
    function: str, line: int, joined: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = Variable("model", "<DistributedDataParallel at 0x7f00>", kind="object")
    at = At([(function, line)], BACKWARD, {function: [model]}, state="R")
    facts = Stage(JOINED, tmp_path_factory.mktemp("joined")).facts(*[[at, at]] * 4)
    assert facts.ranks[0].gradient_sync.joined is joined


@pytest.mark.parametrize(
    ("moved", "bytes_per_s", "averages"),
    [
        pytest.param(3_000_000, 0.0, True, id="the model, several times"),
        pytest.param(2_000_000, 0.0, False, id="a broadcast at the start"),
        pytest.param(3_000_000, 1_000.0, False, id="a little in each step, for long"),
    ],
)
def test_models_that_are_averaged_now_and_then(moved: int, bytes_per_s: float, averages: bool) -> None:
    """A model of a megabyte has changed 20,000 times, ten of them while watched."""
    data = [Connection("10.0.0.1", 1, "10.0.0.2", 2, "established", bytes_acked=moved, bytes_received=0)]
    shots = [
        Snapshot("here", at, "", (RankEvidence(Target(100, 1, "here", 0), True, {"parameters": of_model(version)}),))
        for at, version in ((0.0, 19_990), (5.0, 20_000))
    ]
    case = Case(shots, {("here", 100): shots[-1].ranks[0]})
    assert _averages(case, ("here", 100), data, bytes_per_s) is averages


def of_model(version: int) -> Parameters:
    weight = Parameter("model.weight", (500, 500), "float32", "cpu", True, (Value(version, f"{version}"),))
    return Parameters((weight,), size=1_000_000)
