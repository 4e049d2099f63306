"""What a job is said to do where no playbook names a cause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import playbooks
from hangdoc.evidence import Frame, Io, Stack
from hangdoc.evidence.locks import LockFile, Locks
from hangdoc.recording.recorder import read
from tests.support.judge import judge, reported
from tests.support.paths import DATA
from tests.support.synthetic_evidence import At, Stage, in_backward, in_c10d, number, tensor

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
QUEUE = [("wait", "/usr/lib/python3.11/threading.py"), ("get", "/usr/lib/python3.11/queue.py")]
LISTENER = Stack(900, "listener", (Frame("listen", "/job/requests.py", 3),))
IDLE = At((("serve", 5),), QUEUE, extra=[LISTENER], records={"io": Io(), "locks": Locks(), "lockfile": LockFile()})
UNEXPLAINED = At((("serve", 5),), QUEUE)
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


def test_a_healthy_job_says_its_step_and_what_was_not_seen(stage: Stage) -> None:
    looks = [[in_backward(("train", 10), variables={"train": [number("step", n)]})] * 2 for n in range(5)]
    verdict = judge().verdict(stage.facts(*looks))
    assert verdict.status == "healthy"
    assert verdict.note == (
        "a step every 1 s; cannot rule out cpu-throttled, memory-pressure (cgroup of ranks 0-1 not seen), "
        "ddp-bypassed, packet-loss, slow-link (sockets of ranks 0-1 not seen), "
        "never-joined (groups of ranks 0-1 not seen), "
        "parameters-unregistered, replicas-differ (parameters of ranks 0-1 not seen), "
        "slow-input (io of ranks 0-1 not seen)"
    )


def test_a_wait_for_an_unknown_reason_is_not_healthy(stage: Stage) -> None:
    verdict = judge().verdict(stage.facts(*[[UNEXPLAINED, WAITING]] * 4, every_s=5.0))
    assert verdict.status == "unknown"
    assert verdict.note == (
        "no progress seen on rank 0 in 15 s; sockets, io, locks, lockfile of ranks 0-1 not seen; "
        "rank 0: idle wait at serve (job.py:5); rank 1: collective broadcast at serve (job.py:6)"
    )


def test_a_difference_in_too_few_looks_is_neither_healthy_nor_a_finding(stage: Stage) -> None:
    def with_batch(size: int, step: int) -> At:
        return in_backward(("train", 10), variables={"train": [tensor("batch", size, 16), number("step", step)]})

    verdict = judge().verdict(stage.facts(*[[with_batch(31, n), with_batch(32, n)] for n in range(3)]))
    assert (verdict.status, verdict.findings) == ("unknown", ())
    assert verdict.note.startswith(
        "rank 0: seen with batches of another size than the other ranks, but not often enough"
    )


def test_a_job_that_has_not_formed_is_not_healthy(stage: Stage) -> None:
    """A rank makes steps of its own, as one that was started again may do while its peers wait for it in vain."""
    joining = in_c10d("init_process_group", ("serve", 6))
    dry_run = [
        At((("train", 10),), variables={"train": [number("step", n)]}, state="R", cpu_s=n * 5.0) for n in range(4)
    ]
    verdict = judge().verdict(stage.facts(*[[joining, joining, at] for at in dry_run], every_s=5.0))
    assert (verdict.status, verdict.findings) == ("unknown", ())
    assert verdict.note == (
        "ranks 0-1 wait for the job to form, for at least 15 s; rank 2: compute at train (job.py:10)"
    )


def test_a_spin_is_no_progress(stage: Stage) -> None:
    spins = [At((("serve", 4),), state="R", cpu_s=n * 5.0) for n in range(4)]
    verdict = judge().verdict(stage.facts(*[[spin, WAITING] for spin in spins], every_s=5.0))
    assert verdict.status == "unknown"
    assert verdict.note.startswith("no progress seen on rank 0 in 15 s")


def test_a_rank_at_the_prompt_of_a_debugger_waits_for_a_person(stage: Stage) -> None:
    prompt = At((("serve", 5),), [(f, "/usr/lib/python3.11/pdb.py") for f in ("cmdloop", "interaction")])
    verdict = judge().verdict(stage.facts(*[[prompt, WAITING]] * 4, every_s=5.0))
    (finding,) = verdict.findings
    assert (verdict.status, finding.playbook) == ("stalled", "waiting-for-input")
    assert finding.summary == (
        "Rank 0 waits at a debugger prompt, opened at serve (job.py:5); meanwhile rank 1 waits in broadcast."
    )


@pytest.mark.parametrize(("usual_s", "before"), [(None, ""), (0.01, "; it took 10 ms before"), (1000.0, "")])
def test_a_slow_job_says_its_step_now_and_before(usual_s: float | None, before: str) -> None:
    capture = Path(playbooks.ROOT) / "straggler" / "capture.jsonl.zst"
    (recorded,) = read(capture)
    verdict = judge().verdict(judge().facts(recorded.snapshots), usual_s)
    assert verdict.status == "slow"
    assert verdict.note.startswith("a step takes ")
    assert verdict.note.endswith(before or "s")


def test_a_healthy_job_says_that_its_ranks_hold_different_parameters() -> None:
    """Stages of a pipeline: nothing shows that they are no replicas."""
    (verdict,) = reported(DATA / "recordings" / "frameworks" / "pipeline_healthy.jsonl.zst").verdicts
    assert (verdict.status, verdict.findings) == ("healthy", ())
    assert re.search(r"parameter \S+ differs between ranks 0-2: expected of parts of one model", verdict.note)


def test_a_stopped_rank_stalls_a_job_whose_other_rank_still_moves(stage: Stage) -> None:
    """The other rank makes its last steps, or waits for a message in a way of its own."""
    looks = [
        [
            At((("train", 9 + n % 2),), variables={"train": [number("step", n)]}, state="R", cpu_s=float(n)),
            At((("train", 9),), state="T", runs=1),
        ]
        for n in range(6)
    ]
    verdict = judge().verdict(stage.facts(*looks))
    assert (verdict.status, verdict.findings[0].playbook) == ("stalled", "stopped-process")
