"""A job that has been healthy for long is looked at rarely, and yet a rank that stops is seen at once, by its pulse."""

from __future__ import annotations

import os
import signal
import time

import pytest

from hangdoc.demo.harness import running
from hangdoc.watch.pace import CALM_GROWTH
from tests.support.cli import watching
from tests.support.paths import HEALTHY

CALM_S = 90.0
SOON_S = 15.0  # half of it is the patience with an ordinary pause

pytestmark = [pytest.mark.quiet, pytest.mark.slow("a job that is healthy for 90 s")]


@pytest.mark.timeout(300)
def test_a_rank_that_stops_after_a_long_calm() -> None:
    with running(HEALTHY / "steady.py", 2) as job:
        job.wait_log("step 20 ", 120)
        stopped = job.rank_pids()[1]
        with watching(job.launcher_pid, seconds=240) as watch:
            watch.until("healthy")
            time.sleep(CALM_S)
            os.kill(stopped, signal.SIGSTOP)
            began_s = time.monotonic()
            try:
                verdict = watch.until("verdict")["verdict"]
                took_s = time.monotonic() - began_s
            finally:
                os.kill(stopped, signal.SIGCONT)
            recovered = watch.until("recovered")
    best = verdict["findings"][0]
    assert (best["playbook"], [culprit["pid"] for culprit in best["culprits"]]) == ("stopped-process", [stopped])
    assert took_s < SOON_S < CALM_GROWTH * CALM_S, "looks alone would have taken longer"
    assert recovered["seconds"] < CALM_S
