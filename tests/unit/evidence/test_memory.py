"""Records that share equal parts."""

from __future__ import annotations

from msgspec.structs import replace

from hangdoc.evidence import Frame, Stack, Stacks, Variable
from hangdoc.evidence.memory import share


def frame(name: str, step: int = 0) -> Frame:
    batch = Variable("batch", "tensor of 5")
    return Frame(name, f"/{name}.py", 7, f"{name}.py", variables=(Variable("step", str(step)), batch))


def stacks(*frames: Frame) -> Stacks:
    return Stacks((Stack(1, "MainThread", frames),))


def test_equal_records_become_one() -> None:
    old, new = stacks(frame("train")), stacks(frame("train"))
    assert share(new, old) is old


def test_equal_parts_are_shared() -> None:
    old, new = stacks(frame("train"), frame("main")), stacks(frame("train", 1), frame("main"))
    kept = share(new, old)
    assert kept == new
    assert kept.threads[0].frames[1] is old.threads[0].frames[1]
    variables, before = kept.threads[0].frames[0].variables, old.threads[0].frames[0].variables
    assert variables is not None
    assert before is not None
    assert variables[1] is before[1]
    assert variables[0].text == "1"


def test_outer_frames_are_shared_at_any_depth() -> None:
    old, new = stacks(frame("train"), frame("main")), stacks(frame("wait"), frame("train"), frame("main"))
    for one, other in ((new, old), (old, new)):
        kept = share(one, other)
        assert kept == one
        assert kept.threads[0].frames[-1] is other.threads[0].frames[-1]
        assert kept.threads[0].frames[-2] is other.threads[0].frames[-2]


def test_records_of_different_types_are_not_shared() -> None:
    new = stacks(frame("train"))
    for old in (None, frame("train"), "stacks"):
        assert share(new, old) is new
    assert share(1, True) == 1
    assert share(1, True) is not True


def test_new_values_are_kept() -> None:
    old = stacks(frame("train"))
    new = replace(old, native=True, python="3.11")
    assert share(new, old) == new
