"""What the ranks say of themselves, where the launch is silent."""

from __future__ import annotations

import pytest

from hangdoc.evidence import Groups, Target
from hangdoc.sampler import numbered


def target(pid: int, rank: int | None, size: int | None = None, launcher: str | None = None) -> Target:
    return Target(pid, 1, "here", rank, world_size=size, launcher=launcher)


@pytest.mark.parametrize(
    ("targets", "said", "expected"),
    [
        pytest.param([target(5, None)], {5: Groups((), 3, 8)}, [(3, 8)], id="unknown"),
        pytest.param([target(5, None)], {5: None}, [(None, None)], id="not seen"),
        pytest.param([target(5, None)], {5: Groups()}, [(None, None)], id="says nothing"),
        pytest.param([target(5, 2, 4)], {5: Groups((), 3, 8)}, [(2, 4)], id="the launch gave it"),
        pytest.param([target(5, 2)], {5: Groups((), 2, 8)}, [(2, 8)], id="the size alone is unknown"),
        pytest.param(
            [target(5, 0, 2, "spawn"), target(6, 1, 2, "spawn")],
            {5: Groups((), 1, 2), 6: Groups((), 0, 2)},
            [(1, 2), (0, 2)],
            id="deduced wrongly",
        ),
        pytest.param(
            [target(5, None), target(6, None)],
            {5: Groups((), 0, 1), 6: Groups((), 0, 1)},
            [(None, None), (None, None)],
            id="each in a world of its own",
        ),
    ],
)
def test_numbered(
    targets: list[Target], said: dict[int, Groups | None], expected: list[tuple[int | None, int | None]]
) -> None:
    assert [(t.rank, t.world_size) for t in numbered(targets, said)] == expected
