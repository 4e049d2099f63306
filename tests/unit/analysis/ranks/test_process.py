"""When a process counts as stopped, or as stopped and continued."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc.analysis.facts import Facts
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
    facts = looked_at(tmp_path, states, runs)
    assert facts.ranks[0].process.stopped is stopped
    assert (facts.ranks[0].stack.phase == "stopped") is stopped


@pytest.mark.parametrize(
    ("states", "runs", "share"),
    [
        ("TTTTS", "12345", 0.8),  # a CPU limiter
        ("TTTTT", "33333", 0.0),  # it is stopped
        ("TTS", "123", 0.0),  # too few looks
        ("tttS", "1234", 0.0),  # a debugger
    ],
)
def test_stopped_and_continued(tmp_path: Path, states: str, runs: str, share: float) -> None:
    assert looked_at(tmp_path, states, runs).ranks[0].process.paused_share == share


def looked_at(tmp_path: Path, states: str, runs: str) -> Facts:
    """The facts of two ranks, the first of which was in these states, with so many context switches."""
    stage = Stage(SCRIPT, tmp_path)
    waiting = in_c10d("barrier", ("<module>", 3))
    looks = [
        [At((("<module>", 3),), state=state, runs=int(ran)), waiting] for state, ran in zip(states, runs, strict=True)
    ]
    return stage.facts(*looks)
