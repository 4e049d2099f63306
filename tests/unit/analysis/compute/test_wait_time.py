"""Wait time of a rank, from its clocks and from its stacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from hangdoc.analysis import Case
from hangdoc.analysis.compute.wait_time import WaitingRanks, WaitTime, moves_throughout, wait_time, wait_times
from hangdoc.analysis.ranks.call_path import CallPath, Thread
from hangdoc.analysis.ranks.progress import Activity, Look
from hangdoc.evidence import Process, Stack, ThreadCpu
from tests.support.synthetic_evidence import At, Stage, in_c10d, number

SCRIPT = """\
def train():
    for step in range(1000):
        loss = model(x).sum()
        dist.all_reduce(loss)
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


def look(waits: bool, cpu_s: float, delay_s: float | None, step: int, state: str) -> At:
    thread = ThreadCpu(100, "python", state, cpu_s, run_delay_s=delay_s)
    records = {"cpu": Process(100, 1, 0, state, ("python",), None, None, 60.0, cpu_s, 1, (thread,))}
    variables = {"train": [number("step", step)]}
    if waits:
        return in_c10d("all_reduce", ("train", 4), variables=variables, records=records)
    return At([("train", 3)], variables=variables, records=records)


def seen(stage: Stage, *looks: At) -> tuple[Case, WaitTime | None]:
    """One rank, with a look every 0.5 s."""
    case = stage.facts(*[[one] for one in looks], every_s=0.5).case
    (key,) = case.ranks
    return case, wait_time(case, key)


def test_asleep_is_neither_running_nor_runnable(stage: Stage) -> None:
    looks = [look(i % 2 > 0, 0.1 * i, 0.05 * i, i, "S" if i % 2 else "R") for i in range(19)]
    _, found = seen(stage, *looks)
    assert found is not None
    assert found.share == pytest.approx(1 - 0.15 / 0.5, abs=0.01)
    assert found.slices == pytest.approx([0.7] * len(found.slices or ()), abs=0.01)


def test_sleep_outside_a_collective_is_no_wait_time(stage: Stage) -> None:
    _, found = seen(stage, *[look(False, 0.05 * i, 0.0, i, "S") for i in range(19)])
    assert found is not None
    assert found.share == 0.0


@pytest.mark.parametrize("delay_s", [None, 0.0], ids=["no schedstat", "spins"])
def test_wait_time_from_stacks_without_usable_clocks(stage: Stage, delay_s: float | None) -> None:
    spin = delay_s is not None
    _, found = seen(stage, *[look(i % 3 > 0, 0.5 * i, delay_s, i, "R" if spin else "S") for i in range(19)])
    assert found is not None
    assert (found.spins, found.slices) == (spin, None)
    assert found.share == pytest.approx(2 / 3, abs=0.1)


def test_movement_in_every_part_of_the_window(stage: Stage) -> None:
    for last, wanted in ((19, True), (9, False)):
        case, _ = seen(stage, *[look(False, 0.0, 0.0, min(i, last), "R") for i in range(19)])
        assert moves_throughout(case, next(iter(case.ranks))) is wanted


def test_unknown_with_too_few_looks(stage: Stage, tmp_path: Path) -> None:
    assert seen(stage, *[look(False, 0.1 * i, 0.0, i, "R") for i in range(5)])[1] is None


def test_a_first_look_that_took_long_is_left_out(stage: Stage) -> None:
    """Else the first third of the window has one look, and the straggler of a busy host is unknown."""
    case = stage.facts(*[[look(True, 0.0, 0.0, i, "S")] for i in range(12)], every_s=0.8).case
    (key,) = case.ranks
    first, *rest = case.rounds(key)
    slow = Case([replace(first[0], at_s=-9.0), *[shot for shot, _ in rest]], case.ranks)
    assert wait_time(slow, key) == wait_time(Case([shot for shot, _ in rest], case.ranks), key) is not None
    assert moves_throughout(slow, key)


def test_ranks_are_compared_by_one_measure(stage: Stage) -> None:
    """Both stand in collectives for two thirds of the time, and the clocks of one of them do not show it."""
    sleeper, spinner = (
        [look(i % 3 > 0, cpu_s * i, 0.0, i, state) for i in range(19)] for cpu_s, state in ((0.4, "S"), (0.5, "R"))
    )
    case = stage.facts(*map(list, zip(sleeper, spinner, strict=True)), every_s=0.5).case
    found = list(wait_times(case).values())
    assert [one.spins for one in found] == [False, True]
    assert wait_time(case, next(iter(case.ranks))) != found[0]
    assert [one.share for one in found] == pytest.approx([2 / 3, 2 / 3], abs=0.1)


NOWHERE = Thread(CallPath(()), Stack(1, None, ()))


def looks(at_s: float, phases: str) -> list[Look]:
    activities = {phase: Activity(name, None, NOWHERE.path) for phase, name in (("w", "collective"), ("c", "compute"))}
    return [Look(at_s + i, NOWHERE, activities[phase]) for i, phase in enumerate(phases)]


@pytest.mark.parametrize(
    ("after_s", "count"), [(-1.0, 1), (0.0, 1), (0.4, 1), (0.6, 2), (1.4, 2), (1.6, 1), (2.0, 1), (9.0, 1)]
)
def test_waiting_ranks_by_the_nearest_look(after_s: float, count: int) -> None:
    """Clocks of different hosts are not comparable."""
    ranks = [looks(5.0, "cww"), looks(-70.0, "wwc"), [], looks(1e6, "ccc")]
    assert WaitingRanks(ranks).at(after_s) == count
