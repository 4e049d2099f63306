"""Excerpts of source that begin in the middle, are cut, or have no line numbers."""

from __future__ import annotations

from typing import Any

import pytest

from hangdoc.introspect.parsers.excerpt_lines import places_of_excerpt

GUARDED = "if rank == 0:\n    total = gather(total)\n    log(total)\ndist.barrier()"


def places(text: str, numbers: list[int] | None, *frames: tuple[int, str, str | None, bool]) -> dict[str, Any]:
    return places_of_excerpt(text.encode(), {"numbers": numbers, "frames": frames})


def test_the_function_of_a_frame_is_put_around_an_excerpt_without_its_def() -> None:
    found = places(GUARDED, [50, 51, 52, 53], (51, "step", "gather", True), (53, "step", "barrier", True))
    assert found["around"] == {51: (49, 53, "step"), 53: (49, 53, "step")}
    assert [branch[1:3] for branch in found["places"][51][3]] == [["body", "rank == 0"]]
    assert found["places"][53][3] == []


def test_an_excerpt_may_begin_in_a_block_and_end_with_a_header() -> None:
    text = "            push(row)\n        flush()\n    for batch in loader:\n        if late:"
    found = places(text, [20, 21, 22, 24], (20, "run", "push", True))
    assert found["places"][20][4] == ["push"]


def test_a_line_that_is_cut_costs_only_itself() -> None:
    found = places("def run(self):\n    x = load(a,\n    y = step(x)", [7, 8, 9], (9, "run", "step", True))
    assert found["around"][9] == (7, 9, "run")


@pytest.mark.parametrize(
    ("frames", "line"),
    [
        pytest.param(((61, "step", "gather", True), (63, "step", "barrier", True)), 61, id="both calls fit one offset"),
        pytest.param(((61, "step", "reduce", True),), None, id="no line makes the call"),
        pytest.param(((61, "step", "gather", True), (70, "step", "log", True)), None, id="two offsets"),
    ],
)
def test_without_numbers_the_calls_of_the_frames_decide(
    frames: tuple[tuple[int, str, str, bool], ...], line: int | None
) -> None:
    found = places(GUARDED, None, *frames)
    assert (line in found["places"]) if line else not found["places"]


def test_without_numbers_two_offsets_are_one_too_many() -> None:
    assert not places("if a:\n    send(x)\nelse:\n    send(y)", None, (30, "f", "send", True))["places"]
