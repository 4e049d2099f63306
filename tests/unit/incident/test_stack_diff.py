from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from hangdoc.evidence import Stacks
from hangdoc.incident.stack_diff import MAX_FRAMES, Side, sides
from hangdoc.recording.recorder import read
from tests.support.incidents import captured, recorded
from tests.support.judge import judge
from tests.support.paths import ROOT


def functions(side: Side, differs: bool) -> list[str]:
    return [line.function for line in side.lines if line.differs is differs and not line.native]


def test_culprit_beside_those_that_wait() -> None:
    culprit, waiting = captured("uneven-batches").sides
    assert (culprit.title, [rank for rank, _ in culprit.members], culprit.op) == ("Culprit", [2], "barrier")
    assert (waiting.title, [rank for rank, _ in waiting.members], waiting.op) == ("Waiting", [0, 1], "all_reduce")
    assert functions(culprit, False) == functions(waiting, False) == ["<module>", "main"]
    assert functions(culprit, True)[:2] == ["main_split", "save_checkpoint"]
    assert functions(waiting, True)[:2] == ["main_split", "train_epoch"]


def test_source_and_variables_that_differ() -> None:
    culprit, waiting = captured("uneven-batches").sides
    here, there = (next(line for line in side.lines if line.function == "main_split") for side in (culprit, waiting))
    assert here.text == "save_checkpoint(model, rank, epoch)"
    assert [(one.name, one.text) for one in here.locals if one.differs] == [
        ("len(mine)", "646"),
        ("len(batches)", "38"),
    ]
    assert [(one.name, one.text) for one in there.locals if one.differs] == [
        ("len(mine)", "647"),
        ("len(batches)", "39"),
    ]
    assert "rank" in [one.name for one in here.locals if not one.differs]  # it must differ


def test_native_frames_of_one_side_only_are_no_difference() -> None:
    culprit, other = captured("dead-link").sides
    assert any(line.native for line in (*culprit.lines, *other.lines))
    assert not all(any(line.native for line in side.lines) for side in (culprit, other))
    assert not any(line.differs for side in (culprit, other) for line in side.lines)


def test_nobody_to_blame() -> None:
    computing, waiting = recorded("rank0_eval").sides  # as many here as there
    assert (computing.title, waiting.title) == ("Some", "Others")
    assert (computing.phase, waiting.phase) == ("compute", "collective")


def test_large_jobs_show_two_places() -> None:
    culprit, waiting = captured("uneven-batches", 64, 40, 2).sides
    assert [rank for rank, _ in culprit.members] == [40]
    assert len(waiting.members) == 63


def test_frames_that_were_not_kept_count_as_left_out() -> None:
    def deep(record: Any) -> Any:
        if not isinstance(record, Stacks):
            return record
        return replace(record, threads=tuple(replace(stack, left_out=99_750) for stack in record.threads))

    shots = read(ROOT / "playbooks/uneven-batches/capture.jsonl.zst")[0].snapshots
    shots = tuple(
        replace(
            shot,
            ranks=tuple(
                replace(rank, records={name: deep(record) for name, record in rank.records.items()})
                for rank in shot.ranks
            ),
        )
        for shot in shots
    )
    for side in sides(judge().facts(shots), ()):
        assert len(side.lines) <= MAX_FRAMES
        assert side.left_out == 99_750
