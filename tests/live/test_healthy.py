"""On healthy jobs nothing fires: steady ones, and those whose pauses look like a stall.

A rank that computes in a loop of its own while its peers wait for it may never come: such a job is not called healthy
either, and the note says what was seen.
"""

from __future__ import annotations

import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from hangdoc.demo.harness import Trial, running
from tests.support.cli import hangdoc, watch_once
from tests.support.paths import HEALTHY
from tests.support.started import started
from tests.support.testbeds import network

pytestmark = pytest.mark.quiet
HANGS_S = 60.0  # without a line in the log, of a job that logs each of its steps or epochs


@dataclass(frozen=True)
class Case:
    script: str
    until: str = r"loss"  # in the log, before it is looked at
    args: tuple[str, ...] = ()
    launcher: str = "torchrun"
    pause_s: float = 0.0  # look so long after that
    ranks: int = 2
    note: str = ""  # a pattern of what must be said of it
    code: int = 0  # 3: nobody can tell from outside

    def __str__(self) -> str:
        return self.script


CASES = [  # two by two: one that leaves the other some of the cores
    Case("steady"),
    Case("waits_for_thread", until=r"uploading", pause_s=3),
    Case("module_level"),
    Case(
        "comes_late",
        until=r"joining",
        pause_s=12,
        note=r"no progress seen on rank 1 in .*rank 0: startup init_process_group.*rank 1: compute at read",
        code=3,
    ),
    Case("spawned", launcher="self", args=("--ranks", "2")),
    Case("shares_download", until=r"downloading", pause_s=6, note=r"wait for a lock file"),
    Case("accumulation"),
    Case("waits_for_file", until=r"trained", pause_s=6),
    Case("checkpoints", until=r"saved"),
    Case("loaders", until=r"gets ready", args=("--how", "warm_up")),
    Case("reads_pipe", until=r"uploading"),
    Case("evaluates_often", until=r"accuracy"),
    Case("collects_garbage"),
    Case("loaders", args=("--how", "persistent")),
    Case("epochs"),
    Case("shares_build", until=r"compiling", pause_s=4, note=r"compile wait for a compile lock"),
    Case("profiled", until=r"KiB of trace"),
    Case("loaders", args=("--how", "respawned")),
    Case("rank0_evaluates", until=r"evaluating", pause_s=6, args=("--evaluation-seconds", "60")),
    Case("between_hosts", launcher="self", args=("--how", "loses_little")),
    Case("between_hosts", launcher="self", args=("--how", "narrow")),
    Case("compile_warmup", until=r"compiling", pause_s=4, note=r"compile at main"),
]


PAIRS = list(zip(CASES[::2], CASES[1::2], strict=True))
FIRST, *LATER = PAIRS


@pytest.mark.parametrize(
    "pair", [pytest.param(FIRST, marks=pytest.mark.selection), *LATER], ids=lambda pair: "-".join(map(str, pair))
)
def test_nothing_fires(pair: tuple[Case, Case]) -> None:
    """Two side by side, as on a busy host, and in half the time."""
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(check, case) for case in pair]:
            done.result()


def check(case: Case) -> None:
    """A job that really hangs is not healthy, and is started again, once: a fork beside threads may deadlock."""
    if not is_quiet(case, may_hang=not case.pause_s):
        is_quiet(case, may_hang=False)


def is_quiet(case: Case, may_hang: bool) -> bool:
    """Fails if something is said of the job. False: it stands still, and nobody will end that."""
    if case.script == "between_hosts":
        network.require()
    run = partial(running, HEALTHY / f"{case.script}.py", case.ranks, case.args, launcher=case.launcher)
    with started(run, case.until) as job:
        time.sleep(case.pause_s)
        before = job.text()
        said = watch_once(job.launcher_pid)
        told = json.dumps(said.verdict, indent=1)
        if may_hang and said.verdict["status"] == "stalled" and stands_still(job):
            print(f"{case} hung by itself: {told}")
            return False
        assert said.verdict["findings"] == [], told
        assert said.code == case.code, told
        assert re.search(case.note, said.verdict["note"]), told
        assert len(said.verdict["job"]["ranks"]) == case.ranks, told
        if not case.pause_s:
            assert len(job.text()) > len(before), "the job went on while it was watched"
    return True


def stands_still(job: Trial) -> bool:
    """It logs nothing for so long that no pause of a healthy job explains it."""
    before = job.text()
    time.sleep(HANGS_S)
    return job.text() == before


def test_job_between_two_inputs_goes_on_unharmed() -> None:
    """Nothing fires while it waits for the next request, and it serves that one."""
    with started(partial(running, HEALTHY / "waits_for_request.py", 2), r"port \d+") as job:
        port = int(job.wait_log(r"port \d+", 1).split()[1])
        job.wait_log(r"done 50", 60)
        time.sleep(6)
        said = watch_once(job.launcher_pid)
        assert (said.code, said.verdict["findings"]) == (0, []), json.dumps(said.verdict, indent=1)
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"7\n")
        job.wait_log(r"done 7 steps", 30)


def test_reference_job_is_watched_from_start_to_end(tmp_path: Path) -> None:
    """`hangdoc demo healthy`: both its runs are seen, nothing is raised, and its results stay."""
    done = hangdoc("demo", "healthy", timeout=240, env={"TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "raised no alarm" in done.stdout
    assert done.stdout.count("started") == 2, done.stdout
    (folder,) = tmp_path.glob("hangdoc-reference-*")
    assert {"timings.jsonl", "state-0.pt", "state-1.pt", "manifest.json"} <= {file.name for file in folder.iterdir()}
