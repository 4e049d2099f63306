"""When a process counts as stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from staged import At, Stage, in_c10d

SCRIPT = """\
import torch.distributed as dist

dist.barrier()
"""


@pytest.mark.parametrize(
    ("states", "stopped"),
    [
        ("T", True),  # a recording of one look
        ("SSTTT", True),
        ("ttttt", True),
        ("SSSSt", False),  # another's py-spy looks at it just now
        ("TTTTS", False),  # it was continued
    ],
)
def test_stopped(tmp_path: Path, states: str, stopped: bool) -> None:
    stage = Stage(SCRIPT, tmp_path)
    waiting = in_c10d("barrier", ("<module>", 3))
    looks = [[At((("<module>", 3),), state=state), waiting] for state in states]
    facts = stage.facts(*looks)
    assert facts.ranks[0].process.stopped is stopped
    assert (facts.ranks[0].stack.phase == "stopped") is stopped
