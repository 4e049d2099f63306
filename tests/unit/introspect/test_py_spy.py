"""py-spy and the guard of native dumps: dead mounts, a hanging py-spy, and processes that end meanwhile."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hangdoc.introspect import _ptrace_guard, py_spy
from hangdoc.system import procfs, programs
from probes import Tier
from probes.stacks import StacksProbe
from tests.support.pace import slowness
from tests.support.paths import PROGRAMS, ROOT
from tests.support.polling import at_rest, until
from tests.support.probe_targets import Program, started
from tests.support.process_state import assert_untouched, threads, watched
from tests.support.requirements import met
from tests.unit.probes.test_stacks import fake

REAL = programs.py_spy() or ""


@contextmanager
def dead_mount(folder: Path, how: str) -> Iterator[Program]:
    """A rank whose code lies on a mount that no longer answers."""
    met(None if os.geteuid() == 0 and os.path.exists("/dev/fuse") else "a mount of one's own needs root and /dev/fuse")
    with started("fuse_mount.py", str(folder), how) as program:
        at_rest(program.pid)
        os.kill(program.said, signal.SIGUSR1)
        yield program
        os.kill(program.said, signal.SIGKILL)  # then the kernel ends whatever waits for an answer


def stuck_spy(folder: Path) -> str:
    return fake(folder, f'exec {sys.executable} -I -S {PROGRAMS / "stuck_py_spy.py"} {REAL} "$@"\n')


@pytest.mark.parametrize("how", ["run", "map"])
def test_stacks_are_seen_though_the_code_lies_on_a_dead_mount(tmp_path: Path, how: str) -> None:
    with dead_mount(tmp_path, how) as program:
        began_s = time.monotonic()
        seen = StacksProbe().observe(program.request(Tier.LOOK))
        assert time.monotonic() - began_s < 2 * slowness()
        assert seen.unseen == ()
        frames = seen.by_pid[program.pid].threads[0].frames
        assert ("train", "job.py", 4) in [(frame.function, frame.short, frame.line) for frame in frames]


# py-spy issue 567: before 3.11 it finds the thread ids by what the registers hold, and not across mount namespaces.
NATIVE = pytest.mark.skipif(sys.version_info < (3, 11), reason="py-spy: no native frames of this 3.10 process")


@pytest.mark.parametrize(("how", "native"), [pytest.param("run", True, marks=NATIVE), ("map", False)])
def test_a_rank_is_not_held_for_a_file_on_a_dead_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, native: bool
) -> None:
    monkeypatch.setattr(py_spy, "TOUCH_S", 0.5)
    with dead_mount(tmp_path, how) as program:
        probe, began_s = StacksProbe(), time.monotonic()
        with watched([program.pid]) as watcher:
            seen = probe.observe(program.request(Tier.EXAMINE, still=True))
            again = probe.observe(program.request(Tier.EXAMINE, still=True))
        assert time.monotonic() - began_s < 3 * slowness()
        assert bool(watcher.paused) is native
        assert seen.by_pid[program.pid].native is native
        whys = [unseen.why for unseen in (*seen.unseen, *again.unseen)]
        assert all("a mount does not answer" in why for why in whys)
        assert len(whys) == (0 if native else 2)


def test_a_py_spy_that_cannot_be_killed_is_left_behind_and_not_joined_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(py_spy, "TIMEOUT_S", 0.3)
    with dead_mount(tmp_path, "run") as program:
        begun = tmp_path.parent / f"{tmp_path.name}-begun"
        begun.mkdir()
        file = f"/proc/{program.pid}/root{tmp_path}/job.py"
        spy = py_spy.PySpy(fake(begun, f"echo $$ >> begun\nread line < {file}\n"))
        for _ in range(3):
            began_s = time.monotonic()
            with pytest.raises(py_spy.Refused, match="a mount does not answer"):
                spy.dump(program.pid)
            assert time.monotonic() - began_s < 2 * slowness()
        (blocked,) = (begun / "begun").read_text().split()
        assert procfs.stat(int(blocked)) is not None
    until(lambda: spy._stuck[program.pid].poll() is not None)


def test_a_py_spy_that_holds_a_rank_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py_spy, "PAUSE_S", 0.2)
    with started("stacks_program.py") as program:
        began_s = time.monotonic()
        with watched([program.pid]) as watcher, pytest.raises(py_spy.Refused, match="took more than"):
            py_spy.PySpy(stuck_spy(tmp_path)).dump_native(program.pid)
        assert time.monotonic() - began_s < 2 * slowness()
        assert watcher.paused
        assert_untouched([program.pid])


@pytest.mark.parametrize("ended", [signal.SIGKILL, signal.SIGSTOP])
def test_a_paused_rank_resumes_if_hangdoc_is_killed_or_stopped(tmp_path: Path, ended: signal.Signals) -> None:
    """Killed, the kernel ends py-spy at once; stopped (Ctrl-Z), at its deadline."""
    script = (
        "import sys; from hangdoc.introspect import py_spy; py_spy.NATIVE_TIMEOUT_S = 1.0;"
        "py_spy.PySpy(sys.argv[1]).dump_native(int(sys.argv[2]))"
    )
    with started("stacks_program.py") as program:
        command = [sys.executable, "-c", script, stuck_spy(tmp_path), str(program.pid)]
        with subprocess.Popen(command, cwd=ROOT) as holder:
            until(lambda: "t" in threads(program.pid).values())
            holder.send_signal(ended)
            until(lambda: "t" not in threads(program.pid).values(), within_s=2)
            assert_untouched([program.pid])
            holder.kill()


def test_a_guard_whose_parent_has_ended_runs_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", _ptrace_guard.__file__, "1", "5", str(os.getpid()), "/bin/echo", "ran"],
        capture_output=True, text=True, timeout=10, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")


def test_a_rank_that_ends_while_it_is_looked_at(tmp_path: Path) -> None:
    rng = random.Random(3)
    for _ in range(5):
        with started("stacks_program.py") as program:
            end = f"sleep {rng.uniform(0.01, 0.15)}; kill -9 {program.pid}"
            with subprocess.Popen(["/bin/sh", "-c", end]):
                for _ in range(3):
                    began_s = time.monotonic()
                    with suppress(py_spy.Refused):
                        py_spy.PySpy(REAL).dump_native(program.pid)
                    assert time.monotonic() - began_s < 3 * slowness()


def test_a_py_spy_that_writes_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py_spy, "MAX_BYTES", 1 << 20)
    with pytest.raises(py_spy.Refused, match="exceed 1 MiB"):
        py_spy.PySpy(fake(tmp_path, "exec yes")).dump(os.getpid())


def test_what_only_hangdoc_may_read_it_reads_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With yama an ancestor of the ranks may read them, and a py-spy that it starts may not."""
    refused = fake(tmp_path, "echo 'Error: Permission denied (os error 13)' >&2; exit 1")
    monkeypatch.setattr(programs, "py_spy", lambda: refused)
    with started("stacks_program.py") as program:
        at_rest(program.pid)
        seen = StacksProbe().observe(program.request(Tier.EXAMINE))
        functions = [[frame.function for frame in thread.frames] for thread in seen.by_pid[program.pid].threads]
        assert ["fit", "<module>"] in [names[-2:] for names in functions]
        assert [one.why for one in seen.unseen] == [
            "yama lets hangdoc read it, but not py-spy: its stacks are without variables"
        ]
