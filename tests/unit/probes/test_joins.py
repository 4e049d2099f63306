"""Probe `joins`: where a script creates the process group, and under which conditions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hangdoc.evidence import Frame, ProcessGroups, Stack, Stacks, Target
from hangdoc.evidence.collectives import JoinCall
from probes import Request, Tier
from probes.joins import JoinsProbe

PID = os.getpid()


def calls(file: Path, exists: bool | None = False) -> tuple[JoinCall, ...] | None:
    os.utime(file, (1, 1))  # older than this process
    stacks = Stacks((Stack(1, "MainThread", (Frame("train", str(file), 1),)),))
    records = {PID: {"stacks": stacks, "groups": ProcessGroups(exists=exists)}}
    found = JoinsProbe().observe(Request([Target(PID, 1, "here", 0)], Tier.LOOK, records=records)).by_pid
    return found[PID].calls if PID in found else None


@pytest.mark.parametrize(
    ("script", "line", "conditions"),
    [
        ("if torch.cuda.is_available():\n    dist.init_process_group()\n", 2, ["torch.cuda.is_available()"]),
        ("def f():\n  if cpu:\n    return\n  init_process_group()\nif big: f()\n", 4, ["big", "not cpu"]),
        ("if one:\n  pass\nelse:\n  dist.init_process_group()\n", 4, ["not one"]),
        ("class A:\n  def f(self):\n    dist.init_process_group()\nA().f()\n", 3, []),
        ("if not dist.is_initialized():\n  dist.init_process_group()\n", 2, []),
        ("if __name__ == '__main__':\n  with x() as y:\n    if y: deepspeed.init_distributed()\n", 3, ["y"]),
        ("try:\n  if a: dist.init_process_group()\nexcept E:\n  pass\n", 2, ["a"]),
        ("x = dist.init_process_group() if a else 1\n", 1, []),
    ],
)
def test_conditions(tmp_path: Path, script: str, line: int, conditions: list[str]) -> None:
    file = tmp_path / "job.py"
    file.write_text(script)
    assert calls(file) == (JoinCall(f"job.py:{line}", tuple(conditions)),)


def test_only_for_ranks_without_a_group(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text("dist.init_process_group()\n")
    assert calls(file, exists=True) is calls(file, exists=None) is None
    file.write_text("# no call of init_process_group\n")
    assert calls(file) == ()
