"""Every shipped reproducer, run live, gets its own diagnosis: playbook, class, culprits and the telling evidence."""

from __future__ import annotations

import json
import re
import time
import uuid
from dataclasses import dataclass

import pytest

from hangdoc import demo
from hangdoc.trial import carrying
from jobs import Trial
from watching import Said, hangdoc, watch_once


@dataclass(frozen=True)
class Case:
    """A reproducer with other arguments than the demo's, and what its evidence must tell."""

    playbook: str
    args: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()  # patterns; each must be found in a line of the evidence
    status: str = "stalled"
    until: str = r"loss"  # in the log: the job trains

    def __str__(self) -> str:
        return " ".join((self.playbook, *self.args))


CASES = [
    Case("uneven-batches", ("--variant", "split"), (r"= (38|646), (39|647) on", r"barrier at save_checkpoint")),
    Case("uneven-batches", ("--variant", "sampler"), (r"step = 18, 19 on", r"all_gather(_object)? at .*on_epoch_end")),
    Case("bf16-on-cpu", ("--variant", "pure"), (r"bfloat16", r"ATEN_CPU_CAPABILITY|ONEDNN_MAX_CPU_ISA"), "slow"),
    Case("bf16-on-cpu", ("--variant", "autocast"), (r"bfloat16",), "slow"),
    Case("stopped-process", ("--variant", "self"), (r"state T", r"give_way")),
    Case("stopped-process", ("--variant", "outside"), (r"state T",)),
]
SLOW = "slow"


def needed_namespaces(job: demo.Broken) -> None:
    if job.told.launcher == "self":
        import netbed

        netbed.require()


def diagnosed(job: demo.Broken, trial: Trial, status: str) -> Said:
    """What is said once the job hangs; a slow one is asked about until there has been enough to see."""
    if status != SLOW:
        trial.wait_still(3)
        return watch_once(trial.launcher_pid)
    end = time.monotonic() + job.told.within_s
    while not (said := watch_once(trial.launcher_pid)).verdict["findings"] and time.monotonic() < end:
        continue
    return said


def assert_diagnosis(job: demo.Broken, said: Said, status: str) -> list[str]:
    """Playbook, class, culprits and exit code are right; returns the evidence."""
    verdict = said.verdict
    told = json.dumps(verdict, indent=1)
    assert verdict["findings"], told
    best = verdict["findings"][0]
    assert (best["playbook"], best["class"]) == (job.playbook, job.cls), told
    assert sorted(culprit["rank"] for culprit in best["culprits"]) == sorted(job.told.expect.culprits), told
    assert (verdict["status"], said.code) == (status, {"slow": 1, "stalled": 2}[status]), told
    assert best["links"] or job.cls != "network", told
    assert len(verdict["job"]["ranks"]) == job.told.ranks
    return [line["text"] for line in best["evidence"]]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reproducer_is_diagnosed(case: Case) -> None:
    job = demo.broken(case.playbook)
    with job.running(case.args) as trial:
        trial.wait_log(case.until, 90)
        said = diagnosed(job, trial, case.status)
        states = [process.status() for process in trial.processes() if process.pid in trial.rank_pids()]
        evidence = assert_diagnosis(job, said, case.status)
        for pattern in case.evidence:
            assert any(re.search(pattern, line) for line in evidence), (pattern, evidence)
        if case.playbook != "stopped-process":
            assert "stopped" not in states, "the job was left stopped"


@pytest.mark.parametrize("id", sorted(set(demo.ids()) - {case.playbook for case in CASES}))
def test_further_reproducer_is_diagnosed(id: str) -> None:
    """Playbooks added later are held to what their own `expect` says."""
    job = demo.broken(id)
    needed_namespaces(job)
    with job.running() as trial:
        trial.wait_log(r"loss|step", 90)
        trial.wait_still(3)
        assert_diagnosis(job, watch_once(trial.launcher_pid), "stalled")


def test_demo_ends_what_it_started() -> None:
    """The command itself: exit code 0, the verdict on stdout, the job's log on stderr, no process left."""
    mark = uuid.uuid4().hex
    done = hangdoc("demo", timeout=120, env={"HANGDOC_TEST": mark})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "uneven-batches" in done.stdout
    assert "STALLED" in done.stdout
    assert "loss" in done.stderr
    assert carrying(f"HANGDOC_TEST={mark}") == []
