"""The daemon as a user of its own with three capabilities, and without each of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import HANGDOC
from tests.support.daemon import Daemon
from tests.support.other_user import Stranger, stranger
from tests.support.requirements import met

SERVICE = 65533  # the service's own user
RANK = "import time; print('ready', flush=True); time.sleep(100)"
RIGHTS = ("sys_ptrace", "dac_read_search", "syslog")


@pytest.fixture
def rank() -> Iterator[Stranger]:
    with stranger(RANK, environment={"RANK": "0", "WORLD_SIZE": "1"}) as found:
        yield found


def as_service(*rights: str) -> list[str]:
    """The command that gives up everything but these capabilities."""
    met(None if shutil.which("setpriv") else "no setpriv (apt-get install util-linux)")
    kept = ",".join(("-all", *(f"+{right}" for right in rights)))
    given = (f"--bounding-set={kept}", f"--inh-caps={kept}", f"--ambient-caps={kept}")
    return ["setpriv", f"--reuid={SERVICE}", f"--regid={SERVICE}", "--clear-groups", "--no-new-privs", *given]


@pytest.mark.slow("a daemon that finds a rank: 10 s")
def test_with_three_capabilities_it_watches_a_job_of_another_user(rank: Stranger) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "hangdoc.toml").write_text('[jobs]\nlabels = ["job.py"]\n[metrics]\nport = 0\n')
        for own in ("state", "run"):
            (folder / own).mkdir(mode=0o700)
            os.chown(folder / own, SERVICE, SERVICE)
        running = Daemon(folder, {"RUNTIME_DIRECTORY": f"{folder}/run"}, prefix=as_service(*RIGHTS))
        try:
            running.says("watching 1 ranks")
            assert running.end() == 0
        finally:
            running.process.kill()
            running.process.wait()
        assert not [line for line in running.lines if " error: " in line or " warning: " in line]


def test_doctor_names_what_is_missing() -> None:
    done = subprocess.run(
        [*as_service(*RIGHTS[:2]), *HANGDOC, "doctor", "--json"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    checks = {check["name"]: check for check in map(json.loads, done.stdout.splitlines())}
    assert checks["jobs of other users"]["ok"] is True
    assert checks["kernel log"]["ok"] is None
    assert "CAP_SYSLOG" in checks["kernel log"]["fix"]
