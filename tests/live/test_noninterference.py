"""The observed job pays nothing: while it is healthy it is never paused."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import pytest

from hangdoc.demo.harness import Trial, running
from tests.support.cli import HANGDOC, watch_once
from tests.support.paths import HEALTHY, ROOT
from tests.support.process_state import Watcher, assert_untouched, traces, watched
from tests.support.started import started

pytestmark = pytest.mark.quiet

WATCH = [*HANGDOC, "watch", "--pids"]


@pytest.fixture(scope="module")
def steady() -> Iterator[Trial]:
    with started(partial(running, HEALTHY / "steady.py", 2), "loss") as trial:
        yield trial


def steps(trial: Trial) -> int:
    return int(re.findall(r"^step (\d+)", trial.text(), re.MULTILINE)[-1])


def assert_never_paused(watcher: Watcher, looks: int) -> None:
    assert watcher.looks > looks, f"only {watcher.looks} looks: too few to tell"
    assert watcher.paused == []


def test_one_verdict_on_a_healthy_job(steady: Trial) -> None:
    pids = steady.rank_pids()
    before, step = [traces(pid) for pid in pids], steps(steady)
    with watched(pids) as watcher:
        said = watch_once(steady.launcher_pid)
    assert (said.code, said.verdict["status"]) == (0, "healthy"), said
    assert_never_paused(watcher, 300)
    assert_untouched(pids)
    assert [traces(pid) for pid in pids] == before
    assert steps(steady) > step + 50


def test_ten_seconds_of_live_watch_of_a_healthy_job(steady: Trial) -> None:
    pids = steady.rank_pids()
    before = [traces(pid) for pid in pids]
    with watched(pids) as watcher:
        watch = subprocess.Popen(
            [*WATCH, str(steady.launcher_pid), "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        pace = []
        for _ in range(11):
            time.sleep(1)
            pace.append(steps(steady))
        watch.send_signal(signal.SIGINT)
        out, _ = watch.communicate(timeout=10)
    assert watch.returncode == 130
    assert {json.loads(line)["event"] for line in out.splitlines()} <= {"started", "healthy"}, out
    assert all(later > earlier for earlier, later in pairwise(pace)), pace
    assert_never_paused(watcher, 300)
    assert_untouched(pids)
    assert [traces(pid) for pid in pids] == before
