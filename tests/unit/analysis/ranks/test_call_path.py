"""Interned call paths, and the variables a comparison depends on."""

from __future__ import annotations

from typing import Any

import pytest

from hangdoc.analysis import Case
from hangdoc.analysis.ranks.call_path import CallPath, per_path
from hangdoc.analysis.ranks.judged_thread import comparison_key, judged_thread
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import Branch, Frame, Loop, Place, RankEvidence, Source, Stack, Stacks, Target, Variable

LOOP = Loop(1, 9, "for step in range(9):", ("step",))
SOURCE = Source({"/lib/python3.11/x.py:3": Place("wait()", (LOOP,), (Branch(2, "body", "flag > 1"),), ("wait",), 1, 9)})


def number(name: str, value: int | None = None, address: int = 1) -> Variable:
    return Variable(name, str(value), number=value, kind="int" if value is not None else "object", address=address)


def case(*ranks: tuple[list[Variable], list[Variable]]) -> Case:
    """Ranks with the given variables in a user frame and in a library frame."""
    evidence = {}
    for rank, (own, library) in enumerate(ranks):
        frames = (
            Frame("epoll_wait", "libc.so.6", None, native=True),
            Frame("wait", "/lib/python3.11/x.py", 3, variables=tuple(library)),
            Frame("train", "/job/train.py", 7, variables=tuple(own)),
        )
        records: dict[str, Any] = {"stacks": Stacks((Stack(rank, "MainThread", frames),)), "source": SOURCE}
        evidence["here", rank] = RankEvidence(Target(rank, 1, "here", rank), True, records)
    found = Case([], evidence)
    found.give(StackFacts, dict.fromkeys(evidence, StackFacts("idle", thread="MainThread")))
    return found


def test_equal_paths_are_one_object_and_variables_stay_per_rank() -> None:
    found = case(([number("n", 1)], []), ([number("n", 2)], []))
    first, second = (judged_thread(found, key) for key in found.ranks)
    assert first is not None
    assert second is not None
    assert first.path is second.path
    assert [function for function, *_ in first.path.python] == ["wait", "train"]
    for thread, value in ((first, 1), (second, 2)):
        assert [step.function for step in thread] == ["train", "wait"]
        assert thread[0].variables["n"].number == value
        assert [variable.number for variable in thread.variables(0)] == [value]
        assert thread[0] is thread[0]
        assert not thread.path.steps[0].variables
    assert first[1] is second[1]  # without variables


def test_equal_frames_with_other_source_are_another_path() -> None:
    """Two hosts may have different checkouts; their ranks are at the same lines nevertheless."""
    found = case(([], []), ([], []))
    found.ranks["here", 1].records["source"] = Source({})  # type: ignore[index]
    first, second = (judged_thread(found, key) for key in found.ranks)
    assert first is not None
    assert second is not None
    assert first.path is not second.path
    assert first.path.python == second.path.python
    assert (first[1].place, second[1].place) == (SOURCE.places["/lib/python3.11/x.py:3"], None)


def test_a_fact_of_a_path_is_derived_once() -> None:
    asked: list[CallPath] = []

    @per_path
    def depth(path: CallPath) -> int:
        asked.append(path)
        return len(path.steps)

    found = case(([], []), ([], []))
    assert [depth(thread.path) for key in found.ranks if (thread := judged_thread(found, key))] == [2, 2]
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("own", "library", "same"),
    [
        ([number("n", 5)], [number("step", 5)], True),
        ([number("n", 5, address=7)], [number("step", 5)], True),
        ([number("n", 6)], [number("step", 5)], False),
        ([number("n", 5)], [number("step", 6)], False),  # a loop counter
        ([number("n", 5), number("flag", 2)], [number("step", 5), number("flag", 3)], False),
        ([number("n", 5)], [number("step", 5), number("other", 9)], True),  # internal to the library
        ([number("n", 5)], [number("step", 5), number("asked", 9)], False),  # a condition of the reference names it
        ([number("n", 5), number("rank", 1)], [number("step", 5)], True),
        ([], [number("step", 5)], False),
        ([number("n", 5)], [number("step", 1)], False),
    ],
)
def test_comparison_key(own: list[Variable], library: list[Variable], same: bool) -> None:
    found = case(([number("n", 5)], [number("step", 5)]), (own, library))
    first, second = (comparison_key(found, key, frozenset({"asked"})) for key in found.ranks)
    assert (first == second) is same
