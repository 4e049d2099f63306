"""`hangdoc watch -- COMMAND`: jobs that finish, hang, restart and are interrupted."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hangdoc.demo.harness import command
from hangdoc.introspect.joining import joins_children
from hangdoc.system import procfs
from tests.support.cli import HANGDOC, watch_once
from tests.support.paths import HUNG, PROGRAMS, ROOT
from tests.support.polling import until

PLAIN = [sys.executable, str(PROGRAMS / "plain_ranks.py")]
LIMIT_S = 150  # each takes about 20 s on a quiet machine


@contextmanager
def started(state: Path, options: list[str], job: list[str], **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The job under hangdoc, in a session of its own; what is left is killed."""
    process = subprocess.Popen(
        [*HANGDOC, "watch", *options, "--", *job],
        cwd=ROOT,
        env={**os.environ, "HANGDOC_STATE": str(state), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
        start_new_session=True,
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def watched(state: Path, options: list[str], job: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a job under hangdoc."""
    with started(state, options, job) as process:
        out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out.decode(), err.decode()


def incidents(state: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(state.glob("incidents/*/incident.json"))]


def test_a_job_that_finishes_is_left_in_peace(tmp_path: Path) -> None:
    code, out, err = watched(tmp_path, [], [*PLAIN, "finishes", "12"])
    assert (code, out, err) == (0, "", "hangdoc: watching 2 ranks\n")
    assert incidents(tmp_path) == []


def test_a_job_that_restarts_and_hangs_is_followed_and_ended_on_order(tmp_path: Path) -> None:
    options = ["--kill-after", "2", "--on-hang", "echo culprits: $HANGDOC_CULPRITS; test -s $HANGDOC_VERDICT"]
    code, out, err = watched(tmp_path, options, [*PLAIN, "restarts", "6"])
    assert (code, out) == (143, "")
    assert "RuntimeError: lost" in err  # the job's own, of its first attempt
    assert err.count("STALLED") == 1
    assert "Rank 1 is stopped (state T)" in err
    assert "equally likely" not in err
    assert "hangdoc: on-hang: culprits: rank 1 on" in err
    assert "--on-hang failed" not in err
    assert "hangdoc: ending the job, as --kill-after 2 orders: " in err
    (incident,) = (one for one in incidents(tmp_path) if one["status"] == "stalled")
    assert incident["outcome"]["kind"] == "killed"
    assert incident["outcome"]["text"] == "hangdoc ended the job on the user's order (--kill-after 2)."


def test_an_interrupted_job_is_no_incident(tmp_path: Path) -> None:
    rounds = tmp_path / "rounds"
    with started(tmp_path, ["--record", str(rounds)], [*PLAIN, "finishes", "300"]) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"hangdoc: watching 2 ranks\n"
        sizes = set[int]()  # of the recording, which grows with each round
        while len(sizes) < 6:
            sizes.add(sum(file.stat().st_size for file in rounds.glob("*")))
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, out, err) == (143, b"", b"")
    assert incidents(tmp_path) == []


def test_a_hung_torchrun_job_on_a_terminal(tmp_path: Path) -> None:
    """The verdict, once, below what the job writes; Ctrl-C ends the job as ever."""
    ours, theirs = pty.openpty()
    job = command(HUNG / "leaves_early.py", 2)
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    shown = b""
    with started(tmp_path, [], ["setsid", "--ctty", "--wait", *job], **streams) as process:
        os.close(theirs)
        while b"incident 2" not in shown:
            shown += os.read(ours, 65536)
        assert process.poll() is None
        os.write(ours, b"\x03")
        with suppress(OSError):  # EIO: nobody has the terminal open
            while piece := os.read(ours, 65536):
                shown += piece
        assert process.wait(LIMIT_S) != 0
    os.close(ours)
    text = shown.decode()
    before, _, verdict = text.partition("\r\nhangdoc -----")
    assert "step 10 loss" in before
    assert "uneven-batches" in verdict
    assert "\x1b[" not in text  # nothing is drawn again
    assert text.count("STALLED") == 1
    (incident,) = incidents(tmp_path)
    assert incident["verdicts"][0]["findings"][0]["playbook"] == "uneven-batches"


@pytest.mark.parametrize("options", [[], ["--kill-after", "60"]])
def test_a_command_that_is_no_job_ends_at_once(tmp_path: Path, options: list[str]) -> None:
    assert watched(tmp_path, options, ["sh", "-c", "echo done; exit 5"]) == (5, "done\n", "")


PREPARES_ALONE = """
import sys, torch.distributed as dist, torch.multiprocessing as mp

def merge(pairs):
    while len(pairs) < 1_000_000:
        pairs = {key: value + 1 for key, value in pairs.items()}

def work(rank):
    if rank == 0:
        merge({number: 0 for number in range(1000)})
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + sys.argv[1], rank=rank, world_size=3)

if __name__ == "__main__":
    mp.spawn(work, nprocs=3)
"""


@pytest.mark.slow("three ranks start, and are looked at until it is clear that one makes no step: 40 s")
def test_ranks_that_have_not_met_yet_are_found_by_their_parent(tmp_path: Path) -> None:
    """Below torch.multiprocessing.spawn nothing but the wait of the parent says that these are ranks."""
    script = tmp_path / "train.py"
    script.write_text(PREPARES_ALONE)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, str(script), str(port)], start_new_session=True) as job:
        try:
            until(lambda: len(procfs.children(job.pid)) == 4, within_s=60)  # a resource tracker as well
            until(lambda: joins_children(job.pid), within_s=60)
            time.sleep(15)
            said = watch_once(job.pid)
        finally:
            os.killpg(job.pid, signal.SIGKILL)
    ranks = {rank["rank"]: rank["site"] for rank in said.verdict["job"]["ranks"]}
    assert ranks.keys() == {0, 1, 2}, said.verdict
    assert ranks[0].endswith(("(train.py:5)", "(train.py:6)")), said.verdict  # before Python 3.12 in a <dictcomp>
    assert (said.verdict["findings"], said.code) == ([], 3), said.verdict
    # Rank 0 makes no step, and the others wait for it: which of the two is said depends on the pace of the machine.
    assert all(part in said.verdict["note"] for part in ("ranks 1-2", "; rank 0: compute at ")), said.verdict
