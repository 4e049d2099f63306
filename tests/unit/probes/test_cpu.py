"""Probe `cpu` on real processes."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hangdoc.evidence import Process, RankEvidence, Snapshot, Target
from hangdoc.system import procfs
from probes import Observation, Probe, Request, Tier
from probes.cpu import PROBE
from tests.support.polling import until

SEIZE = 0x4206  # PTRACE_SEIZE: it stops nothing

THREADS = """
import ctypes, os, socket, threading, time
def spin():
    open(f"/proc/self/task/{threading.get_native_id()}/comm", "w").write("spinner")
    while True: pass
def rest():
    open(f"/proc/self/task/{threading.get_native_id()}/comm", "w").write("odd ) name (")
    ctypes.CDLL(None).sleep(60)  # Python 3.10's own is a select
for work in (spin, rest):
    threading.Thread(target=work, daemon=True).start()
if os.fork() == 0:
    open("/proc/self/comm", "w").write("helper")
    if os.fork() == 0:
        open("/proc/self/comm", "w").write("grandchild")
    time.sleep(60)
    os._exit(0)
os.nice(3)
here, there = socket.socketpair()
os.dup2(here.fileno(), 77)
print("ready", flush=True)
os.read(77, 1)
"""


@contextmanager
def program(code: str) -> Iterator[Target]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        stat = procfs.stat(process.pid)
        assert stat
        yield Target(process.pid, stat.start_ticks, "here", 0)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def observe(target: Target, previous: Process | None = None, **others: int) -> Observation:
    before = Snapshot("here", 0.0, "", (RankEvidence(target, True, {"cpu": previous}),)) if previous else None
    return PROBE.observe(Request([target], Tier.PULSE, previous=before))


def settled(seen: Process) -> bool:
    """Each has its name, and all but the spinning thread have gone to sleep where they stay."""
    threads = {thread.comm: thread for thread in seen.threads}
    children = {child.comm: child.state for child in seen.children}
    if not {"spinner", "odd ) name ("} <= set(threads) or children != {"helper": "S", "grandchild": "S"}:
        return False
    rest = threads["odd ) name ("]
    return seen.state == rest.state == "S" and seen.threads[0].syscall_fd == 77 and "sleep" in (rest.wchan or "")


def spinner_s(seen: Process) -> float:
    """CPU time (s) of the spinning thread."""
    return next(thread.cpu_s for thread in seen.threads if thread.comm == "spinner")


def test_is_a_probe() -> None:
    assert isinstance(PROBE, Probe)
    assert PROBE.tier == Tier.PULSE


def test_threads_children_and_where_they_wait() -> None:
    with program(THREADS) as target:
        seen = until(lambda: observe(target).by_pid[target.pid], settled)
        # Not the time of the process: a look reads it before that of its threads.
        later = until(lambda: observe(target, seen).by_pid[target.pid], lambda now: spinner_s(now) > spinner_s(seen))
    assert seen.pid == target.pid
    assert seen.ppid == os.getpid()
    assert seen.uid == os.geteuid()
    assert seen.state == "S"
    assert seen.nice == os.nice(0) + 3
    assert seen.tracer_pid == 0
    assert seen.tracer is None
    assert seen.command[:2] == (sys.executable, "-c")
    assert seen.cwd == os.getcwd()
    assert 0 < seen.age_s < 60
    assert seen.rss_bytes > 1 << 20
    assert seen.affinity == tuple(sorted(os.sched_getaffinity(0)))
    by_name = {thread.comm: thread for thread in seen.threads}
    main, rest, spin = seen.threads[0], by_name["odd ) name ("], by_name["spinner"]
    assert main.tid == target.pid
    assert main.syscall_fd == 77
    assert rest.state == "S"
    assert rest.syscall_fd is None
    assert rest.wchan
    assert "sleep" in rest.wchan
    assert spin.wchan is None or spin.state != "R"
    assert all(thread.voluntary is not None and thread.involuntary is not None for thread in seen.threads)
    moved = {
        thread.tid for thread in later.threads if thread.cpu_s > {t.tid: t.cpu_s for t in seen.threads}[thread.tid]
    }
    assert spin.tid in moved
    assert rest.tid not in moved
    assert {thread.comm: thread for thread in later.threads}["odd ) name ("] is rest  # not read again
    assert {child.comm for child in seen.children} == {"helper", "grandchild"}
    assert {child.state for child in seen.children} == {"S"}


BURNS = "import time\nwhile time.process_time() < 0.1: pass"
PARENT = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {BURNS!r}]); time.sleep(60)"
GRANDPARENT = f"""\
import subprocess, sys
print("ready", flush=True)
subprocess.run([sys.executable, "-c", {BURNS!r}])
subprocess.run([sys.executable, "-c", {PARENT!r}])
"""


def test_what_ended_descendants_used() -> None:
    with program(GRANDPARENT) as target:
        until(
            lambda: observe(target).by_pid[target.pid],
            lambda seen: seen.reaped_s >= 0.05 and [child.reaped_s >= 0.05 for child in seen.children] == [True],
        )


def test_a_stopped_rank_says_so() -> None:
    with program(THREADS) as target:
        os.kill(target.pid, signal.SIGSTOP)
        seen = until(  # the threads stop one after the other, and the first is read again as one of them
            lambda: observe(target).by_pid[target.pid],
            lambda now: {now.state, *(one.state for one in now.threads)} == {"T"},
        )
        assert seen.state == "T"
        resting = observe(target, seen).by_pid[target.pid]
        os.kill(target.pid, signal.SIGCONT)
        until(lambda: observe(target, resting).by_pid[target.pid], lambda now: now.state == "S")


def test_the_debugger_is_named() -> None:
    with program(THREADS) as target:
        if ctypes.CDLL(None).ptrace(SEIZE, target.pid, None, None) != 0:
            pytest.skip("this process may not trace another")
        seen = observe(target).by_pid[target.pid]
    assert seen.tracer_pid == os.getpid()
    assert seen.tracer == (procfs.text("/proc/self/comm") or "").strip()
    assert (seen.tracer_command or "").startswith(sys.orig_argv[0])


def test_ranks_are_no_children_of_each_other() -> None:
    with program(THREADS) as target:
        seen = until(lambda: observe(target).by_pid[target.pid], settled)
        helper = next(child for child in seen.children if child.comm == "helper")
        stat = procfs.stat(helper.pid)
        assert stat
        other = Target(helper.pid, stat.start_ticks, "here", 1)
        found = PROBE.observe(Request([target, other], Tier.PULSE)).by_pid
    assert found[target.pid].children == ()
    assert [child.comm for child in found[helper.pid].children] == ["grandchild"]


@pytest.mark.parametrize(("change", "why"), [(0, "has ended"), (-1, "is another process now")], ids=["gone", "reused"])
def test_an_ended_process_is_unseen(change: int, why: str) -> None:
    with program("print('ready', flush=True); input()") as target:
        if change:
            found = observe(Target(target.pid, target.start_ticks + change, "here", 4))
    if not change:
        found = observe(Target(target.pid, target.start_ticks, "here", 4))
    assert found.by_pid == {}
    assert [(one.rank, one.pid) for one in found.unseen] == [(4, target.pid)]
    assert why in found.unseen[0].why
