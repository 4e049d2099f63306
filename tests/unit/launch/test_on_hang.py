"""The command of `--on-hang`: once per incident, with the incident in its environment, and a deadline."""

from __future__ import annotations

import json
import time
from dataclasses import replace as changed
from pathlib import Path

import pytest
from msgspec.structs import replace

from hangdoc.incident.log import Change
from hangdoc.incident.record import IncidentRecord
from hangdoc.launch.on_hang import OnHang, variables
from hangdoc.recording.verdict_json import to_json
from hangdoc.verdict import Verdict
from tests.support import verdicts

AT = "2026-11-24T03:15:12+00:00"
ID = "20261124T031512Z-node17-3f9a"


def incident(verdict: Verdict | None = None, id: str = ID) -> IncidentRecord:
    verdict = verdict or verdicts.uneven()
    return IncidentRecord(
        id=id, job="none", label="train.py", user=None, slurm_job=None, world_size=3, hosts=("node17",), onset=AT,
        opened=AT, updated=AT, ended=None, status=verdict.status, verdicts=(to_json(verdict),),
    )  # fmt: skip


def run(command: str, folder: Path, *changes: Change, timeout_s: float = 20.0) -> list[str]:
    """What is said when a listener with this command hears of these changes."""
    said: list[str] = []
    hook = OnHang(command, lambda id: folder, said.append, timeout_s)
    for change in changes:
        hook.notify(change)
    hook.wait()
    return said


def test_the_incident_is_in_its_environment(tmp_path: Path) -> None:
    names = ("INCIDENT", "INCIDENT_DIR", "STATUS", "PLAYBOOK", "CLASS", "CONFIDENCE", "SUMMARY", "CULPRITS", "VERDICT")
    command = "; ".join(f'echo "{name}=$HANGDOC_{name}"' for name in names) + '; cat "$HANGDOC_VERDICT" | head -c 1'
    finding = verdicts.uneven().findings[0]
    assert run(command, tmp_path, Change("opened", incident())) == [
        f"on-hang: INCIDENT={ID}",
        f"on-hang: INCIDENT_DIR={tmp_path}",
        "on-hang: STATUS=stalled",
        f"on-hang: PLAYBOOK={finding.playbook}",
        f"on-hang: CLASS={finding.cls}",
        f"on-hang: CONFIDENCE={finding.confidence}",
        f"on-hang: SUMMARY={finding.summary}",
        f"on-hang: CULPRITS=rank 2 on {finding.culprits[0].host}",
        f"on-hang: VERDICT={tmp_path}/verdict.json",
        "on-hang: {",
    ]
    kept = tmp_path / "verdict.json"
    assert json.loads(kept.read_text()) == incident().verdicts[0]
    assert kept.stat().st_mode & 0o777 == 0o600


def test_once_for_each_incident(tmp_path: Path) -> None:
    first, second = incident(), incident(id=ID[:-1] + "b")
    changes = [Change("opened", first), Change("updated", first), Change("closed", first), Change("opened", second)]
    said = run("echo $HANGDOC_INCIDENT", tmp_path, *changes)
    assert sorted(said) == [f"on-hang: {ID}", f"on-hang: {ID[:-1]}b"]


@pytest.mark.parametrize("status", ["slow", "diverging", "unknown"])
def test_only_for_a_hang(tmp_path: Path, status: str) -> None:
    slow = replace(incident(), status=status)
    assert run("echo ran", tmp_path, Change("opened", slow)) == []
    assert run("echo ran", tmp_path, Change("opened", slow), Change("updated", incident())) == ["on-hang: ran"]


def test_a_failure_without_a_cause_is_none(tmp_path: Path) -> None:
    causeless = changed(verdicts.uneven(), status="failed", findings=())
    assert run("echo ran", tmp_path, Change("opened", incident(causeless))) == []
    assert run("echo ran", tmp_path, Change("opened", incident(changed(causeless, status="stalled")))) == [
        "on-hang: ran"
    ]


def test_values_cannot_run_anything(tmp_path: Path) -> None:
    finding = changed(verdicts.uneven().findings[0], summary="$(touch pwned); `touch pwned`\n\0\x1b[31m" + "x" * 9000)
    one = incident(changed(verdicts.uneven(), findings=(finding,)))
    said = run('cd "$HANGDOC_INCIDENT_DIR"; echo $HANGDOC_SUMMARY', tmp_path, Change("opened", one))
    assert len(said) == 1
    assert said[0].startswith("on-hang: $(touch pwned); `touch pwned` ")
    assert not (tmp_path / "pwned").exists()
    assert max(map(len, variables(one, tmp_path, said.append).values())) <= 4096


def test_a_deadline_ends_it_and_all_that_it_started(tmp_path: Path) -> None:
    began_s = time.monotonic()
    said = run("echo begun; sleep 300 & sleep 300", tmp_path, Change("opened", incident()), timeout_s=0.5)
    assert said == ["on-hang: begun", "--on-hang was ended after 500 ms; --on-hang-timeout gives it longer"]
    assert time.monotonic() - began_s < 60


def test_it_runs_in_the_background(tmp_path: Path) -> None:
    said: list[str] = []
    fifo = tmp_path / "fifo"
    hook = OnHang(f"mkfifo {fifo}; cat {fifo}", lambda id: tmp_path, said.append)
    hook.notify(Change("opened", incident()))
    while not fifo.exists():
        time.sleep(0.01)
    assert said == []  # it waits for us, and we are here
    fifo.write_text("done\n")
    hook.wait()
    assert said == ["on-hang: done"]


def test_a_failure_is_reported(tmp_path: Path) -> None:
    assert run("exit 3", tmp_path, Change("opened", incident())) == ["--on-hang failed: exit code 3"]
    assert run("kill -TERM $$", tmp_path, Change("opened", incident())) == ["--on-hang failed: SIGTERM"]


def test_endless_output_is_bounded(tmp_path: Path) -> None:
    said = run("yes | head -c 10000000; echo; exit 0", tmp_path, Change("opened", incident()))
    assert 1000 < len(said) <= 32 << 10


def test_without_a_folder_it_runs_without_a_file(tmp_path: Path) -> None:
    said = run('echo "<$HANGDOC_VERDICT>"', tmp_path / "gone", Change("opened", incident()))
    assert [text.partition(":")[0] for text in said] == [
        f"the verdict for --on-hang could not be written to {tmp_path}/gone",
        "on-hang",
    ]
    assert said[1] == "on-hang: <>"
