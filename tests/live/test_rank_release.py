"""Ranks that were paused are let go, whatever ends hangdoc."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hangdoc.demo.harness import Trial, carrying
from tests.support.cli import HANGDOC, watch_once
from tests.support.paths import ROOT
from tests.support.polling import until
from tests.support.process_state import STOPPED, assert_untouched, threads, traces, watched

LET_GO_S = 1.0  # measured 0.3 s in 1,000 kills
WATCH = [*HANGDOC, "watch", "--once", "--pids"]


def dumpers(mark: str) -> list[int]:
    """Native dumps that go on."""
    found = []
    for process in carrying(f"HANGDOC_TEST={mark}"):
        try:
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"--native" in command:
            found.append(process.pid)
    return found


@pytest.mark.parametrize(("victims", "after_s"), [("hangdoc", 0.0), ("hangdoc", 0.25), ("py-spy", 0.25), ("both", 0.1)])
def test_kill_during_the_examination_leaves_no_rank_stopped(hung: Trial, victims: str, after_s: float) -> None:
    """SIGKILL at its worst moment: native dumps have been started, and hold the ranks or are about to."""
    pids, mark = hung.rank_pids(), f"{os.getpid()}-{victims}-{after_s}"
    before = [traces(pid) for pid in pids]
    watch = subprocess.Popen(
        [*WATCH, str(hung.launcher_pid)], cwd=ROOT, env={**os.environ, "HANGDOC_TEST": mark},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 30
        while not (dumps := dumpers(mark)):
            assert time.monotonic() < deadline, "no native dump was begun"
        time.sleep(after_s)
        if victims != "hangdoc":
            for pid in dumps:
                os.kill(pid, signal.SIGKILL)
        if victims != "py-spy":
            watch.kill()
        code = watch.wait(30)
    finally:
        watch.kill()
    assert code == (2 if victims == "py-spy" else -signal.SIGKILL)
    while dumpers(mark):  # of a killed hangdoc: they end by themselves
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # A killed dump has no command line any more while the kernel frees its memory, and lets go of its rank after that.
    until(lambda: not any(STOPPED & set(threads(pid).values()) for pid in pids), within_s=LET_GO_S)
    assert_untouched(pids)
    assert all(set(threads(pid).values()) <= set("SRD") for pid in pids)
    assert [traces(pid) for pid in pids] == before


def test_examination_pauses_briefly_and_lets_go(hung: Trial) -> None:
    """The pause is there, else the test above would prove nothing; it is short, and over with the verdict."""
    pids = hung.rank_pids()
    with watched(pids) as watcher:
        said = watch_once(hung.launcher_pid)
    assert said.verdict["findings"][0]["playbook"] == "uneven-batches"
    assert watcher.paused
    assert_untouched(pids)
