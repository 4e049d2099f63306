"""[actions]: real commands, run only for a certain cause that blames the right side, once, and not too often."""

from __future__ import annotations

import json
import time
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import playbooks
from hangdoc.analysis.facts import schema as load_schema
from hangdoc.daemon.actions import FILE, Actions
from hangdoc.daemon.config import ActionsConfig
from hangdoc.incident.log import Change
from hangdoc.incident.record import IncidentRecord
from hangdoc.recording.verdict_json import to_json
from hangdoc.rules.loader import load
from hangdoc.verdict import Verdict
from tests.support import verdicts

AT = "2026-11-25T03:15:12+00:00"


def incident(number: int = 0, verdict: Verdict | None = None, **changes: Any) -> IncidentRecord:
    verdict = verdict or verdicts.uneven()
    record = IncidentRecord(
        id=f"20261125T031512Z-node17-{number:04x}", job="none", label="train.py", user="ann", slurm_job="4711",
        world_size=3, hosts=("node17",), onset=AT, opened=AT, updated=AT, ended=None, status=verdict.status,
        verdicts=(to_json(verdict),),
    )  # fmt: skip
    return replace(record, **changes)


def uncertain() -> Verdict:
    verdict = verdicts.uneven()
    return changed(verdict, findings=(changed(verdict.findings[0], confidence="medium"),))


class Site:
    """A daemon's actions, and what was said."""

    def __init__(self, root: Path, fault: str | None = "job", now_s: float = 1e9, **config: Any) -> None:
        self.said: list[str] = []
        self.now_s = now_s
        settings = {"command": "echo $HANGDOC_INCIDENT", "kind": "job", "dry_run": False, **config}
        self.actions = Actions(
            ActionsConfig(**settings), root, lambda id: root, {"uneven-batches": fault}.get, self.said.append,
            lambda: self.now_s,
        )  # fmt: skip

    def hears(self, *records: IncidentRecord, kind: str = "opened") -> list[str]:
        """What is said when these incidents are opened."""
        before = len(self.said)
        for record in records:
            self.actions.notify(Change(kind, record))
            self.actions.wait(20)
        return self.said[before:]


def ran(said: list[str]) -> list[str]:
    return [text.removeprefix("the action: ") for text in said if text.startswith("the action: ")]


def test_it_runs_once_with_the_incident_in_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANGDOC_WEBHOOK_TOKEN", "hidden")
    names = ("FAULT", "HOSTS", "JOB", "SLURM_JOB", "USER", "PLAYBOOK", "CONFIDENCE", "WEBHOOK_TOKEN", "NOTE")
    site = Site(tmp_path, command="; ".join(f'echo "{name}=$HANGDOC_{name}"' for name in names))
    (host,) = {culprit.host for culprit in verdicts.uneven().findings[0].culprits}
    said = site.hears(incident())
    assert ran(said)[:-1] == [
        "FAULT=job", f"HOSTS={host}", "JOB=none", "SLURM_JOB=4711", "USER=ann", "PLAYBOOK=uneven-batches",
        "CONFIDENCE=high", "WEBHOOK_TOKEN=",
    ]  # fmt: skip
    assert ran(said)[-1].startswith("NOTE=[job] ")
    assert ran(said)[-1].endswith(f"(uneven-batches, {host}); hangdoc {incident().id}")
    assert site.hears(incident(), kind="updated") == []
    assert ran(Site(tmp_path).hears(incident())) == [], "a restart repeats nothing"


@pytest.mark.parametrize(
    ("record", "config", "fault"),
    [
        (incident(), {"command": ""}, "job"),
        (incident(), {"kind": "node"}, "job"),
        (incident(), {"kind": "job"}, "node"),
        (incident(), {}, None),
        (incident(verdict=uncertain()), {}, "job"),
        (incident(verdict=changed(verdicts.uneven(), status="slow")), {}, "job"),
        (incident(verdict=changed(verdicts.uneven(), findings=())), {}, "job"),
        (incident(verdicts=()), {}, "job"),
    ],
    ids=["off", "the job's fault", "the node's fault", "nobody's", "uncertain", "slow", "no cause", "no verdict"],
)
def test_it_does_not_run(tmp_path: Path, record: IncidentRecord, config: dict[str, Any], fault: str | None) -> None:
    assert Site(tmp_path, fault, **config).hears(record) == []
    assert not (tmp_path / FILE).exists()


