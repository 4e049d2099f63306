"""Dumps that a real gloo job left of itself, through `hangdoc report`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import HANGDOC
from tests.support.paths import PROGRAMS, ROOT
from tests.support.testbeds.network import free_port

PROGRAM = PROGRAMS / "flight_recorder_job.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def dumps(folder: Path, form: str) -> None:
    address = ("--nproc-per-node", "3", "--master-addr", "127.0.0.1", "--master-port", str(free_port()))
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *address, str(PROGRAM), str(folder), form],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False,
    )  # fmt: skip
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize(
    ("form", "playbooks"),
    # JSON has no frames: that the call was skipped, and not replaced by another, it cannot tell
    [("pickle", {"conditional-collective"}), ("json", {"collective-mismatch"})],
)
def test_the_rank_that_skipped_a_collective_is_named(tmp_path: Path, form: str, playbooks: set[str]) -> None:
    dumps(tmp_path, form)
    done = subprocess.run(
        [*HANGDOC, "report", "--json", str(tmp_path)],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    verdict = json.loads(done.stdout)
    best = verdict["findings"][0]
    assert done.returncode == 2, done.stderr
    assert (best["playbook"], [one["rank"] for one in best["culprits"]]) in [(id, [2]) for id in playbooks], best
    assert verdict["job"]["world_size"] in (None, 3)
