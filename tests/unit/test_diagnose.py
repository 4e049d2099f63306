"""What a job is said to do where no playbook names a cause."""

from __future__ import annotations

from pathlib import Path

import pytest

import playbooks
from hangdoc.recording.recorder import read
from tests.support.judge import judge
from tests.support.synthetic_evidence import At, Stage, in_backward, in_c10d, number

SCRIPT = """\
import torch.distributed as dist

def serve(queue):
    while True:
        request = queue.get()
        dist.broadcast(request, 0)

def train(loader):
    for step, batch in enumerate(loader):
        loss(batch).backward()
"""
IDLE = At((("serve", 5),), [("wait", "/usr/lib/python3.11/threading.py"), ("get", "/usr/lib/python3.11/queue.py")])
WAITING = in_c10d("broadcast", ("serve", 6))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


@pytest.mark.parametrize(
    ("every_s", "status", "note"),
    [
        (5.0, "healthy", "rank 0: idle wait at serve (job.py:5); rank 1: collective broadcast at serve (job.py:6)"),
        (30.0, "unknown", "rank 0 has kept other ranks waiting for 1 min 30 s, idle at serve (job.py:5); "),
    ],
)
def test_ranks_that_wait_for_an_idle_one(stage: Stage, every_s: float, status: str, note: str) -> None:
    verdict = judge().verdict(stage.facts(*[[IDLE, WAITING]] * 4, every_s=every_s))
    assert (verdict.status, verdict.findings) == (status, ())
    assert verdict.note.startswith(note)


def test_a_healthy_job_says_its_step(stage: Stage) -> None:
    looks = [[in_backward(("train", 10), variables={"train": [number("step", n)]})] * 2 for n in range(5)]
    assert judge().verdict(stage.facts(*looks)).note == "a step every 1 s"


@pytest.mark.parametrize(("usual_s", "before"), [(None, ""), (0.01, "; it took 10 ms before"), (1000.0, "")])
def test_a_slow_job_says_its_step_now_and_before(usual_s: float | None, before: str) -> None:
    capture = Path(playbooks.ROOT) / "straggler" / "capture.jsonl.zst"
    (recorded,) = read(capture)
    verdict = judge().verdict(judge().facts(recorded.snapshots), usual_s)
    assert verdict.status == "slow"
    assert verdict.note.startswith("a step takes ")
    assert verdict.note.endswith(before or "s")
