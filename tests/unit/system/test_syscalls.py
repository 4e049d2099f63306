"""The system calls that real threads sleep in."""

from __future__ import annotations

import os
import signal
import time

import pytest

from hangdoc.system import syscalls
from hangdoc.system.syscalls import Call
from tests.support.probe_targets import started

ASLEEP = {  # what the program does -> kind, how it names its file
    "os.read(os.pipe()[0], 1)": ("read", "fd"),
    "os.readv(os.pipe()[0], [bytearray(1)])": ("read", "fd"),
    "os.open(fifo, os.O_RDONLY)": ("open", "path_at"),
    "os.write(full(), b'x')": ("write", "fd"),
    "time.sleep(60)": ("time", ""),
    "select.select([os.pipe()[0]], [], [], 60)": ("poll", ""),
    "select.select([], [], [], 60)": ("time", ""),  # as Python 3.10 sleeps
    "held().acquire()": ("lock", ""),
    "os.waitpid(child(), 0)": ("child", ""),
}
PROGRAM = """
import json, os, select, tempfile, threading, time
fifo = os.path.join(tempfile.mkdtemp(), "fifo")
os.mkfifo(fifo)
def full():
    fd = os.pipe()[1]
    os.set_blocking(fd, False)
    try:
        while os.write(fd, b"x" * 65536): pass
    except BlockingIOError:
        os.set_blocking(fd, True)
    return fd
def held():
    lock = threading.Lock()
    lock.acquire()
    return lock
def child():
    pid = os.fork()
    if not pid:
        time.sleep(5)
        os._exit(0)
    return pid
print(json.dumps(os.getpid()), flush=True)
"""


def settled(pid: int) -> Call | None:
    """The call that the main thread sleeps in, once it stays in it."""
    last = None
    for _ in range(100):
        time.sleep(0.02)
        found = syscalls.current_call(pid, pid)
        if found is not None and found == last:
            return found
        last = found
    return last


@pytest.mark.parametrize("code", ASLEEP)
def test_what_a_thread_sleeps_in(code: str) -> None:
    with started("-c", PROGRAM + code) as program:
        found = settled(program.pid)
    assert found is not None
    assert (found.kind, found.names) == ASLEEP[code]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("poll = select.poll(); poll.register(os.pipe()[0], 1); poll.poll(60_000)", "poll"),
        ("held().acquire(timeout=60)", "lock"),
    ],
)
def test_a_call_that_was_interrupted_is_the_one_that_it_was(code: str, kind: str) -> None:
    """What stops a process, a debugger or a signal, leaves it in restart_syscall until its timeout."""
    with started("-c", PROGRAM + code) as program:
        before = settled(program.pid)
        os.kill(program.pid, signal.SIGSTOP)
        os.kill(program.pid, signal.SIGCONT)
        after = settled(program.pid)
    assert before is not None
    assert before.kind == kind
    if os.uname().machine == "x86_64" or kind == "lock":  # elsewhere the C library polls by another call
        assert after == before


def test_a_wait_for_a_lock_is_private_and_has_no_limit_of_time() -> None:
    with started("-c", PROGRAM + "held().acquire()") as program:
        found = settled(program.pid)
    assert found is not None
    assert (found.private, found.bounded) == (True, False)


def test_a_wait_with_a_limit_is_bounded() -> None:
    with started("-c", PROGRAM + "held().acquire(timeout=60)") as program:
        found = settled(program.pid)
    assert found is not None
    assert found.bounded


def test_nothing_of_a_thread_that_runs_or_is_gone() -> None:
    with started("-c", PROGRAM + "while True: pass") as program:
        assert syscalls.current_call(program.pid, program.pid) is None
    assert syscalls.current_call(program.pid, program.pid) is None


def test_which_numbers_are_of_files() -> None:
    of_files = {number for number in range(-1, 500) if syscalls.is_on_file(number)}
    names = {syscalls._TABLE[number][1] for number in of_files - {-1}}
    assert -1 in of_files, "outside any call: a page"
    assert names == {"fd", "path", "path_at"} or names == {"fd", "path_at"}
    assert not syscalls.is_on_file(None)
