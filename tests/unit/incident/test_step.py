"""The tasks of a Slurm step and their one incident. Two tasks in one process: flock(2) goes by descriptor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from hangdoc.incident import step
from hangdoc.incident.record import IncidentRecord, Outcome
from hangdoc.incident.step import step_of, turn
from hangdoc.incident.store import IncidentStore
from tests.support.stalled_jobs import rounds

AT = "2026-11-25T03:15:12.000+00:00"
SLURM = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}


def record(number: int = 0, **changes: object) -> IncidentRecord:
    made = IncidentRecord(
        id=f"20261125T031512Z-slurm-4711.0-{number:04x}", job="4711.0", label="train.py", user=None, slurm_job="4711",
        world_size=2, hosts=("n1",), onset=AT, opened=AT, updated=AT, ended=None, status="unknown", step="4711.0",
    )  # fmt: skip
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "4711.0"),
        ({"SLURM_RESTART_COUNT": "2"}, "4711.0.r2"),
        ({"SLURM_RESTART_COUNT": "0"}, "4711.0"),
        ({"SLURM_STEP_NUM_TASKS": "1"}, ""),
        ({"SLURM_STEP_NUM_TASKS": ""}, ""),
        ({"SLURM_STEP_ID": ""}, ""),
        ({"SLURM_JOB_ID": "../../etc"}, ""),
        ({"SLURM_JOB_ID": "7" * 100}, ""),
    ],
)
def test_which_step(changes: dict[str, str], expected: str) -> None:
    assert step_of({**SLURM, **changes}) == expected


def test_the_second_task_joins_and_the_last_one_closes(tmp_path: Path) -> None:
    first, second, reader = (IncidentStore(tmp_path) for _ in range(3))
    assert first.join(record(1), rounds()[:1]).id == record(1).id
    assert second.join(record(2), rounds()[:2]).id == record(1).id
    (entry,) = reader.entries()
    assert entry.open
    assert len(list(reader.path(entry.id).glob("*.zst"))) == 2
    first.update(record(1, verdicts=({"status": "stalled"},)))
    first.leave(record(1))
    assert reader.entries()[0].open
    second.leave(record(1))
    (entry,) = reader.entries()
    assert not entry.open


@pytest.mark.parametrize(
    "changes", [{"job": "another"}, {"step": "4711.1"}, {"step": "4712.0"}], ids=["job", "step", "allocation"]
)
def test_another_job_or_step_has_its_own(tmp_path: Path, changes: dict[str, object]) -> None:
    stores = IncidentStore(tmp_path), IncidentStore(tmp_path)
    stores[0].join(record(1), ())
    assert stores[1].join(record(2, **changes), ()).id == record(2).id


def test_an_incident_that_is_over_is_not_joined(tmp_path: Path) -> None:
    first, second = IncidentStore(tmp_path), IncidentStore(tmp_path)
    first.join(record(1), ())
    first.update(record(1, ended=AT, outcome=Outcome("recovered", "It goes on.", AT)))
    assert second.join(record(2), ()).id == record(2).id


def test_a_suspicion_that_passes_in_one_task_leaves_the_evidence_of_the_other(tmp_path: Path) -> None:
    first, second = IncidentStore(tmp_path), IncidentStore(tmp_path)
    first.join(record(1), rounds()[:1])
    second.join(record(2), rounds()[:1])
    first.leave(record(1))
    assert len(second.entries()) == 1
    second.leave(record(1))
    assert second.entries() == ()


def test_one_task_calls_the_user(tmp_path: Path) -> None:
    with turn(tmp_path, "4711.0") as one:
        assert one.call("a")
        assert not one.call("a")
        assert one.call("b")
        one.enter("a", "me")
        assert one.members("a") == ("me",)
        assert one.leave("a", "me")
        assert not one.call("a")


@pytest.mark.parametrize("content", ["", "[", "[1]", '{"a": 1}', "\0" * 100])
def test_a_damaged_lock_file_counts_as_empty(tmp_path: Path, content: str) -> None:
    (tmp_path / ".step-4711.0.lock").write_text(content)
    with turn(tmp_path, "4711.0") as one:
        assert one.members("a") == ()
        one.enter("a", "me")
        assert one.members("a") == ("me",)


def test_a_stuck_task_is_not_waited_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "LOCK_S", 0.1)
    with turn(tmp_path, "4711.0"), pytest.raises(BlockingIOError), turn(tmp_path, "4711.0"):
        pass


def test_old_locks_are_removed(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path)
    for name in ("1.0", "2.0"):
        with turn(store.folder, name):
            pass
    os.utime(store.folder / ".step-1.0.lock", (0, 0))
    store.prune()
    assert [path.name for path in store.folder.iterdir()] == [".step-2.0.lock"]
