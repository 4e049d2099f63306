"""Losses of several ranks in a table with a column for each."""

from __future__ import annotations

import pytest

from hangdoc.postmortem.readers._logs.local_values import LocalValues

HEAD = "local_loss of each rank\n| step | r0 | r1 | r2 | scale |\n|---|---|---|---|---|\n"


def nan_of(text: str) -> list[tuple[int, int | None]]:
    """Rank and step of each value that is none."""
    values = LocalValues()
    lines = enumerate(text.splitlines(), 1)
    return [(one.rank, one.step) for at, line in lines for one in values.feed(line, at) if one.value in ("nan", "inf")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{HEAD}| 7 | 0.5 | nan | 0.6 | 8 |\n| 8 | 0.5 | nan | 0.6 | 4 |\n", [(1, 7), (1, 8)]),
        (f"{HEAD}| 7 | 0.5 | inf | 0.6 | 8 |\n", [(1, 7)]),
        (f"{HEAD}| 7 | 0.5 | nan | 0.6 | 8 |\n", []),  # perhaps it was not logged yet
        (f"{HEAD}| 7 | 0.5 | nan | 0.6 | 8 |\n| 8 | 0.5 | 0.4 | 0.6 | 8 |\n", []),
        (HEAD.replace("local_loss", "eval_bleu") + "| 7 | 0.5 | nan | 0.6 | 8 |\n| 8 | 0.5 | nan | 0.6 | 8 |\n", []),
        ("loss\nrank0 rank1 rank2\n0.5 0.6 nan\n", [(2, None)]),
    ],
)
def test_a_column_for_each_rank(text: str, found: list[tuple[int, int | None]]) -> None:
    assert nan_of(text) == found
