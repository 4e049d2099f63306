"""Probe `source` on lines of a training script."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hangdoc.evidence import Frame, Source, Stack, Stacks, Target
from probes import Request, Tier
from probes.source import SourceProbe
from tests.support.synthetic_evidence import ParsedSource

SCRIPT = """\
import torch.distributed as dist

def train(rank, loader, model):
    for epoch in range(3):
        for step, batch in enumerate(loader):
            loss = model(batch)
            if step % 10 == 0:
                dist.all_reduce(loss)
            else:
                pass
        dist.barrier()
    done = 0
    while done < 5:
        done += 1
    try:
        dist.barrier()
    except RuntimeError:
        save()

for index in range(rank, 100, size):
    train(index); dist.barrier()
if __name__ == "__main__":
    train(
        0,
        make_loader(),
    )
"""


@pytest.fixture
def module(tmp_path: Path) -> ParsedSource:
    path = tmp_path / "job.py"
    path.write_text(SCRIPT)
    return ParsedSource.parse(str(path))


@pytest.mark.parametrize(
    ("line", "loops", "branches", "passed", "calls"),
    [
        (6, [4, 5], [], [], ("model",)),
        (8, [4, 5], [(7, "body")], [], ("dist.all_reduce",)),
        (10, [4, 5], [(7, "else")], [], ()),
        (5, [4, 5], [], [], ("enumerate",)),
        (11, [4], [], [5], ("dist.barrier",)),
        (12, [], [], [4], ()),
        (16, [], [(15, "body")], [4, 13], ("dist.barrier",)),
        (18, [], [(15, "except")], [4, 13], ("save",)),
        (21, [20], [], [], ("train", "dist.barrier")),
        (24, [], [(22, "body")], [20], ("make_loader", "train")),
    ],
)
def test_place(
    module: ParsedSource,
    line: int,
    loops: list[int],
    branches: list[tuple[int, str]],
    passed: list[int],
    calls: tuple[str, ...],
) -> None:
    place = module.place(line)
    assert place is not None
    assert [loop.first for loop in place.loops] == loops
    assert [(branch.line, branch.arm) for branch in place.branches] == branches
    assert [loop.first for loop in place.passed] == passed
    assert place.calls == calls


@pytest.mark.parametrize(("line", "counters"), [(5, [("epoch",), ("step",)]), (14, [("done",)]), (21, [()])])
def test_counters_leave_out_a_rank_s_own_slice(
    module: ParsedSource, line: int, counters: list[tuple[str, ...]]
) -> None:
    place = module.place(line)
    assert place is not None
    assert [loop.counters for loop in place.loops] == counters


def test_a_file_changed_after_the_start_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text("import time\ntime.sleep(60)\n")
    process = subprocess.Popen([sys.executable, str(path)])
    try:
        target = Target(process.pid, 0, "here", 3)
        stacks = Stacks((Stack(process.pid, "MainThread", (Frame("<module>", str(path), 2),)),))
        request = Request([target], Tier.LOOK, records={process.pid: {"stacks": stacks}})
        before = SourceProbe().observe(request)
        assert list(before.by_pid[process.pid].places) == [f"{path}:2"]
        os.utime(path, (time.time() + 60, time.time() + 60))
        after = SourceProbe().observe(request)
        assert after.by_pid[process.pid] == Source({})
        assert [lack.rank for lack in after.unseen] == [3]
        assert "changed after the process started" in after.unseen[0].why
    finally:
        process.kill()
        process.wait()


GUARDS = """\
if debug:
    start()

def save(self, epoch):
    if epoch < 0:
        raise ValueError
    if self.rank != 0:
        return
    for name in self.names:
        if name in self.done:
            continue
        if not name:
            break
        write(name)
    finish()
"""


@pytest.mark.parametrize(("line", "guards"), [(2, []), (5, []), (8, []), (14, [7, 10]), (15, [7])])
def test_the_conditions_under_which_a_line_would_not_be_reached(tmp_path: Path, line: int, guards: list[int]) -> None:
    path = tmp_path / "job.py"
    path.write_text(GUARDS)
    place = ParsedSource.parse(str(path)).place(line)
    assert place is not None
    assert [(guard.line, guard.arm) for guard in place.guards] == [(line, "else") for line in guards]
