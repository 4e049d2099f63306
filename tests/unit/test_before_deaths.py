"""A death that follows a stall, and one that is the failure itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import playbooks
from hangdoc.analysis.facts import Facts
from hangdoc.evidence import End
from hangdoc.recording.recorder import read
from tests.support.judge import judge
from tests.support.stalled_jobs import ended, rounds
from tests.support.synthetic_evidence import At, Stage, in_backward, in_c10d

KILLED, CRASHED, TIMED_OUT = End(signal=9), End(signal=11), End(code=1)
SCRIPT = """\
import torch.distributed as dist

def train(loader):
    for step, batch in enumerate(loader):
        loss(batch).backward()

def main():
    train(loader)
    dist.barrier()
"""
STALL = [in_backward(("main", 8), ("train", 5)), in_c10d("barrier", ("main", 9))]
DEAD = [replace(at, alive=False) for at in STALL]


def moving(number: int) -> list[At]:
    return [At((("main", 8), ("train", 4 + number % 2)), cpu_s=1.0 + number, state="R", runs=number)] * 2


def cause(facts: Facts) -> str | None:
    """The playbook of the stall before the deaths; None: there was none."""
    before = judge().before_deaths(facts)
    return judge().verdict(before).findings[0].playbook if before else None


@pytest.mark.parametrize("ends", [(KILLED,), (KILLED,) * 3, (TIMED_OUT, TIMED_OUT), (CRASHED,), (End(),) * 3])
def test_deaths_out_of_a_stall(ends: tuple[End, ...]) -> None:
    """Whoever ended the ranks; even a crash, because the cause of the stall is certain."""
    assert cause(judge().facts([*rounds(), ended(*ends)])) == "uneven-batches"


@pytest.mark.parametrize(
    ("looks", "playbook"),
    [
        pytest.param([*[STALL] * 8, DEAD], "uneven-batches", id="nobody saw how they died"),
        pytest.param([*[STALL] * 4, DEAD], None, id="nor for how long they stood still"),
        pytest.param([*[STALL] * 8, moving(1), moving(2), DEAD], "uneven-batches", id="ranks unwind before they die"),
        pytest.param([*[STALL] * 8, *map(moving, range(20)), DEAD], None, id="the stall ended long before"),
        pytest.param([*map(moving, range(8)), DEAD], None, id="the job moved"),
        pytest.param([DEAD] * 5, None, id="dead when the watch began"),
        pytest.param([STALL] * 5, None, id="nobody died"),
    ],
)
def test_when_ranks_died(looks: Sequence[Sequence[At]], playbook: str | None, tmp_path: Path) -> None:
    assert cause(Stage(SCRIPT, tmp_path).facts(*looks, every_s=2.0)) == playbook


def test_ranks_that_finished_did_not_die_out_of_a_stall() -> None:
    assert cause(judge().facts([*rounds(), ended(*[End(code=0)] * 3)])) is None


def test_a_killed_rank_is_the_cause_of_the_wait_for_it() -> None:
    (capture,) = read(playbooks.ROOT / "rank-killed" / "capture.jsonl.zst")
    assert cause(judge().facts(capture.snapshots)) is None
