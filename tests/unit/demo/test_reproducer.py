"""Which diagnosis satisfies a demo, and what a reproducer's playbook must say."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hangdoc.demo import reproducer
from hangdoc.demo.harness import running
from hangdoc.errors import UsageError
from hangdoc.rules.schema import Expect, Reproducer
from hangdoc.verdict import Culprit, Finding, Job, Verdict

FINDING = Finding("late", "collective_wait", "high", "t", "s", (Culprit(2, 12, "h"), Culprit(0, 10, "h")))
BROKEN = reproducer.BrokenJob(
    "late", "collective_wait", Path("x"), Reproducer(ranks=3, within_s=1, expect=Expect(culprits=(0, 2)))
)


@pytest.mark.parametrize(
    ("findings", "met"),
    [
        ((FINDING,), True),
        ((), False),
        ((replace(FINDING, playbook="other"),), False),
        ((replace(FINDING, cls="network"),), False),
        ((replace(FINDING, culprits=(Culprit(2, 12, "h"),)),), False),
        ((replace(FINDING, culprits=()),), False),
        ((replace(FINDING, playbook="other"), FINDING), False),  # only the best one counts
    ],
)
def test_meets(findings: tuple[Finding, ...], met: bool) -> None:
    verdict = Verdict("stalled", 5.0, Job("none", 3, "torchrun", ("h",), ()), findings)
    assert BROKEN.meets([verdict]) is met


@pytest.mark.slow("waits until a log is silent")
@pytest.mark.parametrize(
    ("lines", "talk_s", "quiet"), [(["one"], None, True), ([], None, False), (["one"], 0.1, False)]
)
def test_log_is_followed_until_it_falls_silent(
    tmp_path: Path, lines: list[str], talk_s: float | None, quiet: bool
) -> None:
    shown: list[str] = []
    with running("-c", 1, ["import time; time.sleep(60)"], launcher="self") as trial:
        trial.log.write_text("\n".join(lines))
        log = reproducer.Log(trial, shown.append)
        assert log.follow(time.monotonic() + reproducer.QUIET_S + 1, talk_s) is quiet
    assert shown == lines


def test_unknown_failure_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="uneven-batches"):
        reproducer.broken("uneven-batch")


def test_the_job_runs_in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m` imports from where it runs first: where root stands may be somebody else's folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text("import os, time\nprint('in', os.getcwd(), flush=True)\ntime.sleep(60)\n")
    with running(Path("job.py"), 1, launcher="self") as job:
        assert job.wait_log("in .*", 30) == f"in {os.path.realpath(job.folder)}"
