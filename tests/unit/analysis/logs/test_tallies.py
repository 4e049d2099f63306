"""Whose counters stand apart: ranks that are behind, hosts whose links lose data."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hangdoc.analysis.facts import derive, schema
from hangdoc.analysis.logs.tallies import TalliesJob
from hangdoc.evidence import End
from hangdoc.evidence.figures import Figure, Figures
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.assemble import snapshots

TYPES = schema()
BEHIND: dict[str, tuple[Sequence[str], list[int]]] = {
    "one of four": (["4410", "4410", "4372", "4410"], [2]),
    "two of six": (["9", "7", "9", "9", "8", "9"], [1, 4]),
    "equal": (["9", "9", "9"], []),
    "all differ": (["44101", "43802", "44510", "44021"], []),
    "half": (["9", "8", "9", "8"], []),
    "one is ahead": (["9", "9", "10"], []),
    "two ranks": (["9", "8"], []),
    "times": (["0.5", "0.5", "0.1"], []),
}
LOSSY: dict[str, tuple[Sequence[str], list[str]]] = {
    "one host": (["12", "9", "48122", "14"], ["n2"]),
    "zeros elsewhere": (["0", "0", "1931"], ["n2"]),
    "few": (["0", "0", "31"], []),
    "many everywhere": (["812211", "798100", "820033"], []),
    "half": (["0", "9000", "0", "9000"], []),
}


def job(kind: str, of: str, values: Sequence[str], names: str = "") -> TalliesJob:
    found = tuple(Figure(kind, kind, of, f"{names}{at}", value) for at, value in enumerate(values))
    return derived(found)


def derived(figures: tuple[Figure, ...]) -> TalliesJob:
    pieces = [
        Piece(ProcessRef(0), "end", End(code=0)),
        Piece(ProcessRef(), "figures", Figures(figures, "job.log")),
    ]
    return derive(list(snapshots(pieces)), TYPES).job.tallies


@pytest.mark.parametrize("name", BEHIND)
def test_ranks_behind(name: str) -> None:
    values, behind = BEHIND[name]
    found = job("count", "rank", values)
    assert [one.rank for one in found.behind] == behind
    assert (found.behind_why is not None) == bool(behind)


@pytest.mark.parametrize("name", LOSSY)
def test_links_that_lose_data(name: str) -> None:
    values, lossy = LOSSY[name]
    found = job("losses", "host", values, "n")
    assert [one.host for one in found.lossy] == lossy
    assert (found.lossy_why is not None) == bool(lossy)


def test_what_is_shown() -> None:
    assert job("count", "rank", ["9", "9", "7"]).behind_why == "count: 7 on rank 2; 9 on the other 2"


def test_the_newest_list_counts() -> None:
    lines = (["9", "9", "9"], ["19", "17", "19"])
    found = tuple(
        Figure("count", "step", "rank", str(at), value, line=line)
        for line, values in enumerate(lines)
        for at, value in enumerate(values)
    )
    assert [one.rank for one in derived(found).behind] == [1]
