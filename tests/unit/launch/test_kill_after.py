"""When `--kill-after` applies, and what it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from hangdoc.launch.kill_after import KillAfter, descendants, end_tree, is_running
from hangdoc.system import procfs
from hangdoc.verdict import Verdict
from tests.support import verdicts
from tests.support.polling import until


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def certain(stalled_for_s: float | None = 10.0) -> Verdict:
    verdict = verdicts.uneven()
    return replace(verdict, stalled_for_s=stalled_for_s, findings=(replace(verdict.findings[0], confidence="high"),))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def armed(clock: Clock) -> KillAfter:
    """Told of a stall 30 s ago, with an order to end the job after 60 s."""
    ending = KillAfter(60.0, clock)
    ending.event("verdict", "none", certain())
    clock.now_s += 30
    assert not ending.is_due(certain(40.0))
    return ending


def test_due_once_the_stall_has_lasted(armed: KillAfter, clock: Clock) -> None:
    clock.now_s += 29
    assert not armed.is_due(certain(69.0))
    clock.now_s += 1
    assert armed.is_due(certain(70.0))


@pytest.mark.parametrize("kind", ["recovered", "rank_exited", "job_ended", "node_lost"])
def test_never_if_the_job_changed_meanwhile(armed: KillAfter, clock: Clock, kind: str) -> None:
    armed.event(kind, "none", None)
    clock.now_s += 60
    assert not armed.is_due(certain(100.0))


@pytest.mark.parametrize("seconds", [None, 5.0])
def test_never_if_the_job_moved_meanwhile(armed: KillAfter, clock: Clock, seconds: float | None) -> None:
    assert not armed.is_due(certain(seconds))
    clock.now_s += 60
    assert not armed.is_due(certain(100.0))


@pytest.mark.parametrize(
    "other",
    [
        replace(certain(), status="slow"),
        replace(certain(), findings=()),
        replace(certain(), findings=(replace(certain().findings[0], confidence="medium"),)),
    ],
    ids=["slow", "no finding", "not certain"],
)
def test_never_without_a_certain_verdict_on_a_hang(clock: Clock, other: Verdict) -> None:
    ending = KillAfter(60.0, clock)
    ending.event("verdict", "none", other)
    clock.now_s += 100
    assert not ending.is_due(replace(other, stalled_for_s=200.0))


def test_another_verdict_starts_the_time_again(armed: KillAfter, clock: Clock) -> None:
    other = replace(certain(), findings=(replace(certain().findings[0], playbook="dead-link"),))
    armed.event("verdict", "none", other)
    clock.now_s += 30
    assert not armed.is_due(replace(other, stalled_for_s=100.0))
    clock.now_s += 30
    assert armed.is_due(replace(other, stalled_for_s=130.0))


def test_the_same_verdict_again_does_not(armed: KillAfter, clock: Clock) -> None:
    armed.event("verdict", "none", certain(40.0))
    clock.now_s += 30
    assert armed.is_due(certain(70.0))


# --- the end --------------------------------------------------------------------------------------

TREE = """
import os, signal, subprocess, sys, time
if sys.argv[1] == "stubborn" or len(sys.argv) > 3:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) < 4:
    subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1], sys.argv[2], "child"])
print("ready", flush=True)
time.sleep(300)
"""


@pytest.fixture(params=["obedient", "stubborn"])
def tree(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A parent and a child that ignores SIGTERM; the parent does if it is stubborn."""
    command = [sys.executable, "-c", TREE, request.param, TREE]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def identity(pid: int) -> tuple[int, int]:
    stat = procfs.stat(pid)
    assert stat is not None
    return pid, stat.start_ticks


def test_the_whole_tree_is_ended(tree: subprocess.Popen[str]) -> None:
    (child,) = descendants(identity(tree.pid))
    said: list[str] = []
    end_tree(identity(tree.pid), said.append, grace_s=0.5)
    assert tree.wait(10) == (-signal.SIGKILL if tree.args[3] == "stubborn" else -signal.SIGTERM)  # type: ignore[index]
    until(lambda: not is_running(child))
    assert len(said) == 1
    assert "left 500 ms after SIGTERM" in said[0]


def test_a_process_with_a_reused_pid_is_left_alone(tree: subprocess.Popen[str]) -> None:
    pid, start = identity(tree.pid)
    end_tree((pid, start - 1), lambda text: None, grace_s=0.2)
    assert list(descendants((pid, start - 1))) == []
    assert is_running((pid, start))


def test_nobody_but_the_tree_is_signalled(tree: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    reached = []
    monkeypatch.setattr("hangdoc.launch.kill_after.signal.pidfd_send_signal", lambda fd, number: reached.append(number))
    end_tree(identity(tree.pid), lambda text: None, grace_s=0.1)
    assert reached[0] == signal.SIGTERM
    assert reached.count(signal.SIGTERM) == 1  # to the launcher, which asks its ranks
    assert tree.poll() is None
