"""The harness itself: jobs run, are seen to stand still, and leave nothing behind, however they are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from hangdoc.demo.harness import Trial, TrialError, running
from tests.support.cli import HANGDOC
from tests.support.paths import ROOT
from tests.support.started import started

WORKER = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)  # an orphan later
print("pid", os.getpid(), flush=True)
open(os.path.join(os.environ["TMPDIR"], "left.txt"), "w").close()
if sys.argv[1:] == ["die"]:
    sys.exit(3)
if sys.argv[1:] == ["stop"]:
    os.kill(os.getpid(), 19)
time.sleep(600)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "job.py"
    file.write_text(WORKER)
    return file


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("how", ["", "stop"])
def test_everything_is_ended(script: Path, how: str) -> None:
    with running(script, 1, [how] * bool(how), launcher="self") as job:
        job.wait_log("pid", 20)
        pids = [process.pid for process in job.processes()]
        assert len(pids) == 2
        job.wait_still(1)
    assert alive(pids) == []
    assert not job.folder.exists()


def test_orphans_of_a_dead_job_are_ended(script: Path) -> None:
    with running(script, 1, ["die"], launcher="self") as job:
        with pytest.raises(TrialError, match="exited with code 3"):
            job.wait_log("never written", 20)
        pids = [process.pid for process in job.processes()]
        assert len(pids) == 1
    assert alive(pids) == []


FIRST_HANGS = """
import pathlib, sys, time
seen = pathlib.Path(sys.argv[1])
def hang_here():
    time.sleep(600)
if not seen.exists():
    seen.touch()
    hang_here()
print("ready", flush=True)
time.sleep(600)
"""


def test_a_job_that_hangs_before_anybody_looks_is_run_once_more(tmp_path: Path) -> None:
    """And the warning says where it hung."""
    file = tmp_path / "job.py"
    file.write_text(FIRST_HANGS)
    run = partial(running, file, 1, [str(tmp_path / "seen")], launcher="self")
    with (
        pytest.warns(UserWarning, match=r"no 'ready' in the log after 2 s\n(.*\n)*.*hang_here"),
        started(run, "ready", 2),
    ):
        pass


def test_exception_ends_the_job(script: Path) -> None:
    pids: list[int] = []

    def broken(job: Trial) -> None:
        job.wait_log("pid", 20)
        pids.extend(process.pid for process in job.processes())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), running(script, 1, launcher="self") as job:
        broken(job)
    assert pids
    assert alive(pids) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_ends_its_job(number: signal.Signals) -> None:
    demo = subprocess.Popen([*HANGDOC, "demo"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        pids = ranks_below(demo.pid)
        demo.send_signal(number)
        assert demo.wait(30) == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
        assert alive(pids) == []
    finally:
        demo.kill()


def ranks_below(pid: int) -> list[int]:
    """Launcher and three ranks, once they run."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        pids = [child.pid for child in psutil.Process(pid).children(recursive=True)]
        if len(pids) >= 4:
            return pids
        time.sleep(0.1)
    raise AssertionError(f"no job below {pid} of {os.getpid()}")
