"""Work that one rank has more of than its peers."""

from __future__ import annotations

import pytest

from hangdoc.analysis.compute.workload import more_work, same_code, steps_alone
from hangdoc.evidence import Variable
from tests.support.synthetic_evidence import At, Stage, in_c10d, number, tensor

SCRIPT = """\
def train(x, parts):
    loss = model(x).sum()
    loss.backward()
    if rank == 0:
        evaluate(model)

def evaluate(model):
    model(x)
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


def items(name: str, length: int) -> Variable:
    return Variable(name, "[...]", kind="list", length=length)


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        ([tensor("x", 128, 4)], [tensor("x", 64, 4)], "x in train: 128 rows, 64 on other ranks"),
        ([number("parts", 2)], [number("parts", 1)], "parts in train: 2, 1 on other ranks"),
        ([items("files", 201)], [items("files", 4)], "files in train: 201 items, 4 on other ranks"),
        ([number("n", 9), tensor("x", 9)], [number("n", 1), tensor("x", 1)], "x in train: 9 rows, 1 on other ranks"),
        ([tensor("x", 70, 4)], [tensor("x", 64, 4)], None),  # hardly more
        ([tensor("x", 32, 4)], [tensor("x", 64, 4)], None),  # less
        ([number("rank", 3)], [number("rank", 1)], None),  # must differ
        ([tensor("y", 128)], [tensor("x", 64)], None),
    ],
)  # fmt: skip
def test_more_work_than_all_peers(stage: Stage, mine: list[Variable], theirs: list[Variable], said: str | None) -> None:
    ranks = [At([("train", 2)], variables={"train": variables}) for variables in (theirs, theirs, mine)]
    case = stage.facts(ranks).case
    *_, third = case.ranks
    assert more_work(case, third) == said


def test_sizes_that_vary_between_looks_are_ignored(stage: Stage) -> None:
    def ranks(size: int) -> list[At]:
        return [At([("train", 2)], variables={"train": [tensor("x", n)]}) for n in (10, size)]

    case = stage.facts(*[ranks(size) for size in (20, 30, 40, 50, 60, 70)]).case
    _, second = case.ranks
    assert more_work(case, second) is None


WAITS = in_c10d("all_reduce", ("train", 3))


@pytest.mark.parametrize(
    ("late", "same"),
    [
        (At([("train", 2)]), True),
        (At([("train", 5), ("evaluate", 8)]), False),
        (At([("train", 5)]), False),  # the evaluation is inlined in `train`
    ],
)
def test_same_code_as_peers(stage: Stage, late: At, same: bool) -> None:
    looks = [[late, WAITS if i % 3 else At([("train", 2)])] for i in range(12)]
    case = stage.facts(*looks, every_s=0.5).case
    first, second = case.ranks
    assert same_code(case, first) is same
    assert same_code(case, second) is None, "nobody waited for it"


STEPS = """\
def train(parts):
    for epoch in range(3):
        for step in range(1000):
            for part in range(6):
                relieve(step)
                loss = model(part)
            dist.all_reduce(loss)
        evaluate(model)
"""


@pytest.mark.parametrize(
    ("steps", "line", "alone"),
    [
        ((7, 7, 7, 7, 8, 8, 8, 8, 9, 9), 5, 3),
        ((7, 7, 7, 7, 7, 7, 7, 7, 7, 7), 5, 1),  # in one step, though in all its parts
        ((7, 7, 7, 7, 7, 12, 12, 12, 12, 12), 5, 0),  # in every fifth step
        ((7, 7, 7, 7, 8, 8, 8, 8, 9, 9), 8, 0),  # outside of the loop of steps
    ],
)
def test_steps_in_which_it_worked_alone(
    steps: tuple[int, ...], line: int, alone: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stage = Stage(STEPS, tmp_path_factory.mktemp("steps"))
    looks = []
    for look, step in enumerate(steps):
        late = At(
            [("train", line)], variables={"train": [number("step", step), number("part", look), number("epoch", 0)]}
        )
        looks.append([late, in_c10d("all_reduce", ("train", 7), variables={"train": [number("step", step)]})])
    case = stage.facts(*looks, every_s=0.5).case
    first, second = case.ranks
    assert steps_alone(case, first) == alone
    assert steps_alone(case, second) == 0, "nobody waited for it"
