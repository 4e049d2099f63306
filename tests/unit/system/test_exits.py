"""How real processes end, seen by one that is not their parent's waiting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hangdoc.evidence import End, Target
from hangdoc.system import kernel_log, oom_kills, procfs
from hangdoc.system.exits import Exits, text

SEGFAULT = "import ctypes; ctypes.string_at(16)"
LATEST = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (6, 15)
collected = pytest.mark.skipif(not LATEST, reason="this kernel forgets how a process ended once it was collected")


@contextmanager
def program(code: str = "") -> Iterator[tuple[subprocess.Popen[bytes], Target]]:
    """A process that waits for its standard input to be closed, and then runs `code`."""
    lines = f"import os, resource, sys\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nsys.stdin.read()\n{code}\n"
    with subprocess.Popen([sys.executable, "-c", lines], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield process, as_target(process.pid)
        finally:
            process.kill()


def as_target(pid: int) -> Target:
    stat = procfs.stat(pid)
    assert stat
    return Target(pid, stat.start_ticks, "here", 0)


def let_end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def descriptors() -> set[str]:
    return {fd for fd in os.listdir("/proc/self/fd") if "pidfd" in (procfs.link(f"/proc/self/fd/{fd}") or "")}


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("", (0, None)),
        ("os._exit(3)", (3, None)),
        ("os.kill(os.getpid(), 9)", (None, 9)),
        ("os.abort()", (None, signal.SIGABRT)),
        (SEGFAULT, (None, signal.SIGSEGV)),
    ],
)
@pytest.mark.parametrize("was_collected", [False, pytest.param(True, marks=collected)], ids=["zombie", "collected"])
def test_how_it_ends(code: str, how: tuple[int | None, int | None], was_collected: bool) -> None:
    exits, known = Exits(), descriptors()  # other tests' samplers may not be gone yet
    with program(code) as (process, target):
        exits.watch([target])
        assert exits.runs(target) is True
        assert exits.end(target) is None
        before = time.monotonic()
        let_end(process)
        if was_collected:
            process.wait(10)
        assert exits.wait(before + 10)
        assert exits.runs(target) is False
        end = exits.end(target)
    assert end is not None
    assert (end.code, end.signal) == how
    assert end.at_s is not None
    assert before < end.at_s < before + 10
    assert descriptors() <= known


def test_who_ended_before_the_watch() -> None:
    with program("os._exit(4)") as (process, target):
        let_end(process)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        exits = Exits()
        exits.watch([target])
        assert exits.end(target) == End(code=4, at_s=None)


def test_the_order_of_two_ends() -> None:
    exits = Exits()
    with program() as (_, first), program() as (other, second):
        exits.watch([first, second])
        let_end(other)
        exits.wait(time.monotonic() + 10)
        os.kill(first.pid, signal.SIGKILL)
        exits.wait(time.monotonic() + 10)
        ends = [exits.end(second), exits.end(first)]
    assert ends[0] and ends[0].at_s and ends[1] and ends[1].at_s  # noqa: PT018
    assert ends[0].at_s < ends[1].at_s


def test_nothing_ends_in_time() -> None:
    exits, known = Exits(), descriptors()
    with program() as (_, target):
        exits.watch([target])
        before = time.monotonic()
        assert not exits.wait(before + 0.05)
        assert time.monotonic() - before >= 0.05
        exits.watch([])
        assert descriptors() <= known
        assert exits.runs(target) is None


def test_another_process_with_its_number() -> None:
    exits = Exits()
    mine = as_target(os.getpid())
    gone = Target(mine.pid, mine.start_ticks - 1, "here", 0)
    exits.watch([gone, Target(-7, 0, "here", 1)])
    assert exits.runs(gone) is None
    assert exits.end(gone) is None


def test_without_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", refused)
    exits = Exits()
    with program("os._exit(5)") as (process, target):
        exits.watch([target])
        assert exits.runs(target) is None
        let_end(process)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        exits.watch([target])
        end = exits.end(target)
    assert end is not None
    assert end.code == 5


def test_out_of_memory_kills_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oom_kills, "counter", lambda pid, mounts: oom_kills.Counter("memory.events", 2))
    monkeypatch.setattr(oom_kills, "again", lambda before: before and oom_kills.Counter(before.path, 3))
    monkeypatch.setattr(kernel_log, "about", lambda pids, target: (f"Killed process {target.pid}",))
    exits = Exits()
    with program() as (process, target):
        exits.watch([target])
        process.kill()
        exits.wait(time.monotonic() + 10)
        end = exits.end(target)
    assert end is not None
    assert (end.oom_kills, end.oom_counter) == (1, "memory.events")
    assert end.kernel == (f"Killed process {target.pid}",)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (End(signal=9), "signal 9 (SIGKILL)"),
        (End(signal=36), "signal 36 (SIGRTMIN+2)"),
        (End(code=0), "exit code 0"),
        (End(), None),
    ],
)
def test_text(end: End, told: str | None) -> None:
    assert text(end) == told
