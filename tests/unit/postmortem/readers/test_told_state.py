from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._told_state import MAX_TEXT, said_stuck, several_jobs


@pytest.mark.parametrize(
    "text",
    [
        "it hangs at the end of every epoch, no error",
        "It ALWAYS hangs at the END of an epoch, never in the middle.",
        "8 gpus, frozen since noon",
        "after this nothing for half an hour, GPUs at 100",
        "<nothing after this, 20 min>",
        "[r0] step 5\nthis time forever.",
        "(no further records; it is 10:05 now)",
        "no output for two hours",
        "clock is at +1940, nothing was added to either file",
        "ends like this, then 9 hours of silence",
        "has been sitting here for half an hour",
        "it does the print and then nothing",
        "gets through the first shard and then just stays",
        "Waiting since 11:20.",
        "it starts and stays there forever:",
        "state R, I see this and nothing more",
    ],
)
def test_a_person_says_that_the_job_stands_still(text: str) -> None:
    said = said_stuck(text, "stdin")
    assert said is not None
    assert said.line == text.count("\n") + 1


@pytest.mark.parametrize(
    "text",
    [
        "Is it stuck?",
        "No errors, nothing hangs.",
        "no hangs since the upgrade",
        "it would hang without the fix",
        "colleague asked whether it hangs",
        "2026-01-02 03:04:05 INFO worker hangs up",
        "[rank3]: the job is stuck",
        "rank 2 stuck at step 4",
        "it is not a hang but 1.9 s/it",
        "training finished",
        "x" * MAX_TEXT + "\nit hangs",
    ],
)
def test_nobody_says_so(text: str) -> None:
    assert said_stuck(text, "stdin") is None


@pytest.mark.parametrize(
    ("text", "jobs"),
    [
        ("slurm-814120.out:\n2: error\nslurm-814177.out:\n10: error", "814120, 814177"),
        ("slurm-814120_3.out, then srun: Terminating StepId=814177.0", "814120, 814177"),
        ("slurm-814120.out\nsrun: Terminating StepId=814120.0", None),
        ("slurm-wlm 23.02, slurm-814120.out", None),
    ],
)
def test_output_of_several_jobs(text: str, jobs: str | None) -> None:
    found = several_jobs(text, "stdin")
    assert (found.text if found else None) == jobs
