"""How processes end, observed by a process that need not be their parent; and the kernel log about them."""

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
from hangdoc.system import cgroups, exits, procfs
from hangdoc.system.exits import ExitWatcher, format_exit

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
def test_exit_status(code: str, how: tuple[int | None, int | None], was_collected: bool) -> None:
    watcher, known = ExitWatcher(), descriptors()  # other tests' samplers may not be gone yet
    with program(code) as (process, target):
        watcher.watch([target])
        assert watcher.is_running(target) is True
        assert watcher.end(target) is None
        before = time.monotonic()
        let_end(process)
        if was_collected:
            process.wait(10)
        assert watcher.wait(before + 10)
        assert watcher.is_running(target) is False
        end = watcher.end(target)
    assert end is not None
    assert (end.code, end.signal) == how
    assert end.at_s is not None
    assert before < end.at_s < before + 10
    assert descriptors() <= known


def test_a_process_that_ended_before_the_watch() -> None:
    with program("os._exit(4)") as (process, target):
        let_end(process)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        watcher = ExitWatcher()
        watcher.watch([target])
        assert watcher.end(target) == End(code=4, at_s=None)


def test_order_of_two_exits() -> None:
    watcher = ExitWatcher()
    with program() as (_, first), program() as (other, second):
        watcher.watch([first, second])
        let_end(other)
        watcher.wait(time.monotonic() + 10)
        os.kill(first.pid, signal.SIGKILL)
        watcher.wait(time.monotonic() + 10)
        ends = [watcher.end(second), watcher.end(first)]
    assert ends[0] and ends[0].at_s and ends[1] and ends[1].at_s  # noqa: PT018
    assert ends[0].at_s < ends[1].at_s


def test_wait_returns_at_its_deadline() -> None:
    watcher, known = ExitWatcher(), descriptors()
    with program() as (_, target):
        watcher.watch([target])
        before = time.monotonic()
        assert not watcher.wait(before + 0.05)
        assert time.monotonic() - before >= 0.05
        watcher.watch([])
        assert descriptors() <= known
        assert watcher.is_running(target) is None


def test_a_reused_pid_is_not_watched() -> None:
    watcher = ExitWatcher()
    mine = as_target(os.getpid())
    gone = Target(mine.pid, mine.start_ticks - 1, "here", 0)
    watcher.watch([gone, Target(-7, 0, "here", 1)])
    assert watcher.is_running(gone) is None
    assert watcher.end(gone) is None


def test_without_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", refused)
    watcher = ExitWatcher()
    with program("os._exit(5)") as (process, target):
        watcher.watch([target])
        assert watcher.is_running(target) is None
        let_end(process)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        watcher.watch([target])
        end = watcher.end(target)
    assert end is not None
    assert end.code == 5


def test_out_of_memory_kills_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "oom_counter", lambda pid, mounts: cgroups.OomCounter("memory.events", 2))
    monkeypatch.setattr(cgroups, "reread", lambda before: before and cgroups.OomCounter(before.path, 3))
    monkeypatch.setattr(exits, "kernel_log_lines", lambda pids, target: (f"Killed process {target.pid}",))
    watcher = ExitWatcher()
    with program() as (process, target):
        watcher.watch([target])
        process.kill()
        watcher.wait(time.monotonic() + 10)
        end = watcher.end(target)
    assert end is not None
    assert (end.oom_kills, end.oom_counter) == (1, "memory.events")
    assert end.kernel == (f"Killed process {target.pid}",)


@pytest.mark.parametrize(
    ("end", "formatted"),
    [
        (End(signal=9), "signal 9 (SIGKILL)"),
        (End(signal=36), "signal 36 (SIGRTMIN+2)"),
        (End(code=0), "exit code 0"),
        (End(), None),
    ],
)
def test_format(end: End, formatted: str | None) -> None:
    assert format_exit(end) == formatted


SEGFAULT_LINE = "python[4711]: segfault at 10 ip 00007f2a sp 00007ffe error 4 in libc.so.6[7f2a+195000]"
TRAP_LINE = "traps: train[4712] general protection fault ip:7f2a sp:7ffe error:0 in libtorch_cpu.so[7f2a+100]"
OOM_LINE = "Memory cgroup out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:7kB, UID:0 oom_score_adj:0"
OTHER_LINE = "python[47110]: segfault at 10 ip 00007f2a sp 00007ffe error 4"
NOISE_LINE = "eth0: link up [4711]"


@pytest.fixture
def target() -> Target:
    return as_target(os.getpid())


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    lines: list[tuple[float, str]] = []

    def read() -> Iterator[tuple[float, str]]:
        return iter(lines)

    monkeypatch.setattr(exits, "_kernel_log", read)
    monkeypatch.setattr(exits, "_FIRST_NAMESPACE", procfs.link("/proc/self/ns/pid"))
    return lines


def test_kernel_log_lines_about_a_process(log: list[tuple[float, str]], target: Target) -> None:
    now = time.monotonic()
    log += [(now, line) for line in (NOISE_LINE, SEGFAULT_LINE, TRAP_LINE, OTHER_LINE, OOM_LINE)]
    assert exits.kernel_log_lines({4711, 4712}, target) == (SEGFAULT_LINE, TRAP_LINE, OOM_LINE)


def test_kernel_log_lines_older_than_the_process_are_left_out(log: list[tuple[float, str]], target: Target) -> None:
    log.append((time.monotonic() - procfs.age_s(target.start_ticks) - 60, SEGFAULT_LINE))
    assert exits.kernel_log_lines({4711}, target) == ()


def test_kernel_log_lines_are_few_and_short(log: list[tuple[float, str]], target: Target) -> None:
    log += [(time.monotonic(), f"{SEGFAULT_LINE} {n} {'x' * 999}") for n in range(9)]
    lines = exits.kernel_log_lines({4711}, target)
    assert len(lines) == 4
    assert all(len(line) == 240 for line in lines)


def test_kernel_log_is_not_read_in_another_pid_namespace(
    log: list[tuple[float, str]], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append((time.monotonic(), SEGFAULT_LINE))
    monkeypatch.setattr(exits, "_FIRST_NAMESPACE", "pid:[1]")
    assert exits.kernel_log_lines({4711}, target) == ()


def test_kernel_log_of_this_machine() -> None:
    lines = list(exits._kernel_log())  # may be empty without the right to read it
    assert all(at_s >= 0 and "\n" not in text for at_s, text in lines)
