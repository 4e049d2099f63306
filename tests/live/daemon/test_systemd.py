"""The unit of `deploy/systemd` in a real systemd: its rights, its reload, and its watchdog."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hangdoc.system.netns import call_inside
from tests.benchmarks.short_jobs import SCRIPT
from tests.support.daemon import Receiver
from tests.support.other_user import STRANGER
from tests.support.paths import ROOT
from tests.support.polling import until
from tests.support.systemd_container import Container, container

UNIT = ROOT / "deploy/systemd/hangdoc.service"
VENV = Path(sys.executable).parent.parent
# The unit as it is, but for the time until the watchdog bites and until the daemon is started again. Its /tmp is
# private (DynamicUser), so a checkout there is bound into it.
CHANGED = f"""[Service]
WatchdogSec=8
TimeoutStopSec=2
RestartSec=1
BindReadOnlyPaths={ROOT} {VENV}
"""
RIGHTS = {"SYS_PTRACE": 19, "DAC_READ_SEARCH": 2, "SYSLOG": 34}
JOB = """
import sys
from pathlib import Path
from tests.benchmarks import short_jobs
job = short_jobs.started(Path(sys.argv[1]), 7, 2)
print(job.name, *(rank.pid for rank in job.ranks), flush=True)
sys.stdin.read()
job.end()
"""


def install(box: Container, url: str) -> None:
    """The unit, its configuration, and what /opt/hangdoc of a real machine has: this checkout's environment."""
    for path in {VENV, ROOT, Path(sys.executable).resolve()}:
        for folder in path.parents:  # another user runs the job with the same Python
            (box.root / folder.relative_to("/")).chmod(0o755)
    (box.root / "opt").mkdir(exist_ok=True)
    (box.root / "opt/hangdoc").symlink_to(VENV)
    units = box.root / "etc/systemd/system"
    (units / "hangdoc.service.d").mkdir()
    (units / "hangdoc.service.d/test.conf").write_text(CHANGED)
    (units / UNIT.name).write_text(UNIT.read_text())
    (box.root / "etc/hangdoc").mkdir()
    configure(box, url, keep_days=7)


def configure(box: Container, url: str, keep_days: int) -> None:
    (box.root / "etc/hangdoc/hangdoc.toml").write_text(
        f'[jobs]\nlabels = ["{SCRIPT.name}"]\n[alerts.webhook]\nurl = "{url}"\n[incidents]\nkeep_days = {keep_days}\n'
    )


@contextmanager
def job(box: Container) -> Iterator[tuple[str, list[str]]]:
    """A job of another user: its name, and its ranks' PIDs in the container."""
    folder = box.root / "tmp/job"
    folder.mkdir()
    os.chown(folder, STRANGER, STRANGER)
    user = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"]
    python = ["env", "-i", f"PYTHONPATH={ROOT}", "PYTHONDONTWRITEBYTECODE=1", sys.executable, "-c", JOB, "/tmp/job"]
    with subprocess.Popen(
        box.command(*user, *python), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        name, *ranks = process.stdout.readline().split()
        try:
            yield name, ranks
        finally:
            process.kill()


def rights(box: Container, pid: str) -> tuple[int, set[int]]:
    """Effective uid and capabilities of a process of the container."""
    status = dict(re.findall(r"^(\w+):\t(.*)$", box.run("cat", f"/proc/{pid}/status").stdout, re.MULTILINE))
    held = int(status["CapEff"], 16)
    return int(status["Uid"].split()[1]), {bit for bit in range(64) if held >> bit & 1}


@pytest.mark.slow("boots a systemd, and waits for its watchdog: 50 s")
def test_the_unit_watches_reloads_and_survives_a_daemon_that_hangs() -> None:
    with container("CAP_SYSLOG") as box:
        receiver = call_inside(box.leader, Receiver)
        install(box, receiver.url)
        started = box.run("systemctl", "start", "hangdoc")  # returns once the daemon has said READY=1
        log = ["journalctl", "--unit=hangdoc", "--output=cat", "--no-pager"]
        assert started.returncode == 0, box.run(*log).stdout
        pid = box.property("hangdoc", "MainPID")
        uid, held = rights(box, pid)
        assert uid != 0
        assert held == set(RIGHTS.values())

        with job(box) as (name, ranks):
            until(lambda: f"job {name}: healthy" in box.run(*log).stdout, within_s=60)
            configure(box, receiver.url, keep_days=8)
            assert box.run("systemctl", "reload", "hangdoc").returncode == 0
            until(lambda: "is in effect" in box.run(*log).stdout)
            assert box.property("hangdoc", "MainPID") == pid

            box.run("kill", "-STOP", ranks[1])
            until(lambda: bool(receiver.kinds()), within_s=60)
            (incident,) = receiver.kinds()
            assert "stalled: A rank is stopped by a signal" in box.run(*log).stdout

            box.run("kill", "-STOP", pid)  # a daemon that finishes no round
            until(lambda: box.property("hangdoc", "NRestarts") == "1", within_s=40)
            until(lambda: box.property("hangdoc", "ActiveState") == "active", within_s=40)
            assert box.property("hangdoc", "MainPID") not in ("0", pid)
            until(lambda: box.run(*log).stdout.count(f"job {name}: watching 2 ranks") == 2, within_s=60)
            box.run("kill", "-CONT", ranks[1])
            until(lambda: receiver.kinds()[incident]["resolved"] == 1, within_s=60)

        assert box.run("systemctl", "stop", "hangdoc").returncode == 0
        assert box.property("hangdoc", "Result") == "success", box.run(*log).stdout
        assert {id: kinds["fired"] for id, kinds in receiver.kinds().items()} == {incident: 1}
        assert (box.root / "var/lib/private/hangdoc/incidents" / incident).is_dir()
        receiver.close()
