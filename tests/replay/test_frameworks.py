"""Recorded jobs of real frameworks, judged again with the rules; `make frameworks KEEP=1` recorded them."""

from __future__ import annotations

import pytest

from hangdoc.verdict import Verdict
from tests.support.frameworks import Job, Said, jobs, score
from tests.support.judge import reported

RECORDED = [job for job in jobs() if job.recording.exists()]


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(job, marks=pytest.mark.xfail(reason=job.wrong_today, strict=True) if job.wrong_today else ())
        for job in RECORDED
    ],
    ids=str,
)
def test_recording_is_judged_as_what_the_job_was(job: Job) -> None:
    (verdict,) = reported(job.recording).verdicts
    said = of(verdict)
    assert score(job.truth, said).right, said


def of(verdict: Verdict) -> Said:
    if not verdict.findings:
        return Said(verdict.status)
    best = verdict.findings[0]
    culprits = sorted(culprit.rank for culprit in best.culprits if culprit.rank is not None)
    return Said(verdict.status, best.cls, tuple(culprits), best.playbook, best.confidence)
