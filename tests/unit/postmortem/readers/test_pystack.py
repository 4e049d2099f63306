"""pystack dumps: the most recent call comes last."""

from __future__ import annotations

from tests.support.samples import SAMPLES, pieces, stacks


def test_threads() -> None:
    (found,) = pieces("pystack", SAMPLES / "pystack" / "threads.txt")
    assert found.process.pid == 789
    other, main = stacks(found).threads
    assert (main.name, main.tid, main.holds_gil) == ("MainThread", 789, True)
    assert [f.function for f in main.frames] == ["<module>", "_start"]
    assert main.frames[1].native
    assert [f.function for f in other.frames] == ["background", "_bootstrap"]
    assert [(v.name, v.text) for v in other.frames[0].variables or ()] == [("lock", "<lock 1>")]
