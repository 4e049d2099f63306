from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import replace as changed
from datetime import datetime, timezone, tzinfo
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hangdoc.evidence import End
from hangdoc.incident import log
from hangdoc.incident.log import RETRY_S
from hangdoc.incident.store import IncidentStore, Limits
from hangdoc.recording.recorder import read
from tests.support.judge import judge, reported
from tests.support.stalled_jobs import CULPRIT, Kept, ended, facts_of, job, rounds

KILLED, TOLD, TIMED_OUT, WELL = End(signal=9), End(signal=15), End(code=1), End(code=0)
LONG_AGO = "2001-01-01T00:00:00+00:00"


class Stopped(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Stopped:
        return cls(2026, 11, 28, 8, 46, 53, tzinfo=tz or timezone.utc)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def edit(kept: Kept, id: str, left: Mapping[str, Any]) -> None:
    """Change fields of a stored incident."""
    path = kept.store.path(id) / "incident.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **left}))


def on_disk(kept: Kept, id: str | None = None) -> list[float]:
    """Times of the rounds that are recorded of an incident; by default, of the only one."""
    if id is None:
        (id,) = [entry.id for entry in kept.store.entries()]
    return [shot.at_s for one in read(kept.store.path(id)) for shot in one.snapshots]


def test_the_history_is_on_disk_at_the_first_suspicion(kept: Kept) -> None:
    kept.see(2)
    assert kept.store.entries() == ()
    kept.see(3)
    assert on_disk(kept) == [shot.at_s for shot in rounds()[:3]]
    assert kept.told == []
    kept.see(4)
    assert on_disk(kept) == [shot.at_s for shot in rounds()[:4]]


def test_the_evidence_of_a_suspicion_gives_the_verdict(kept: Kept) -> None:
    """hangdoc is killed before it has reported anything."""
    kept.see(3)
    (entry,) = kept.store.entries()
    (verdict,) = reported(kept.store.path(entry.id)).verdicts
    assert (verdict.findings[0].cls, [one.rank for one in verdict.findings[0].culprits]) == (
        "collective_wait",
        [CULPRIT],
    )


def test_a_suspicion_that_passes_leaves_nothing(kept: Kept) -> None:
    kept.see(3)
    moving = [replace(shot, at_s=rounds()[-1].at_s + gap) for gap, shot in ((1, rounds()[0]), (60, rounds()[1]))]
    kept.show(moving[:1])
    assert len(kept.store.entries()) == 1  # a rank moves for a moment before it dies
    kept.show(moving)
    assert kept.store.entries() == ()
    assert kept.told == []
    assert kept.said == []


def test_an_incident_from_onset_to_outcome(kept: Kept) -> None:
    id = kept.report()
    facts = kept.show([*rounds(), ended(KILLED, KILLED, KILLED)])
    kept.log.ended(job(), facts)
    assert kept.told == ["opened", "closed"]
    (record,) = kept.store.list()
    assert (record.id, record.status, record.job, record.world_size) == (id, "stalled", job(), 3)
    assert record.label == "reproducer.py"
    assert record.onset < record.opened <= record.updated
    assert record.outcome is not None
    assert record.outcome.kind == "killed"
    assert len(record.verdicts) == 1
    assert kept.said == [f"keeping this incident and its evidence in {kept.store.path(id)}"]


@pytest.mark.parametrize("ends", [(KILLED,) * 3, (TOLD,) * 3, (KILLED,), (TIMED_OUT, TIMED_OUT, TOLD)])
def test_the_report_names_the_cause_and_not_the_rank_that_died_first(kept: Kept, ends: tuple[End, ...]) -> None:
    id = kept.report()
    kept.show([*rounds(), ended(*ends)])
    kept.log.close()
    (verdict,) = reported(kept.store.path(id)).verdicts
    assert verdict.findings[0].playbook == "uneven-batches"
    assert [one.rank for one in verdict.findings[0].culprits] == [CULPRIT]


@pytest.mark.parametrize(
    ("ends", "kind", "text"),
    [
        ((KILLED,) * 3, "killed", "Ranks 0-2 were ended by signal 9 (SIGKILL)"),
        ((TOLD,) * 3, "killed_by_launcher", "torchrun ended ranks 0-2: signal 15 (SIGTERM)."),
        ((TOLD, TOLD, KILLED), "killed_by_launcher", "torchrun ended ranks 0-2"),
        ((TIMED_OUT, TOLD, TOLD), "failed", "Rank 0 gave up: exit code 1, as after a collective timeout or"),
        ((WELL,) * 3, "ended", "Every rank exited with code 0."),
        ((End(),) * 3, "lost", "hangdoc could not see how"),
        ((replace(KILLED, oom_kills=1), TOLD, TOLD), "killed", "out-of-memory killer ended rank 0"),
    ],
)
def test_outcomes(kept: Kept, ends: tuple[End, ...], kind: str, text: str) -> None:
    kept.report()
    kept.log.ended(job(), kept.show([*rounds(), ended(*ends)]))
    (record,) = kept.store.list()
    assert record.outcome is not None
    assert (record.outcome.kind, text in record.outcome.text) == (kind, True), record.outcome


def test_a_recovery_is_an_outcome(kept: Kept) -> None:
    kept.report()
    kept.log.recovered(job())
    kept.log.recovered(job())
    assert kept.told == ["opened", "closed"]
    (record,) = kept.store.list()
    assert record.outcome is not None
    assert record.outcome.kind == "recovered"
    assert record.ended == record.outcome.at


def test_a_verdict_becomes_firmer_and_not_weaker(kept: Kept) -> None:
    verdict = judge().verdict(kept.see(4))
    assert verdict.findings[0].confidence == "high"
    unsure = changed(verdict, findings=(changed(verdict.findings[0], confidence="low", playbook="other"),))
    for one, told in ((changed(verdict, findings=()), ["opened"]), (unsure, ["updated"]), (verdict, ["updated"])):
        kept.log.verdict(job(), one)
        assert kept.told == told
        kept.changes.clear()
    for same in (verdict, unsure, changed(verdict, findings=())):
        kept.log.verdict(job(), same)
    assert kept.told == []
    (record,) = kept.store.list()
    assert [len(one["findings"]) for one in record.verdicts] == [0, 1, 1]
    kept.log.verdict(job(), changed(unsure, status="failed"))  # another status is news, however unsure
    assert kept.told == ["updated"]


def test_a_healthy_job_has_no_incident(kept: Kept) -> None:
    verdict = judge().verdict(kept.see(2))
    for status in ("healthy", "unknown"):
        assert kept.log.verdict(job(), changed(verdict, status=status)) is None
    assert kept.store.entries() == ()


def test_a_slow_job_is_an_incident_with_its_history(kept: Kept) -> None:
    kept.log.verdict(job(), changed(judge().verdict(kept.see(2)), status="slow"))
    assert kept.told == ["opened"]
    assert on_disk(kept) == [shot.at_s for shot in rounds()[:2]]


def test_another_hangdoc_continues_an_incident(kept: Kept) -> None:
    id = kept.report()
    kept.log.close()
    assert not kept.store.entries()[0].open
    later = Kept(kept.root)
    assert [record.id for record in later.log.resume()] == [id]
    facts = later.see(4)
    later.log.verdict(job(), judge().verdict(facts))
    assert later.told == []  # it was reported before
    assert [entry.id for entry in later.store.entries()] == [id]
    later.log.recovered(job())
    assert later.told == ["closed"]


def test_an_incident_that_ended_meanwhile_is_closed(kept: Kept) -> None:
    kept.report("gone")
    kept.log.close()
    later = Kept(kept.root)
    later.log.resume()
    later.see(2)
    later.log.settle()
    assert later.told == ["closed"]
    (record,) = later.store.list()
    assert record.outcome is not None
    assert record.outcome.kind == "lost"


def test_a_verdict_may_come_before_a_suspicion(kept: Kept) -> None:
    """A stopped process is a stall for the judge before the job has stood still for long enough."""
    id = kept.report()
    kept.log.close()
    later = Kept(kept.root)
    later.log.resume()
    later.see(2)
    assert later.log.incident(job()) is None
    found = later.log.verdict(job(), judge().verdict(facts_of(4)))
    assert (found.id if found else None, later.told) == (id, [])


def test_an_incident_goes_on_after_a_step_of_the_clock(kept: Kept) -> None:
    id = kept.report()
    kept.log.close()
    edit(kept, id, {"onset": LONG_AGO})
    later = Kept(kept.root)
    later.log.resume()
    later.report()
    assert later.told == []


@pytest.mark.parametrize("left", [{"processes": [["a", 7, 1]]}, {"processes": [], "onset": LONG_AGO}])
def test_a_new_job_with_an_old_name_gets_an_incident_of_its_own(kept: Kept, left: Mapping[str, Any]) -> None:
    id = kept.report()
    kept.log.close()
    edit(kept, id, left)
    later = Kept(kept.root)
    later.log.resume()
    later.report()
    assert later.told == ["closed", "opened"]
    assert len(later.store.list()) == 2


def test_incidents_of_several_jobs_are_apart(kept: Kept) -> None:
    one, other = kept.report("one"), kept.report("other")
    kept.log.recovered("one")
    assert {entry.id: entry.open for entry in kept.store.entries()} == {one: False, other: True}
    assert [record.job for record in kept.store.list() if record.outcome is None] == ["other"]


def test_a_read_only_disk_costs_the_evidence_only(tmp_path: Path) -> None:
    (tmp_path / "incidents").write_text("a file is in the way")
    kept = Kept(tmp_path)
    kept.report()
    kept.log.recovered(job())
    kept.report()
    assert kept.told == ["opened", "closed", "opened"]
    assert len(kept.said) == len(set(kept.said)) > 0
    assert all("the watch goes on without it" in line for line in kept.said)


def test_a_full_disk_costs_the_oldest_incidents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(tmp_path)
    old = [kept.report(f"job {number}") for number in range(4)]
    kept.log.close()
    write, room = os.write, 3

    def full(descriptor: int, data: Any) -> int:
        if len(IncidentStore(tmp_path).entries()) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    later = Kept(tmp_path)
    id = later.report()
    found = [entry.id for entry in later.store.entries()]
    assert id in found
    assert set(old) - set(found) == set(old[:2])
    assert on_disk(later, id) == [shot.at_s for shot in rounds()]
    room = 0
    later.log.recovered(job())  # nothing is left to remove: said, not raised
    assert later.told == ["opened", "closed"]
    assert any("No space left" in line for line in later.said)


def test_incidents_of_one_second_never_share_an_id(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["0001", "0001", "0002", "0001", "0002", "0003"])
    draw = secrets.token_hex
    monkeypatch.setattr(secrets, "token_hex", lambda size: next(drawn) if size == 2 else draw(size))
    monkeypatch.setattr(log, "datetime", Stopped)
    ids = [kept.report(f"job {number}") for number in range(2)]
    kept.log.close()
    ids.append(Kept(kept.root).report())
    assert [id[-4:] for id in ids] == ["0001", "0002", "0003"]
    assert {entry.id for entry in kept.store.entries()} == set(ids)


def test_an_incident_is_stored_once_the_disk_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, write, full = Kept(tmp_path), os.write, True

    def written(descriptor: int, data: Any) -> int:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", written)
    id = kept.report()
    assert kept.store.list() == ()
    full = False
    shots = rounds()
    kept.show([*shots, replace(shots[-1], at_s=shots[-1].at_s + RETRY_S)])
    (record,) = kept.store.list()
    assert (record.id, len(record.verdicts), kept.told) == (id, 1, ["opened"])
    assert len(on_disk(kept, id)) == len(shots) + 1


def test_the_end_of_an_incident_is_stored_once_the_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, write, full = Kept(tmp_path), os.write, False

    def written(descriptor: int, data: Any) -> int:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    id = kept.report()
    monkeypatch.setattr(os, "write", written)
    full = True
    kept.log.recovered(job())
    assert kept.store.load(id).ended is None
    full = False
    shots = rounds()
    kept.show([*shots, replace(shots[-1], at_s=shots[-1].at_s + RETRY_S)])
    assert kept.store.load(id).ended is not None
    assert kept.told == ["opened", "closed"]


def test_the_limits_hold_while_it_runs(tmp_path: Path) -> None:
    kept = Kept(tmp_path, Limits(number=2))
    for number in range(5):
        kept.report(f"job {number}")
        kept.log.recovered(f"job {number}")
    assert len(kept.store.list()) == 2


def test_long_after_a_verdict_one_round_a_minute_is_kept(kept: Kept) -> None:
    kept.report()
    facts, shots = facts_of(4), list(rounds())
    for _ in range(120):
        shots.append(replace(shots[-1], at_s=shots[-1].at_s + 3.0))
        kept.log.observe(job(), facts, tuple(shots[-40:]), shots[-1].at_s)
    written = [at_s for at_s in on_disk(kept) if at_s > rounds()[-1].at_s]
    assert 40 <= len(written) <= 50
    assert max(written) >= shots[-1].at_s - 60.0


def test_long_after_a_slow_verdict_nothing_is_kept_until_the_job_stalls_or_a_rank_dies(kept: Kept) -> None:
    facts, shots = facts_of(2), list(rounds()[:2])
    kept.log.observe(job(), facts, tuple(shots), shots[-1].at_s)
    kept.log.verdict(job(), changed(judge().verdict(facts), status="slow"))
    later = [replace(shots[-1], at_s=shots[-1].at_s + 3.0 * number) for number in range(1, 100)]
    for number in range(1, len(later) + 1):
        kept.log.observe(job(), facts, tuple(later[:number][-40:]), later[number - 1].at_s)
    assert len(on_disk(kept)) < 2 + 45
    assert later[-1].at_s not in on_disk(kept)
    kept.log.observe(job(), facts_of(4), tuple(later[-40:]), later[-1].at_s)  # stalled
    assert {shot.at_s for shot in later[-40:]} <= set(on_disk(kept))


def test_what_comes_back_is_said(kept: Kept) -> None:
    for number in range(3):
        kept.report(f"job {number}")
        kept.log.recovered(f"job {number}")
    newest = max(kept.store.list(), key=lambda record: record.job)
    assert newest.recurrence == "third stall at save_checkpoint (reproducer.py:68) in 1 minute"
