"""Probe `files` on real files, pipes and locks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hangdoc.evidence import Files, Target
from hangdoc.system import procfs
from probes import Probe, Request, Tier
from probes import files as module
from probes.files import PROBE
from tests.support.polling import until


@contextmanager
def program(code: str, *arguments: object) -> Iterator[Target]:
    """A process that runs `code`, says so, and waits."""
    lines = f"import fcntl, os, sys, time\n{code}\nprint('ready', flush=True)\nsys.stdin.readline()\n"
    words = [sys.executable, "-c", lines, *map(str, arguments)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield as_target(process.pid)
        finally:
            process.kill()


def as_target(pid: int) -> Target:
    stat = procfs.stat(pid)
    assert stat
    return Target(pid, stat.start_ticks, "here", 0)


def observe(*targets: Target) -> list[Files]:
    found = PROBE.observe(Request(targets, Tier.EXAMINE))
    assert found.unseen == ()
    return [found.by_pid[target.pid] for target in targets]


def test_open_files_by_kind(tmp_path: Path) -> None:
    data, fifo, odd = tmp_path / "data", tmp_path / "fifo", tmp_path / "two words\\"
    data.write_bytes(b"x" * 100)
    os.mkfifo(fifo)
    odd.write_bytes(b"")
    code = (
        "fds = [os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_RDWR), os.open('/', os.O_RDONLY),"
        "os.open('/dev/null', os.O_WRONLY), os.open(sys.argv[3], os.O_RDWR), os.pipe()[0]]; os.read(fds[0], 40)"
    )
    with program(code, data, fifo, odd) as target:
        (seen,) = observe(target)
    by_path = {one.path: one for one in seen.open}
    one = by_path[str(data)]
    assert (one.kind, one.position, one.size, one.mode) == ("file", 40, 100, "r")
    assert one.mount
    assert str(data).startswith(one.mount)
    assert one.filesystem
    assert by_path[str(fifo)].kind == "fifo"
    assert by_path["/"].kind == "directory"
    assert (by_path["/dev/null"].kind, by_path["/dev/null"].mode) == ("device", "w")
    assert by_path[str(odd)].size == 0
    assert {one.kind for one in seen.open if one.path.startswith("pipe:")} == {"pipe"}


def test_a_mount_that_may_be_dead_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.write_bytes(b"x" * 100)
    asked: list[object] = []
    stat = os.stat

    def ask(path: Any, *more: Any, **named: Any) -> os.stat_result:
        asked.append(path)
        return stat(path, *more, **named)

    monkeypatch.setattr(module, "LOCAL", frozenset())  # as if this were a network filesystem
    monkeypatch.setattr(os, "stat", ask)
    with program("os.open(sys.argv[1], os.O_RDONLY)", data) as target:
        asked.clear()
        (seen,) = observe(target)
        questions = [path for path in asked if str(path).startswith("/proc")]
    one = next(one for one in seen.open if one.path == str(data))
    assert (one.kind, one.position, one.size) == ("file", 0, None)
    assert questions == []


TAKE = "f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX)"
WAIT = "f = open(sys.argv[1], 'a'); print('ready', flush=True); fcntl.flock(f, fcntl.LOCK_EX)"
POSIX = "f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX)"


def test_lock_holders_and_waiters(tmp_path: Path) -> None:
    lock, other = tmp_path / "lock", tmp_path / "other"
    with ExitStack() as stack:
        holder = stack.enter_context(
            program(TAKE + "; g = open(sys.argv[2], 'a'); fcntl.lockf(g, fcntl.LOCK_EX)", lock, other)
        )
        waiter = stack.enter_context(program(WAIT, lock))
        holding, waiting = until(
            lambda: observe(holder, waiter), lambda seen: any(one.waiting_pids for one in seen[0].locks)
        )
    flock = next(one for one in holding.locks if one.kind == "flock")
    posix = next(one for one in holding.locks if one.kind == "posix")
    assert (flock.path, flock.holder_pid, flock.waiting_pids) == (str(lock), holder.pid, (waiter.pid,))
    assert (posix.path, posix.holder_pid, posix.waiting_pids) == (str(other), holder.pid, ())
    (seen,) = waiting.locks
    assert seen == flock


def test_an_inherited_lock_is_traced_to_its_heir(tmp_path: Path) -> None:
    """A forked worker that has the descriptor keeps a flock alive after the process that took it has died."""
    lock = tmp_path / "lock"
    code = (
        "f = open(sys.argv[1], 'a')\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    fcntl.flock(f, fcntl.LOCK_EX); os._exit(0)\n"  # the taker dies, the parent has the same open file
        "os.waitpid(pid, 0)"
    )
    with program(code, lock) as target:
        (seen,) = observe(target)
    assert [(one.path, one.holder_pid) for one in seen.locks] == [(str(lock), target.pid)]


def test_a_lock_of_a_living_stranger(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with program(TAKE, lock) as stranger, program("f = open(sys.argv[1], 'a')", lock) as target:
        (seen,) = observe(target)
    assert [(one.kind, one.holder_pid) for one in seen.locks] == [("flock", stranger.pid)]


def test_an_ended_process_is_unseen() -> None:
    with program("pass") as target:
        pass
    found = PROBE.observe(Request([target], Tier.EXAMINE))
    assert isinstance(PROBE, Probe)
    assert found.by_pid == {}
    assert [one.pid for one in found.unseen] == [target.pid]
