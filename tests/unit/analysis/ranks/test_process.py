"""When a process counts as stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.synthetic_evidence import At, Stage, in_c10d

SCRIPT = """\
import torch.distributed as dist

dist.barrier()
"""


@pytest.mark.parametrize(
    ("states", "runs", "stopped"),
    [
        ("T", "1", True),  # a recording of one look
        ("SSTTTT", "123333", True),
        ("ttttt", "33333", True),
        ("SSSSt", "12345", False),  # py-spy is dumping it
        ("SSttt", "12333", False),  # a long py-spy dump
        ("StSttttt", "12345678", False),  # several py-spy dumps, one after the other
        ("TTTTT", "12345", False),  # a CPU limiter stops it at each look
        ("TTTTS", "33334", False),  # it was continued
    ],
)
def test_stopped(tmp_path: Path, states: str, runs: str, stopped: bool) -> None:
    stage = Stage(SCRIPT, tmp_path)
    waiting = in_c10d("barrier", ("<module>", 3))
    looks = [
        [At((("<module>", 3),), state=state, runs=int(ran)), waiting] for state, ran in zip(states, runs, strict=True)
    ]
    facts = stage.facts(*looks)
    assert facts.ranks[0].process.stopped is stopped
    assert (facts.ranks[0].stack.phase == "stopped") is stopped
