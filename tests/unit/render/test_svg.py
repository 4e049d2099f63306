from __future__ import annotations

import re
from dataclasses import replace

import pytest

from hangdoc.incident.incident import Incident
from hangdoc.incident.timeline import Lane, Span
from hangdoc.render import svg
from hangdoc.verdict import RankLine
from tests.support.verdicts import healthy

BOX = re.compile(r"M(\d+) (\d+)h(\d+)v20h-\d+z")


def ranks(*phases: str, numbers: list[int | None] | None = None, **more: tuple[object, ...]) -> Incident:
    verdict = healthy()
    known = numbers or list(range(len(phases)))
    lines = tuple(RankLine(n, 10 + i, "a", phase) for i, (n, phase) in enumerate(zip(known, phases, strict=True)))
    return Incident(replace(verdict, job=replace(verdict.job, ranks=lines)), **more)  # type: ignore[arg-type]


def cells(incident: Incident) -> dict[str, list[int]]:
    """By phase the numbers of its cells, read back from the paths."""
    made = svg.grid(incident)
    assert made is not None
    columns = (made.width - made.left) // svg.CELL
    found: dict[str, list[int]] = {}
    for one in made.cells:
        for x, y, width in (map(int, box) for box in BOX.findall(one.path)):
            first = y // svg.CELL * columns + (x - made.left) // svg.CELL
            found.setdefault(one.phase, []).extend(range(first, first + width // svg.CELL))
    return found


@pytest.mark.parametrize("count", [1, 3, 8, 17, 128, 129, 1000, 1025, 4096])
def test_every_rank_has_its_cell(count: int) -> None:
    phases = ["compute" if i % 3 else "collective" for i in range(count)]
    found = cells(ranks(*phases))
    assert sorted(cell for of in found.values() for cell in of) == list(range(count))
    assert all(phases[cell] == phase for phase, of in found.items() for cell in of)


def test_like_neighbours_are_one_box() -> None:
    made = svg.grid(ranks(*["idle"] * 4096))
    assert made is not None
    assert [len(BOX.findall(one.path)) for one in made.cells] == [64]


def test_missing_and_unnumbered_ranks() -> None:
    found = cells(ranks("compute", "idle", "input", "stopped", numbers=[1, None, 1, 4], missing=((0, 0), (2, 3))))
    assert found == {"missing": [0, 2, 3], "compute": [1], "stopped": [4], "idle": [5], "input": [6]}


def test_a_number_out_of_bounds_makes_no_room() -> None:
    assert cells(ranks("compute", "idle", numbers=[10**9, 0], missing=((10**8, 10**8),))) == {
        "idle": [0],
        "compute": [1],
    }


def test_culprits_are_outlined() -> None:
    made = svg.grid(ranks(*["compute"] * 20, blamed=(1, 17)))
    assert made is not None
    assert [tuple(map(int, box)) for box in BOX.findall(made.blamed)] == [(20, 0, 20), (20, 20, 20)]


def test_no_ranks_no_grid() -> None:
    assert svg.grid(ranks()) is None


def test_a_phase_nobody_knows_is_unknown() -> None:
    assert cells(ranks('x" onload="')) == {"unknown": [0]}
    assert list(svg.shown_phases(ranks("nonsense", "idle"))) == ["idle", "unknown"]


def test_bars_are_stacked_and_seen() -> None:
    spans = (Span(-10.0, -5.0, (("compute", 0.75), ("idle", 0.25))), Span(0.0, 0.0, (("idle", 1.0),)))
    paths = {bar.phase: bar.path for bar in svg.bars(Lane((), (), "idle", None, None, spans), 10.0)}
    assert paths["compute"] == "M0.0 0.0h500.0v15.0h-500.0z"
    assert paths["idle"] == "M0.0 15.0h500.0v5.0h-500.0zM996.0 0.0h4.0v20.0h-4.0z"


def test_strokes_that_fall_together_are_one() -> None:
    assert svg.ticks([-10.0, -5.0, -5.001, 0.0], 10.0) == "M0 0V20M500 0V20M1000 0V20"
