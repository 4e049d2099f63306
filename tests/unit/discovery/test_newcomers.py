"""New processes that may be ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hangdoc.discovery.newcomers import AGAIN_S, YOUNG_S, Newcomers
from hangdoc.system import procfs
from tests.support.polling import until


def _runs(pid: int, program: str) -> bool:
    """True once the process has called exec."""
    return (procfs.text(f"/proc/{pid}/comm") or "").strip() == os.path.basename(program)[:15]


@contextmanager
def process(*command: str, **environment: str) -> Iterator[int]:
    with subprocess.Popen(command, env={"PATH": os.defpath, **environment}, stdin=subprocess.PIPE) as started:
        until(lambda: _runs(started.pid, command[0]))
        yield started.pid
        started.kill()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The PIDs that /proc shows: those of the test, and none of its neighbours."""
    found: list[int] = []
    monkeypatch.setattr(procfs, "numbers", lambda path: list(found))
    return found


def test_an_interpreter_is_a_candidate_once_and_is_looked_at_again(shown: list[int]) -> None:
    newcomers = Newcomers()
    assert not newcomers.check(0.0)
    with process(sys.executable, "-c", "input()") as pid:
        shown.append(pid)
        assert newcomers.check(1.0)
        checks = [newcomers.check(1.0 + second) for second in range(1, 60)]
        assert [second for second, due in enumerate(checks, 1) if due] == [int(after_s) for after_s in AGAIN_S]
        shown.clear()
        assert not newcomers.check(70.0)


def test_other_programs_count_only_with_a_rank_in_their_environment(shown: list[int]) -> None:
    newcomers = Newcomers()
    with process("cat") as plain, process("cat", RANK="0", WORLD_SIZE="2") as rank:
        shown.append(plain)
        assert not newcomers.check(0.0)
        shown.append(rank)
        assert newcomers.check(1.0)


def test_a_shell_that_becomes_a_rank_is_noticed_while_it_is_young(shown: list[int]) -> None:
    newcomers = Newcomers()
    script = f"read go; exec {sys.executable} -c 'input()'"
    for age_s, noticed in ((YOUNG_S / 2, True), (YOUNG_S + 1, False)):
        with subprocess.Popen(["/bin/sh", "-c", script], stdin=subprocess.PIPE, text=True) as shell:
            shown[:] = [shell.pid]
            until(lambda shell=shell: "python" not in (procfs.link(f"/proc/{shell.pid}/exe") or "python"))  # type: ignore[misc]
            newcomers = Newcomers()
            assert not newcomers.check(0.0)
            assert shell.stdin is not None
            shell.stdin.write("go\n")
            shell.stdin.flush()
            until(lambda shell=shell: "python" in (procfs.link(f"/proc/{shell.pid}/exe") or ""))  # type: ignore[misc]
            assert newcomers.check(age_s) is noticed
            shell.kill()
