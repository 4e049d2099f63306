"""Reports on files in the ways in which people combine them."""

from __future__ import annotations

from pathlib import Path

from tests.support.judge import reported

RAISED = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/a.py", line 1, in f
[rank1]: ValueError: x
"""
NATIVE = """rank 1
Thread 1 (Thread 0x7f3c2b1a (LWP 4211) "python"):
#0  0x00007f3c2b1a in read () from /lib/libc.so.6
#1  0x00007f3c2c11 in call (fd=23) from /opt/libfoo.so
"""


def test_a_native_stack_of_a_rank_that_has_ended(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(RAISED)
    (tmp_path / "stacks.txt").write_text(NATIVE)
    (verdict,) = reported(tmp_path).verdicts
    assert [rank.rank for rank in verdict.job.ranks] == [1]
