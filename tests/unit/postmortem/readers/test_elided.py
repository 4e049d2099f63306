"""Frames that a person left out of a stack."""

from __future__ import annotations

import pytest

from hangdoc.evidence import Frame
from hangdoc.postmortem.readers._elided import EarlierStacks, Elision, elision


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("    ...", Elision()),
        ("  [...]", Elision()),
        ("    ... (same)", Elision(None, True)),
        ("[... same as RANK 1 ...]", Elision(1, True)),
        ("(same as above)", Elision(None, True)),
        ("    [snip]", Elision(None, True)),
        ("identical", Elision(None, True)),
        ("rest: same as rank 0", Elision(0, True)),
        ("  <same as card 0, model.py 231, _sample 3482>", Elision(None, True)),
        ("loss is the same", None),
        ("    forward (net.py:12)", None),
        ("", None),
    ],
)
def test_marks(text: str, found: Elision | None) -> None:
    assert elision(text) == found


def frames(*lines: int) -> tuple[Frame, ...]:
    return tuple(Frame("f", "net.py", line, "net.py") for line in lines)


def test_the_frames_are_those_of_an_earlier_stack_with_the_same_ends() -> None:
    earlier = EarlierStacks()
    earlier.add(0, frames(1, 2, 3, 4))
    earlier.add(1, frames(1, 7, 4))
    assert earlier.between(frames(1), frames(4), Elision()) == frames(7)
    assert earlier.between(frames(1), frames(4), Elision(0, True)) == frames(2, 3)
    assert earlier.between(frames(9), frames(4), Elision()) == ()
    assert earlier.between((), (), Elision()) == ()
    assert earlier.between((), (), Elision(None, True)) == frames(1, 7, 4)
