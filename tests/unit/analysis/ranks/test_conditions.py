"""Which conditions may have different results on different ranks."""

from __future__ import annotations

import pytest

from hangdoc.analysis.ranks.call_path import FrameVariables, Step
from hangdoc.analysis.ranks.conditions import negated, uniform
from hangdoc.evidence import Loop, Place, Tensor, Variable

LOOPS = (
    Loop(1, 9, "for step, (name, p) in enumerate(params):", ("step",)),
    Loop(2, 8, "for batch in loader:", ()),
)
MINE = {
    "every": Variable("every", "10", number=10, kind="int"),
    "seen": Variable("seen", "3", number=3, kind="int"),
    "mode": Variable("mode", '"train"', kind="str"),
    "scaler": Variable("scaler", "None", kind="none"),
    "loss": Variable("loss", "Tensor([])", kind="tensor", tensor=Tensor((), "float32", "cpu")),
    "args": Variable("args", "<Namespace at 0x1>", kind="object"),
}
OTHER = {**MINE, "seen": Variable("seen", "4", number=4, kind="int")}
STEP = Step("train", "job.py", 5, Place("", LOOPS, (), (), 1, 9), FrameVariables(tuple(MINE.values())))


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("step % every == 0", True),
        ("step > 0 and mode == 'train'", True),
        ("scaler is not None", True),
        ("seen > 3", False),
        ("p.grad is not None", False),
        ("batch is None", False),
        ("loss > 5", False),
        ("rank == 0", False),
        ("self.rank == 0 and step % 10 == 0", False),
        ("accelerator.is_main_process", False),
        ("state.is_world_process_zero", False),
        ("time.monotonic() - last > 60", False),
        ("random.random() < 0.1", False),
        ("dist.is_initialized() and dist.get_world_size() > 1", True),
        ("num_ranks > 1 and not rank_zero_only", True),
        ("rank_zero_only.rank == 0", False),
        ("args.amp", None),
        ("self.should_save()", None),
        ("step % every == 0 and args.amp", None),
        ("", None),
    ],
)
def test_conditions(test: str, expected: bool | None) -> None:
    assert uniform(test, STEP, OTHER) is expected


def test_without_the_peers_variables_numbers_are_unknown() -> None:
    assert uniform("seen > 3", STEP, None) is None


@pytest.mark.parametrize(
    ("test", "opposite"),
    [
        ("self.rank != 0", "self.rank == 0"),
        ("rank is not None", "rank is None"),
        ("not self.is_main_process", "self.is_main_process"),
        ("is_main()", "not (is_main())"),
        ("not math.isfinite(loss.item())", "math.isfinite(loss.item())"),
        ("not a and b", "not (not a and b)"),
        ("rank > 0 and step", "not (rank > 0 and step)"),
        ("a == b != c", "not (a == b != c)"),
    ],
)
def test_the_opposite_of_a_condition(test: str, opposite: str) -> None:
    assert negated(test) == opposite
