"""Which process a dump in a pasted text belongs to."""

from __future__ import annotations

import pytest

from hangdoc.evidence.pieces import ProcessRef
from hangdoc.postmortem.readers._owner_hints import MAX_ABOVE, OwnerHints

# A line above a dump -> its process.
PROCESSES = {
    "rank 3 (pid 4117) on gn12:": ProcessRef(3, "gn12", 4117),
    "### rank 3": ProcessRef(3),
    "node gn12, local rank 1 (global 3):": ProcessRef(3, "gn12"),
    "and this one, node 1 local rank 3 (global 11):": ProcessRef(11, "1"),
    "but the stuck one, rank 3:": ProcessRef(3),
    "== group A: 3 of 8 ranks  [3 4 7] ==": ProcessRef(3),
    "SLURM_PROCID=3": ProcessRef(3),
    "== OMPI_COMM_WORLD_RANK 3": ProcessRef(3),
    "OMPI_COMM_WORLD_LOCAL_RANK 3": ProcessRef(),
    "==> gn12 <==": ProcessRef(host="gn12"),
    "we think rank 3 and its loader are fine, as every rank before it was": ProcessRef(),
    "user@gn12:~$ py-spy dump --pid 4117": ProcessRef(None, "gn12", 4117),
    "$ py-spy dump -p 4117  # rank 3": ProcessRef(3),
    "user@gn12:~$ gdb -p 4117 -batch -ex bt # this is rank 3 of 8": ProcessRef(3, "gn12"),
    "$ kill -USR1 4117 # ranks 0-7 all look like this": ProcessRef(),
}


@pytest.mark.parametrize("text", PROCESSES)
def test_process_of_a_dump(text: str) -> None:
    hints = OwnerHints()
    hints.observe(text)
    assert hints.take() == PROCESSES[text]


def test_ranks_that_look_like_that_of_a_heading() -> None:
    hints = OwnerHints()
    hints.observe("py-spy dump, rank 2 (0,1,3 look like it):")
    assert hints.companions == {2: (0, 1, 3)}


def test_a_heading_with_the_variables_of_several_ranks() -> None:
    hints = OwnerHints()
    hints.observe("gx12, both procs (RANK=2 and RANK=3):")
    assert hints.companions == {2: (3,)}


def test_the_children_that_ps_lists() -> None:
    hints = OwnerHints()
    hints.observe("$ ps -o pid,ppid,stat,etime,time,pcpu,rss,args --ppid 4117")
    hints.observe("   4903    4117 R   51:07 00:51:05 99.9 6290112 python train.py")
    assert hints.relations.parents == {4903: 4117}


def test_ranks_of_a_folded_stack() -> None:
    hints = OwnerHints()
    hints.observe("== group A: 3 of 8 ranks  [3 4 7] ==")
    assert hints.companions == {3: (4, 7)}


@pytest.mark.parametrize(("spoke", "rank"), [("[r03] step 7 loss 1.2", 3), ("[r04] step 7 loss 1.2", None)])
def test_a_heading_ends_where_another_rank_speaks(spoke: str, rank: int | None) -> None:
    hints = OwnerHints()
    for text in ("rank 3, from our own hook:", spoke, "$ cat /proc/$(pgrep -f pt_data_worker | head -1)/stack"):
        hints.observe(text)
    assert hints.take() == ProcessRef(rank)


@pytest.mark.parametrize(("lines", "rank"), [(2, 6), (MAX_ABOVE + 1, None)])
def test_a_heading_far_above_a_debugger_is_that_of_another_dump(lines: int, rank: int | None) -> None:
    hints = OwnerHints()
    for text in ("RANK 6:", *["    get (multiprocessing/queues.py:113)"] * lines, "$ sudo gdb -p 22764 -batch -ex bt"):
        hints.observe(text)
    assert hints.take() == ProcessRef(rank)


@pytest.mark.parametrize(("examined", "rank"), [(40111, 1), (40377, None)])
def test_a_debugger_of_another_process_than_that_of_the_heading(examined: int, rank: int | None) -> None:
    hints = OwnerHints()
    for text in ("RANK 1 (pid 40111)", "    get (queue.py:180)", f"$ gdb -p {examined} -batch -ex bt"):
        hints.observe(text)
    assert hints.take() == ProcessRef(rank, None, examined)


def test_a_heading_whose_process_has_the_stack_of_another_one() -> None:
    hints = OwnerHints()
    hints.observe("### pid 30745  (LOCAL_RANK=2)")
    hints.observe("same as 30744")
    hints.observe("pid 30746, 30747: same as 30744 (step, the `float(loss)`)")
    assert hints.relations.twins == {30745: 30744, 30746: 30744, 30747: 30744}
    assert hints.take() == ProcessRef()


def test_a_heading_of_nothing_but_ranks_that_have_the_stack_of_another_one() -> None:
    hints = OwnerHints()
    hints.observe("=== RANK 1 (pid 118205) ===")
    hints.take()
    hints.observe("=== 2,3,4 ===")
    hints.observe("same as 1 (line 151 = `running += loss.item()`, the first step of epoch 7)")
    assert hints.companions == {1: (2, 3, 4)}
    assert hints.take() == ProcessRef()


def test_numbers_below_no_rank_are_no_heading() -> None:
    hints = OwnerHints()
    hints.observe("--- 10, 20 ---")
    assert hints.take() == ProcessRef()


def test_a_task_of_slurm_and_those_with_its_stack() -> None:
    hints = OwnerHints()
    hints.observe("## task 0 (pid 190233), tasks 1 and 3 are line by line the same")
    assert (hints.companions, hints.take().rank) == ({0: (1, 3)}, 0)


def test_a_task_without_a_process_is_no_rank() -> None:
    hints = OwnerHints()
    hints.observe("### task 3: tidy up")
    assert hints.take() == ProcessRef()
