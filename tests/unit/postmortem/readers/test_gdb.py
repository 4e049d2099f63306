"""Backtraces of gdb, py-bt and eu-stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc.postmortem.readers.gdb import _symbol
from tests.support.samples import SAMPLES, pieces, stacks, text

EU_STACK = """PID 4276 - process
TID 4276:
#0  0x00007f3c1b2a9d6b pthread_cond_wait@@GLIBC_2.3.2
#1  0x00007f3b8c1f7a2c c10d::Work::wait(std::chrono::duration<long, std::ratio<1l, 1000l> >)
TID 4301:
#0  0x00007f3c1b2b0e9f __poll
"""
PY_BT = """Thread 1 (Thread 0x7f9495442b80 (LWP 31816) "python"):
#0  0x00007f9494ced545 in __GI___futex () from /lib/x86_64-linux-gnu/libc.so.6
#1  0x00007f9494efd9c3 in _PyEval_EvalFrameDefault (tstate=<optimized out>) at Python/ceval.c:4769
#2  0x00007f94950508e4 in PyEval_EvalCode (co=0x1) at Python/ceval.c:1148
Traceback (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327, in wait
    waiter.acquire()
  File "/job/train.py", line 30, in <module>
    main()
"""


def test_threads_of_a_process() -> None:
    (found,) = pieces("gdb", SAMPLES / "gdb" / "threads.txt")
    assert (found.process.pid, found.process.rank) == (31816, None)
    record = stacks(found)
    assert record.native
    assert [(stack.tid, stack.name) for stack in record.threads] == [(31819, "python"), (31816, "MainThread")]
    names = [frame.function for frame in record.threads[0].frames]
    assert names[0] == "__futex_abstimed_wait_common64"
    assert names[-1] == "clone3"
    assert all(frame.native for frame in record.threads[0].frames)


def test_eu_stack(tmp_path: Path) -> None:
    (found,) = text("gdb", tmp_path, EU_STACK)
    assert found.process.pid == 4276
    assert [stack.name for stack in stacks(found).threads] == ["MainThread", None]
    assert [f.function for f in stacks(found).threads[0].frames][:1] == ["pthread_cond_wait"]


def test_python_frames_replace_interpreter_frames(tmp_path: Path) -> None:
    (found,) = text("gdb", tmp_path, PY_BT)
    (main,) = stacks(found).threads
    assert [(f.function, f.native) for f in main.frames] == [
        ("__GI___futex", True),
        ("wait", False),
        ("<module>", False),
    ]
    assert main.frames[1].short == "threading.py"


def test_several_processes(tmp_path: Path) -> None:
    bt = 'Thread 1 (Thread 0x7f (LWP {pid}) "python"):\n#0  0x00007f in read () from /lib/libc.so.6\n\n'
    found = text("gdb", tmp_path, "# rank 0\n" + bt.format(pid=7) + "# rank 1\n" + bt.format(pid=8))
    assert [(piece.process.rank, piece.process.pid) for piece in found] == [(0, 7), (1, 8)]
    found = text("gdb", tmp_path, bt.format(pid=7) + bt.format(pid=8))
    assert [piece.process.pid for piece in found] == [7, 8]


def test_repeated_thread_is_a_second_look(tmp_path: Path) -> None:
    found = text("gdb", tmp_path, EU_STACK + EU_STACK)
    assert [piece.process.pid for piece in found] == [4276, 4276]
    assert stacks(found[0]) == stacks(found[1])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("f (a=1, b=0x2)", "f"),
        ("std::function<void (int)>::operator() (this=0x1)", "std::function<void (int)>::operator()"),
        ('f (s=0x1 "a) (b")', "f"),
        ("__poll", "__poll"),
        ("c10d::Work::wait(std::chrono::duration<long>)", "c10d::Work::wait(std::chrono::duration<long>)"),
    ],
)
def test_function_name_without_arguments(text: str, name: str) -> None:
    assert _symbol(text) == name
