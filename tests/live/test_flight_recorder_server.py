"""The Flight Recorder of a job that offers it: read through the job's own debug server, and only there."""

from __future__ import annotations

import json
from functools import partial

from hangdoc.demo.harness import running
from tests.support.cli import watch_once
from tests.support.paths import HUNG
from tests.support.started import started
from tests.support.testbeds.network import free_port


def test_what_the_recorder_holds_is_told() -> None:
    with started(partial(running, HUNG / "leaves_early.py", 2, ("--debug-port", str(free_port()))), "step 10") as job:
        job.wait_still(3)
        best = watch_once(job.launcher_pid, "--ask", "recorder").verdict["findings"][0]
        told = [line["text"] for line in best["evidence"] if line["probe"] == "recorder"]
        assert best["playbook"] == "uneven-batches", json.dumps(best, indent=1)
        assert told, json.dumps(best, indent=1)
        assert "barrier" in told[0]
        assert "all_reduce" in told[0]
        assert job.launcher.poll() is None, "the job still runs"