def test_a_closed_incident_is_none_and_one_that_becomes_certain_is(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert site.hears(incident(), kind="closed") == []
    assert site.hears(incident(verdict=uncertain())) == []
    assert ran(site.hears(incident(), kind="updated")) == [incident().id]
    assert ran(Site(tmp_path / "b", min_confidence="medium").hears(incident(verdict=uncertain()))) == [incident().id]


def test_a_dry_run_runs_nothing_and_says_what_it_would(tmp_path: Path) -> None:
    site = Site(tmp_path, dry_run=True, command=f"touch {tmp_path}/ran")
    (said,) = site.hears(incident())
    assert f"dry run, this would run now: touch {tmp_path}/ran: [job] " in said
    assert not (tmp_path / "ran").exists()
    assert ActionsConfig().dry_run


def test_the_limit_holds_over_all_daemons_that_share_the_folder(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"shared_dir": str(tmp_path / "shared"), "max_per_hour": 2}
    sites = [Site(tmp_path / str(node), **shared) for node in range(3)]
    said = [site.hears(incident(number)) for number, site in enumerate(sites)]
    assert [ran(one) for one in said] == [[incident(0).id], [incident(1).id], []]
    assert "no action: 2 actions in the last hour, which is the limit: [job]" in said[2][0]
    assert sites[2].hears(incident(2), kind="updated") == [], "said once"
    sites[2].now_s += 3601
    assert ran(sites[2].hears(incident(2), kind="updated")) == [incident(2).id]
    done = json.loads((tmp_path / "shared" / FILE).read_text())
    assert [one["incident"] for one in done] == [incident(number).id for number in range(3)]
    assert (tmp_path / "shared" / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["{}", "[1]", '[{"incident": "x"}]', "[", "\0"])
def test_a_damaged_file_stops_all_actions(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    (said,) = Site(tmp_path).hears(incident())
    assert "no action" in said
    assert (tmp_path / FILE).read_text() == content


def test_a_place_that_cannot_be_used_stops_all_actions(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (said,) = Site(tmp_path, shared_dir=str(tmp_path / "file" / "x")).hears(incident())
    assert "no action" in said


def test_its_deadline_and_its_failure(tmp_path: Path) -> None:
    began_s = time.monotonic()
    said = Site(tmp_path / "a", command="sleep 300 & sleep 300", timeout_s=1.0).hears(incident())
    assert said[-1] == "the action was ended after 1 s; `timeout_s` in [actions] gives it longer"
    assert time.monotonic() - began_s < 30
    assert Site(tmp_path / "b", command="exit 3").hears(incident())[-1] == "the action failed: exit code 3"


def test_values_cannot_run_anything(tmp_path: Path) -> None:
    finding = changed(verdicts.uneven().findings[0], title="$(touch pwned); `touch pwned`\n\x1b[31m")
    record = incident(verdict=changed(verdicts.uneven(), findings=(finding,)), job="'; touch pwned; '")
    said = Site(tmp_path, command=f"cd {tmp_path}; echo $HANGDOC_NOTE $HANGDOC_JOB").hears(record)
    assert len(ran(said)) == 1
    assert not (tmp_path / "pwned").exists()


def test_a_slow_command_holds_up_nobody(tmp_path: Path) -> None:
    site = Site(tmp_path, command="sleep 2; echo done")
    began_s = time.monotonic()
    site.actions.notify(Change("opened", incident()))
    site.actions.notify(Change("updated", incident()))
    assert time.monotonic() - began_s < 1
    site.actions.wait(20)
    assert ran(site.said) == ["done"]


def test_playbooks_that_blame_somebody_are_causes_of_which_one_is_certain() -> None:
    """A node is drained for what only a node can do: never for a class in which jobs are to blame as well."""
    library = load((playbooks.ROOT,), load_schema())
    blamed = {one.id: one.envelope for one in library.playbooks if one.envelope.fault}
    assert {one.fault for one in blamed.values()} == {"job", "node"}
    assert {one.cls for one in blamed.values() if one.fault == "node"} <= {"host_fault", "network"}
    assert all(one.layer != "symptom" for one in blamed.values())
