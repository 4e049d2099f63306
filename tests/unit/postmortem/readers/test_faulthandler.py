"""faulthandler dumps of real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hangdoc.evidence import End
from hangdoc.evidence.pieces import Piece
from hangdoc.postmortem.readers._dump_ranks import MAX_DUMPS
from tests.support.polling import at_rest
from tests.support.samples import SAMPLES, pieces, read, stacks, text

FOLDER = SAMPLES / "faulthandler"
MAIN = """Thread 0x{tid:016x} (most recent call first):
  File "/job/train.py", line 3 in f
  File "/job/train.py", line 9 in <module>
"""


def test_rank_from_the_file_name_and_full_paths() -> None:
    (found,) = pieces("faulthandler", FOLDER / "rank_2.txt")
    assert (found.process.rank, found.process.pid) == (2, None)
    (main,) = stacks(found).threads
    assert main.name == "MainThread"
    assert [(f.function, f.line) for f in main.frames[:3]] == [
        ("barrier", 5356),
        ("wrapper", 83),
        ("save_checkpoint", 68),
    ]
    assert main.frames[0].file.endswith("/site-packages/torch/distributed/distributed_c10d.py")
    assert main.frames[0].short == "torch/distributed/distributed_c10d.py"


def test_last_thread_not_started_by_threading_is_the_main_thread(tmp_path: Path) -> None:
    """Such as where a signal comes while the interpreter ends."""
    frame = '  File "{}", line 1 in {}\n'
    worker = "Thread 0x1 (most recent call first):\n" + frame.format("/lib/threading.py", "_bootstrap")
    ends = "Current thread 0x2 (most recent call first):\n" + frame.format("/lib/util.py", "_exit_function")
    (found,) = text("faulthandler", tmp_path, f"{worker}\n{ends}")
    assert [stack.name for stack in stacks(found).threads] == [None, "MainThread"]
    (found,) = text("faulthandler", tmp_path, worker)
    assert [stack.name for stack in stacks(found).threads] == [None]


def test_two_dumps_of_one_process_are_two_looks() -> None:
    found = pieces("faulthandler", FOLDER / "twice.txt")
    assert [[stack.name for stack in stacks(piece).threads] for piece in found] == [[None, "MainThread"]] * 2
    assert found[0].process == found[1].process


def test_of_a_process_with_very_many_dumps_the_newest_are_used(tmp_path: Path) -> None:
    dump = 'Thread 0x0000000000000001 (most recent call first):\n  File "/job/train.py", line {} in f\n\n'
    lines = range(1, MAX_DUMPS + 101)
    file = tmp_path / "paste.txt"
    file.write_text("".join(map(dump.format, lines)))
    found, said = read("faulthandler", file)
    newest = [stacks(piece).threads[0].frames[0].line for piece in found if isinstance(piece, Piece)]
    assert newest == [*lines][-MAX_DUMPS:]
    assert len(said) == 1
    assert f"{len(lines)} dumps of one process; the newest {MAX_DUMPS} are used" in said[0]


def test_fatal_error_is_an_exit() -> None:
    dumped, end = pieces("faulthandler", FOLDER / "crash.txt")
    assert stacks(dumped).threads[0].frames[0].function == "string_at"
    assert (end.probe, end.record) == ("end", End(signal=11, native_thread=False))
    assert end.process == dumped.process


def test_dumps_of_several_processes(tmp_path: Path) -> None:
    found = text("faulthandler", tmp_path, "".join(MAIN.format(tid=tid) + "\n" for tid in (1, 2, 3)))
    assert len({piece.process for piece in found}) == 3
    found = text(
        "faulthandler",
        tmp_path,
        "".join(f"[rank{rank}]:{line}\n" for rank in (0, 1) for line in MAIN.format(tid=9).splitlines()),
    )
    assert [piece.process.rank for piece in found] == [0, 1]


def test_without_thread_ids_and_with_names(tmp_path: Path) -> None:
    frames = '  File "/job/train.py", line 3 in f\n'
    (found,) = text(
        "faulthandler", tmp_path, f"Timeout (0:00:05)!\nStack (most recent call first):\n{frames}", "rank1.txt"
    )
    assert (found.process.rank, stacks(found).threads[0].frames[0].function) == (1, "f")
    (found,) = text(
        "faulthandler", tmp_path, f"Current thread 0x00007f [pump [red]] (most recent call first):\n{frames}  ...\n"
    )
    assert stacks(found).threads[0].name == "pump [red]"


def test_torchrun_log_folders(tmp_path: Path) -> None:
    folder = tmp_path / "none_x" / "attempt_1" / "3"
    folder.mkdir(parents=True)
    (found,) = text("faulthandler", folder, MAIN.format(tid=1), "stderr.log")
    assert (found.process.rank, found.process.run) == (3, 1)


def test_log_that_contains_a_dump_is_a_log() -> None:
    from tests.support.samples import reader, source

    assert not reader("faulthandler").recognises(source(SAMPLES / "logs" / "with_dump.log"))


def test_main_thread_in_interpreter_shutdown(tmp_path: Path) -> None:
    script = (
        "import faulthandler, signal, threading, time\nfaulthandler.register(signal.SIGUSR1)\n"
        "threading.Thread(target=threading.Event().wait, args=(60,)).start()\nprint('ready', flush=True)\n"
    )
    job = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert job.stdout is not None
        job.stdout.readline()
        at_rest(job.pid)  # it has ended its module by then
        lines = dump(job, b"_shutdown")
    finally:
        job.kill()
        job.communicate()
    (found,) = text("faulthandler", tmp_path, lines)
    other, main = stacks(found).threads
    assert other.name in (None, "Thread-1 (wait)")  # with its name from 3.14 on
    assert main.name == "MainThread"


def test_names_of_threads_in_3_14(tmp_path: Path) -> None:
    """The main thread's is that of the program."""
    worker = 'Thread 0x2 [loader] (most recent call first):\n  File "/lib/threading.py", line 1 in _bootstrap\n'
    last = 'Current thread 0x1 [train.py] (most recent call first):\n  File "/job/train.py", line 9 in {}\n'
    for outermost in ("<module>", "_exit_function"):
        (found,) = text("faulthandler", tmp_path, f"{worker}\n{last.format(outermost)}")
        assert [stack.name for stack in stacks(found).threads] == ["loader", "MainThread"]


def dump(job: subprocess.Popen[bytes], outermost: bytes) -> bytes:
    """What a process writes when it is asked for its stacks, to the outermost function of the last one."""
    os.kill(job.pid, signal.SIGUSR1)
    assert job.stderr is not None
    lines = [job.stderr.readline()]
    while outermost not in lines[-1]:
        lines.append(job.stderr.readline())
    return b"".join(lines)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_real_process(threads: int, tmp_path: Path) -> None:
    script = (
        "import faulthandler, signal, sys, threading, time\nfaulthandler.register(signal.SIGUSR1)\n"
        "def waits(): threading.Event().wait()\n"
        f"for n in range({threads}): threading.Thread(target=waits, daemon=True).start()\n"
        "def main():\n    print('ready', flush=True)\n    time.sleep(60)\nmain()\n"
    )
    job = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert job.stdout is not None
        job.stdout.readline()
        at_rest(job.pid)
        lines = dump(job, b"<module>")
    finally:
        job.kill()
        job.communicate()
    (found,) = text("faulthandler", tmp_path, lines)
    assert len(stacks(found).threads) == threads + 1
    assert [f.function for f in stacks(found).threads[-1].frames] == ["main", "<module>"]
