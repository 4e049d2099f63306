"""What the kernel's log says of a process: lines as Linux writes them, and the log of this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from hangdoc.evidence import Target
from hangdoc.system import kernel_log, procfs

SEGFAULT = "python[4711]: segfault at 10 ip 00007f2a sp 00007ffe error 4 in libc.so.6[7f2a+195000]"
TRAP = "traps: train[4712] general protection fault ip:7f2a sp:7ffe error:0 in libtorch_cpu.so[7f2a+100]"
OOM = "Memory cgroup out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:7kB, UID:0 oom_score_adj:0"
OTHER = "python[47110]: segfault at 10 ip 00007f2a sp 00007ffe error 4"
NOISE = "eth0: link up [4711]"


@pytest.fixture
def target() -> Target:
    stat = procfs.stat(os.getpid())
    assert stat is not None
    return Target(os.getpid(), stat.start_ticks, "here", 0)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    lines: list[tuple[float, str]] = []

    def read() -> Iterator[tuple[float, str]]:
        return iter(lines)

    monkeypatch.setattr(kernel_log, "_lines", read)
    monkeypatch.setattr(kernel_log, "_FIRST_NAMESPACE", procfs.link("/proc/self/ns/pid"))
    return lines


def test_lines_that_tell_of_it(log: list[tuple[float, str]], target: Target) -> None:
    now = time.monotonic()
    log += [(now, line) for line in (NOISE, SEGFAULT, TRAP, OTHER, OOM)]
    assert kernel_log.about({4711, 4712}, target) == (SEGFAULT, TRAP, OOM)


def test_lines_of_a_process_that_had_the_number_before(log: list[tuple[float, str]], target: Target) -> None:
    log.append((time.monotonic() - procfs.age_s(target.start_ticks) - 60, SEGFAULT))
    assert kernel_log.about({4711}, target) == ()


def test_no_more_than_a_few_of_them(log: list[tuple[float, str]], target: Target) -> None:
    log += [(time.monotonic(), f"{SEGFAULT} {n} {'x' * 999}") for n in range(9)]
    told = kernel_log.about({4711}, target)
    assert len(told) == 4
    assert all(len(line) == 240 for line in told)


def test_in_a_namespace_of_its_own_numbers_mean_other_processes(
    log: list[tuple[float, str]], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append((time.monotonic(), SEGFAULT))
    monkeypatch.setattr(kernel_log, "_FIRST_NAMESPACE", "pid:[1]")
    assert kernel_log.about({4711}, target) == ()


def test_the_log_of_this_machine() -> None:
    lines = list(kernel_log._lines())  # may be empty without the right to read it
    assert all(at_s >= 0 and "\n" not in text for at_s, text in lines)
