"""What sentences say about the ranks of all dumps of a text."""

from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._stated_ranks import examined_rank, ranks_in_order


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
