"""Stacks as people paste them: under headings of their own, without threads, numbers or processes, among other text."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc.postmortem.report import Unrecognised
from tests.support.judge import reported

FRAMES = {
    "all_reduce": (("all_reduce", "torch/distributed/distributed_c10d.py", 2806), ("step", "train.py", 40)),
    "barrier": (("barrier", "torch/distributed/distributed_c10d.py", 4100), ("save", "train.py", 60)),
}
OUTER = (("main", "train.py", 80), ("<module>", "train.py", 99))


def bare(op: str) -> str:
    return "".join(f"{function} ({file}:{line})\n" for function, file, line in FRAMES[op] + OUTER)


def pyspy(op: str, thread: str = 'Thread 0x7F (idle): "MainThread"') -> str:
    return f"{thread}\n" + "".join(f"    {row}\n" for row in bare(op).splitlines())


def faulthandler(op: str, heading: str = "") -> str:
    rows = (f'  File "{file}", line {line} in {function}\n' for function, file, line in FRAMES[op] + OUTER)
    return heading + "".join(rows)


def printed(op: str) -> str:
    """As `traceback.print_stack` prints it."""
    rows = (f'  File "{file}", line {line}, in {function}\n    go(x)\n' for function, file, line in FRAMES[op] + OUTER)
    return "".join(reversed(list(rows)))


def pystack(op: str) -> str:
    rows = (f'    (Python) File "{file}", line {line}, in {function}\n' for function, file, line in FRAMES[op] + OUTER)
    return "".join(reversed(list(rows)))


def ops(folder: Path, text: str) -> list[tuple[int | None, str, str | None]]:
    """Rank, host and operation of each process in a text."""
    (folder / "paste.txt").write_text(text, encoding="utf-8")
    (verdict,) = reported(folder / "paste.txt").verdicts
    return [(one.rank, one.host, one.op) for one in verdict.job.ranks]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Rank 0 (hung in backward):", "Rank 1, which still saves:"),
        ("rank 0", "rank 1"),
        ("on rank 0:", "on rank 1:"),
        ("[rank 0] py-spy:", "[rank 1] py-spy:"),
        ("**Rank 0:**", "**Rank 1:**"),
        ("### rank 0", "### rank 1"),
        ("=== rank0.txt ===", "=== rank1.txt ==="),
        ("GPU 0", "GPU 1"),
        ("=== gpu 0 ===", "=== gpu 1 ==="),
        ("worker-0", "worker-1"),
        ("Here is rank 0:", "and rank 1:"),
        ("rank 0/2:", "rank 1/2:"),
    ],
)
@pytest.mark.parametrize("stack", [bare, pyspy, faulthandler, printed, pystack])
def test_headings_of_people(first: str, second: str, stack, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    text = f"{first}\n{stack('all_reduce')}\n{second}\n{stack('barrier')}"
    assert sorted(ops(tmp_path, text)) == [(0, "unknown host", "all_reduce"), (1, "unknown host", "barrier")]


@pytest.mark.parametrize(
    "thread",
    [
        "Thread (idle)",
        'Thread "MainThread" (idle)',
        "MainThread (active)",
        "Thread MainThread (idle):",
        'Thread "MainThread":',
    ],
)
def test_a_thread_without_a_number(thread: str, tmp_path: Path) -> None:
    assert ops(tmp_path, f"rank 3\n{pyspy('barrier', thread)}") == [(3, "unknown host", "barrier")]


@pytest.mark.parametrize(
    "heading", ["(most recent call first):\n", "Stack (most recent call first):\n", "Thread:\n", ""]
)
def test_faulthandler_without_a_thread(heading: str, tmp_path: Path) -> None:
    assert ops(tmp_path, faulthandler("barrier", heading)) == [(None, "unknown host", "barrier")]


def test_one_stack_for_several_ranks(tmp_path: Path) -> None:
    text = f"Ranks 0, 1 and 4-5 all show:\n{bare('all_reduce')}\nRank 2:\n{bare('barrier')}"
    found = {rank: op for rank, _, op in ops(tmp_path, text)}
    assert found == {0: "all_reduce", 1: "all_reduce", 2: "barrier", 4: "all_reduce", 5: "all_reduce"}


def test_gpus_of_several_hosts_are_no_ranks(tmp_path: Path) -> None:
    text = f"=== node1 gpu 0 ===\n{bare('all_reduce')}\n=== node2 gpu 0 ===\n{bare('barrier')}"
    assert sorted(ops(tmp_path, text), key=str) == [(None, "node1", "all_reduce"), (None, "node2", "barrier")]


@pytest.mark.parametrize("stack", [bare, faulthandler, printed])
def test_two_stacks_without_a_process_are_two(stack, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    found = ops(tmp_path, f"{stack('all_reduce')}\n\n{stack('barrier')}")
    assert sorted(op or "" for rank, _, op in found if rank is None) == ["all_reduce", "barrier"]


def test_bare_backtraces_of_gdb(tmp_path: Path) -> None:
    frames = (
        "#0  0x00007f3c2b1a in read () from /lib/libc.so.6\n#1  0x00007f3c2c11 in call (fd=23) from /opt/libfoo.so\n"
    )
    found = ops(tmp_path, f"rank 0\n(gdb) bt\n{frames}\nrank 1\n(gdb) bt\n{frames}")
    assert [rank for rank, _, _ in found] == [0, 1]


def test_a_log_and_stacks_in_one_text(tmp_path: Path) -> None:
    text = (
        "The first rank says:\n\n"
        "[rank0]:[E1120 10:11:12.123456789 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=730, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 "
        f"milliseconds before timing out.\n\nand on rank 1 py-spy shows this:\n\n{pyspy('barrier')}\n"
        "Filesystem      Size  Used Avail Use% Mounted on\n/dev/sda1        98G   98G     0 100% /\n"
    )
    (tmp_path / "paste.txt").write_text(text)
    found = reported(tmp_path)
    (verdict,) = found.verdicts
    assert [(one.rank, one.op) for one in verdict.job.ranks][1] == (1, "barrier")
    assert found.sources[0].format == "py-spy dump, training log"


def test_a_stack_far_behind_the_head(tmp_path: Path) -> None:
    log = "".join(
        f"2026-11-20 10:00:00 INFO step {step} loss 1.0 of the run that goes on and on\n" for step in range(90_000)
    )
    (tmp_path / "job.log").write_text(f"{log}\n=== rank 1 ===\n{pyspy('barrier')}")
    (verdict,) = reported(tmp_path).verdicts
    assert [(one.rank, one.op) for one in verdict.job.ranks] == [(1, "barrier")]


@pytest.mark.parametrize(
    "text",
    [
        "loss 2.31 (train.py:12)\nloss 2.30 (train.py:12)\nlr 0.1 (train.py:13)\n",
        "saved (ckpt.py:12)\n",
        "see main (train.py:80) please\n",
        "epoch 1\nWARNING: retry (client.py:3)\n",
    ],
)
def test_log_lines_are_no_stack(text: str, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(text)
    with pytest.raises(Unrecognised):
        reported(tmp_path)
