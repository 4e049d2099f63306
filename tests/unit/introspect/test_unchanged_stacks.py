"""Stacks are read again as soon as a thread may have run, and not before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from hangdoc.evidence import Process, Snapshot, Stack, Stacks, Target, ThreadCpu
from hangdoc.introspect import py_spy
from hangdoc.introspect.unchanged_stacks import MAX_AGE_S, UnchangedStacks
from hangdoc.system import procfs
from hangdoc.watch.sampler import Sampler
from probes import Tier
from probes.cpu import CpuProbe
from probes.stacks import StacksProbe
from tests.support.polling import at_rest

# Sleeps at one place; each line wakes it for a moment. A thread of it may go by the name of a native one.
BURSTS = """
import sys, threading
name, woken, step = sys.argv[1], threading.Semaphore(0), 0
def serve():
    global step
    open(f"/proc/self/task/{threading.get_native_id()}/comm", "w").write(name)
    while True:
        print("ready", flush=True)
        woken.acquire()
        step += 1
thread = threading.Thread(target=serve, daemon=True)
thread.start()
for line in sys.stdin:
    woken.release()
"""


@pytest.fixture
def dumps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """PIDs that py-spy was started for."""
    asked: list[int] = []
    dump = py_spy.PySpy.dump

    def counted(self: py_spy.PySpy, pid: int) -> list[dict[str, object]]:
        asked.append(pid)
        return dump(self, pid)

    monkeypatch.setattr(py_spy.PySpy, "dump", counted)
    return asked


def stacks_of(shot: Snapshot) -> Stacks:
    found = shot.ranks[0].records["stacks"]
    assert isinstance(found, Stacks)
    return found


@pytest.mark.parametrize("name", ["worker", "gloo_tcp_loop"])
def test_a_process_that_ran_between_two_looks_is_read_again(name: str, dumps: list[int]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BURSTS, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        try:
            job.stdout.readline()
            at_rest(job.pid)
            stat = procfs.stat(job.pid)
            assert stat is not None
            target = Target(job.pid, stat.start_ticks, "here", 0)
            probes: Any = (CpuProbe(), StacksProbe())
            sampler = Sampler("here", (target,), probes)
            first = stacks_of(sampler.round(Tier.LOOK))
            assert stacks_of(sampler.round(Tier.LOOK)) is first
            assert len(dumps) == 1
            job.stdin.write("\n")
            job.stdin.flush()
            job.stdout.readline()
            at_rest(job.pid)
            woken = stacks_of(sampler.round(Tier.LOOK))
            assert len(dumps) == 2
            step = [[v.number for v in seen.globals or () if v.name == "step"] for seen in (first, woken)]
            assert step == [[0], [1]]
            sampler.round(Tier.EXAMINE)
            assert len(dumps) == 3  # a close look reads all there is
        finally:
            job.kill()


PYTHON = ThreadCpu(10, "python", "S", 1.0, 5, 0, run_delay_s=0.1)
UNTIMED = replace(PYTHON, run_delay_s=None)  # as on a kernel without schedstat
NATIVE = ThreadCpu(11, "gloo_tcp_loop", "S", 1.0, 5, 0, run_delay_s=0.1)
TARGET = Target(10, 1, "here", 0)
STACKS = Stacks((Stack(10, "MainThread", (), False, False),), False)


def process(*threads: ThreadCpu) -> Process:
    return Process(10, 1, 0, "S", (), None, None, 1.0, 1.0, 0, threads)


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        pytest.param((PYTHON, NATIVE), (PYTHON, NATIVE), True, id="asleep"),
        pytest.param((PYTHON, NATIVE), (PYTHON, replace(NATIVE, cpu_s=2.0)), True, id="a native thread polls"),
        pytest.param((PYTHON, NATIVE), (PYTHON, replace(NATIVE, state="R")), True, id="a native thread runs"),
        pytest.param((PYTHON,), (replace(PYTHON, cpu_s=1.000001),), False, id="ran"),
        pytest.param((PYTHON,), (replace(PYTHON, run_delay_s=0.2),), False, id="queued"),
        pytest.param((PYTHON,), (replace(PYTHON, voluntary=6),), False, id="switched"),
        pytest.param((PYTHON,), (replace(PYTHON, state="R"),), False, id="runs"),
        pytest.param((replace(PYTHON, state="R"),), (PYTHON,), False, id="ran when it was read"),
        pytest.param((PYTHON,), (PYTHON, NATIVE), False, id="a new thread, whatever it is called"),
        pytest.param((PYTHON, NATIVE), (PYTHON,), False, id="a thread has ended"),
        pytest.param((UNTIMED,), (UNTIMED,), True, id="switches"),
        pytest.param((UNTIMED,), (replace(UNTIMED, voluntary=6),), False, id="switches of a short run"),
        pytest.param(
            (replace(UNTIMED, voluntary=None),),
            (replace(UNTIMED, voluntary=None),),
            False,
            id="a clock of ticks alone",
        ),
        pytest.param((), (), False, id="no threads seen"),
    ],
)
def test_what_must_be_the_same(before: Sequence[ThreadCpu], after: Sequence[ThreadCpu], same: bool) -> None:
    unchanged = UnchangedStacks()
    unchanged.keep([TARGET], lambda _: (process(*before), STACKS))
    assert unchanged.of(TARGET, process(*after)) is (STACKS if same else None)


def test_nothing_is_believed_for_ever() -> None:
    clock = [0.0]
    unchanged = UnchangedStacks(lambda: clock[0])
    for now_s in (0.0, MAX_AGE_S / 2, MAX_AGE_S):
        clock[0] = now_s
        unchanged.keep([TARGET], lambda _: (process(PYTHON), STACKS))
        assert unchanged.of(TARGET, process(PYTHON)) is STACKS
    clock[0] = MAX_AGE_S + 1.0
    assert unchanged.of(TARGET, process(PYTHON)) is None


def test_another_process_of_that_number_is_another() -> None:
    unchanged = UnchangedStacks()
    unchanged.keep([TARGET], lambda _: (process(PYTHON), STACKS))
    assert unchanged.of(replace(TARGET, start_ticks=2), process(PYTHON)) is None
