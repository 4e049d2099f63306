"""Lines that were written into one: where they are cut, and what stays whole."""

from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._cleaning import TextLine
from hangdoc.postmortem.readers._glued_lines import with_glued_lines_apart

BAR = "x 10%|#  | 1/9 [00:01<00:09, 1.1it/s]"
GLOG = "[E1120 10:11:12.123456789 P.cpp:6]"
THREAD = 'Thread 81 (active): "MainThread"'
FRAME = "    all_reduce (torch/distributed/distributed_c10d.py:2501)"


def apart(text: str) -> str:
    lines = [TextLine(number, line) for number, line in enumerate(text.split("\n"), 1)]
    return "\n".join(line.text for line in with_glued_lines_apart(lines))


@pytest.mark.parametrize(
    "text",
    [
        f"{BAR}~RuntimeError: x",
        f"[rank0]:{GLOG} it failed before timing out.~[rank1]:{GLOG} x",
        "rank 0  0.51\nrank 1  0.52~rank 2  0.51\nrank 3  0.50",
        "gx1 slots=4\ngx2 slots=4\n$ cat hosts~gx3 slots=4",
        "| 0 | 0.1 |~| 1 | 0.2 |\n| 2 | 0.1 |",
        f"{THREAD}~{FRAME}~    step (t.py:60)~{THREAD}",
        '  File "t.py", line 8, in main~    run(cfg)',
        "[default2]:  File x, line 3 in g\n[default2]:  File x, line 4 in f~[default2]:Current thread 0x1",
        "4 of them~[me@n2 run]$ ps -ef",
        "(gdb) bt\n(gdb) p m~(gdb) info threads",
        "2026-04-16 21:07:55,322 - INFO - world size: 8~2026-04-16 21:07:55,322 - INFO - expected ranks: {0, 1}",
        "    work = pg.barrier(opts=opts)~torch.distributed.DistBackendError: [2] is setting up",
    ],
)
def test_lines_in_one_are_cut(text: str) -> None:
    assert apart(text.replace("~", "")) == text.replace("~", "\n")


@pytest.mark.parametrize(
    "text",
    [
        "rank 0: a\nrank 1: b\nlocal_rank 2: c, (rank 3: d), world-rank 4: e",
        "agx1:1:2 [0] x\ngx1:1:2 [0] y\ngx1:1:2 [0] z",  # a host's name ends like another one
        'proc-z |   File "t.py", line 8, in main\nproc-z |     run()',  # a prefix, and a frame behind it
        "main (t.py:9) > step (t.py:7)  >  save (s.py:3)",
        "2026-04-16 21:07:55,322 train.log.2026-04-16 21:07:55,322 rotated",
        "raise RuntimeError(f(x)) from error\nRayTaskError(RuntimeError): x",
        "step 3: 4.1 rank 0, 4.2 rank 1\nrank 0 is late\nrank 1 is late",
    ],
)
def test_a_line_stays_whole(text: str) -> None:
    assert apart(text) == text
