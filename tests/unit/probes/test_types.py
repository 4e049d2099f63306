"""Probe `types`: the lines that chose bfloat16, in files as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hangdoc.evidence import Frame, Stack, Stacks, Target
from hangdoc.introspect.source_files import MAX_BYTES
from probes import Request, Tier
from probes.types import TypesProbe

TARGET = Target(os.getpid(), 1, "here", 0)


def lines(*files: str) -> tuple[str, ...]:
    """What is told of a rank with frames in these files."""
    stacks = Stacks((Stack(1, "MainThread", tuple(Frame("train", file, 1) for file in files)),))
    request = Request([TARGET], Tier.LOOK, records={TARGET.pid: {"stacks": stacks}})
    found: tuple[str, ...] = TypesProbe().observe(request).by_pid[TARGET.pid].bf16
    return found


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("x = 1\nmodel.to(torch.bfloat16)\n", ["job.py:2: model.to(torch.bfloat16)"]),
        ("model = model.bfloat16()\n", ["job.py:1: model = model.bfloat16()"]),
        ("cfg = {'precision': 'bf16'}\n", ["job.py:1: cfg = {'precision': 'bf16'}"]),
        ("if dtype == torch.bfloat16: pass\nd = torch.bfloat16\n", ["job.py:2: d =", "job.py:1: if"]),
        ("# torch.bfloat16 would be nicer\nname = 'the bf16 run'\n", []),
        ("def broken(:\n    torch.bfloat16\n", []),
        ("d = torch.float32\n", []),
    ],
)  # fmt: skip
def test_lines_that_name_the_type(tmp_path: Path, script: str, told: list[str]) -> None:
    file = tmp_path / "job.py"
    file.write_text(script)
    found = lines(str(file))
    assert len(found) == len(told)
    assert all(line.startswith(wanted) for line, wanted in zip(found, told, strict=True)), found


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file, probe = tmp_path / "job.py", TypesProbe()
    stacks = Stacks((Stack(1, "MainThread", (Frame("train", str(file), 1),)),))
    request = Request([TARGET], Tier.LOOK, records={TARGET.pid: {"stacks": stacks}})
    file.write_text("d = torch.float32\n")
    os.utime(file, (1, 1))
    assert probe.observe(request).by_pid[TARGET.pid].bf16 == ()
    file.write_text("d = torch.bfloat16\n")
    assert probe.observe(request).by_pid[TARGET.pid].bf16 == ("job.py:1: d = torch.bfloat16",)


def test_libraries_missing_and_huge_files_are_left_alone(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "lib.py"
    library.parent.mkdir()
    library.write_text("d = torch.bfloat16\n")
    huge = tmp_path / "huge.py"
    huge.write_text("d = torch.bfloat16\n" + "#" * MAX_BYTES)
    assert lines(str(library), str(huge), str(tmp_path / "nowhere.py"), "<string>") == ()


def test_without_stacks_there_is_no_record() -> None:
    assert TypesProbe().observe(Request([TARGET], Tier.LOOK, records={})).by_pid == {}
