"""First compilations, and recompilations in iteration after iteration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from hangdoc.analysis.compute.recompilation import RecompilationFacts
from hangdoc.evidence import ChildProcess, Process, Variable
from tests.support.synthetic_evidence import LIB, At, Stage, number, tensor

SCRIPT = """\
def train(loader):
    for step, x in enumerate(loader):
        model(x)
    for batch in held_out:
        model(batch)

def forever():
    while True:
        model(x)
"""
DYNAMO = f"{LIB}/_dynamo/convert_frame.py"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("compiling"))


def compiles(step: int, reason: str = "", length: int = 8) -> At:
    why = [Variable("recompile_reason", f'"{reason}"', kind="str")] if reason else []
    variables = {"_compile": why, "train": [number("step", step), tensor("x", 4, length)]}
    return At([("train", 3)], [("_compile", DYNAMO)], variables, state="R")


def computes(step: int) -> At:
    return At(
        [("train", 3)], [("forward", f"{LIB}/nn/modules/linear.py")], {"train": [number("step", step)]}, state="R"
    )


def judged(stage: Stage, looks: Iterable[At]) -> RecompilationFacts:
    facts = stage.facts(*([at] for at in looks)).ranks[0].recompilation
    assert isinstance(facts, RecompilationFacts)
    return facts


GUARD = r"0/4: tensor \"x\" size mismatch at index 1. expected 8, actual 9"


@pytest.mark.parametrize(
    ("looks", "again"),
    [
        pytest.param([compiles(0)] * 9, False, id="the first step"),
        pytest.param([compiles(0), compiles(0), compiles(1), compiles(2), computes(3)], False, id="the first shapes"),
        pytest.param([computes(90), compiles(91), compiles(91), computes(92)], False, id="once, late"),
        pytest.param([compiles(90), computes(90), compiles(91), compiles(92)], True, id="step by step"),
        pytest.param([compiles(n) for n in range(5)], True, id="step by step from the first on"),
        pytest.param([compiles(90), compiles(90), compiles(91)], False, id="two steps after a restart"),
        pytest.param([compiles(90, GUARD), compiles(90), compiles(91)], True, id="two steps, and it says how often"),
        pytest.param([compiles(0, GUARD), compiles(0), compiles(1)], False, id="two steps, the first ones"),
        pytest.param([computes(n) for n in range(9)], False, id="does not compile"),
    ],
)
def test_recurrent_compilation(stage: Stage, looks: Sequence[At], again: bool) -> None:
    assert judged(stage, looks).again is again


def test_facts_of_recurrent_compilation(stage: Stage) -> None:
    looks = [compiles(7), compiles(8, GUARD, 9), compiles(9, GUARD.replace("0/4", "0/5_1").replace("9", "8"), 8)]
    assert judged(stage, [*looks, computes(9)]) == RecompilationFacts(
        share=0.75,
        again=True,
        iterations=3,
        site="train (job.py:3)",
        loop="for step, x in enumerate(loader):",
        before=6,
        reason="tensor 'x' size mismatch at index 1. expected 8, actual 8",
        kind="shape",
        shapes=("x: 4 x 8, 4 x 9",),
        advancing=False,
    )


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (GUARD, "shape"),
        ("0/1: tensor 'L['x']' stride mismatch at index 0. expected 8, actual 1", "shape"),
        ("0/2: L['x'].size()[0] == 8", "shape"),
        ("0/2: Eq(s0, 8)", "shape"),
        ("0/2: L['depth'] == 4", "value"),
        ("0/2: tensor 'L['x']' dtype mismatch. expected Float, actual Half", "value"),
        ("", None),
    ],
)
def test_kind_of_recompilation(stage: Stage, reason: str, kind: str | None) -> None:
    assert judged(stage, [compiles(7, reason), compiles(8, reason)]).kind == kind


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("3/0: depth == 4  # for j in range(depth):  # job.py:9 in f", (1, "depth == 4")),
        ("[...]", (None, None)),
        ("a guard failed", (None, None)),
    ],
)
def test_failed_guard(stage: Stage, text: str, told: tuple[int | None, str | None]) -> None:
    facts = judged(stage, [compiles(5, text)] * 3)
    assert (facts.before, facts.reason) == told


@pytest.mark.parametrize(("rate", "works"), [(0.8, True), (0.05, False)])
def test_advancing_while_compilers_work(stage: Stage, rate: float, works: bool) -> None:
    looks = []
    for look in range(4):
        child = ChildProcess(300, "cc1plus", ("cc1plus",), "R", rate * look)
        process = Process(100, 1, 0, "S", (), None, None, 9.0, 1.0, 1, (), children=(child,))
        looks.append(At([("train", 3)], [("_compile", DYNAMO)], records={"cpu": process}))
    assert judged(stage, looks).advancing is works


@pytest.mark.parametrize(("used_s", "works"), [(4.0, True), (0.1, False)])
def test_advancing_while_compilers_come_and_go(stage: Stage, used_s: float, works: bool) -> None:
    """Of a compiler that has ended, only what its parent has reaped is left."""
    looks = []
    for look in range(4):
        pool = ChildProcess(300, "pool", ("pool",), "S", 0.5, reaped_s=used_s * look / 4)
        process = Process(100, 1, 0, "S", (), None, None, 9.0, 1.0, 1, (), children=(pool,), reaped_s=3.0)
        looks.append(At([("train", 3)], [("_compile", DYNAMO)], records={"cpu": process}))
    assert judged(stage, looks).advancing is works


def test_loop_without_a_counter(stage: Stage) -> None:
    facts = judged(stage, [At([("forever", 9)], [("_compile", DYNAMO)])] * 6)
    assert (facts.again, facts.iterations, facts.share) == (False, 0, 1.0)
