from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support import requirements
from tests.support.paths import ROOT

SECONDS = 1200


@pytest.mark.soak
@pytest.mark.slow("the daemon for 20 minutes, and until its last alert has arrived")
@pytest.mark.timeout(SECONDS + 900)
def test_jobs_come_and_go_hang_and_are_killed_under_a_daemon() -> None:
    """Each hang is one incident and one alert, a healthy job is none, and nothing grows: see tests/tools/soak.py."""
    requirements.met(requirements.commands(("faketime", "unshare"), "faketime util-linux"))
    requirements.met(None if os.geteuid() == 0 else "needs root")
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.soak", "--seconds", str(SECONDS)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
