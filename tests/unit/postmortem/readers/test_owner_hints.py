"""Which process a dump in a pasted text belongs to."""

from __future__ import annotations

import pytest

from hangdoc.evidence.pieces import ProcessRef
from hangdoc.postmortem.readers._owner_hints import MAX_ABOVE, OwnerHints, examined_rank, ranks_in_order

# A line above a dump -> its process.
PROCESSES = {
    "rank 3 (pid 4117) on gn12:": ProcessRef(3, "gn12", 4117),
    "### rank 3": ProcessRef(3),
    "node gn12, local rank 1 (global 3):": ProcessRef(3, "gn12"),
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


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("0 and 1 wait. py-spy on rank 2 says `active+gil` every time. gdb on it:", 2),
        ("only rank 5 never got there, so I attached gdb to it:", 5),
        ("`gdb -p 77 -batch` for rank 1:", 1),
        ("py-spy on rank 3 fails, so here is rank 0 from gdb:", None),
        ("ranks 0-3 in gdb:", None),
        ("rank 2 is late, no idea why", None),
    ],
)
def test_rank_on_which_a_debugger_was_used(text: str, rank: int | None) -> None:
    assert examined_rank(text) == rank


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("Order of pids = LOCAL_RANK 0..3", (0, 1, 2, 3)),
        ("stacks below, in rank order", (0, 1, 2, 3)),
        ("ranks 4, 5, 6 and 7 in that order", (4, 5, 6, 7)),
        ("ranks 0 and 1 in that order", ()),
        ("in the order of the reverse ranks", ()),
        ("the order of pids is random", ()),
    ],
)
def test_the_order_in_which_a_text_shows_its_ranks(text: str, ranks: tuple[int, ...]) -> None:
    assert ranks_in_order(f"{text}\n", 4) == ranks
