"""`hangdoc incidents` and `hangdoc report ID`, on a store with one incident of a real job."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from hangdoc.cli import run
from tests.support.stalled_jobs import Kept, job


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    monkeypatch.setenv("HANGDOC_STATE", str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")
    return Kept(tmp_path)


def test_list(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [kept.report("open"), kept.report("over"), kept.report("left")]
    kept.log.recovered("over")
    kept.store.close(ids[2])
    (kept.root / "incidents" / ids[2] / "incident.json").write_text("damaged")
    assert run(["incidents"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["ID", "AGE", "JOB", "STATUS", "PLAYBOOK", "CULPRIT", "OUTCOME"]
    found = {row.split()[0]: " ".join(row.split()[3:]) for row in rows}
    assert found == {
        ids[0]: "reproducer.py stalled uneven-batches rank 2 open",
        ids[1]: "reproducer.py stalled uneven-batches rank 2 recovered",
        ids[2]: "",
    }


def test_an_incident_whose_writer_has_gone_is_lost(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    kept.report()
    kept.log.close()
    assert run(["incidents", "list"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("lost")


def test_json(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    id = kept.report()
    for command in (["incidents", "--json"], ["incidents", "list", "--json"], ["incidents", "show", id, "--json"]):
        assert run(command) == 0
        (line,) = capsys.readouterr().out.splitlines()
        value = json.loads(line)
        assert (value["schema"], value["id"], value["outcome"]) == ("hangdoc.incident/1", id, None)


def test_show(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    kept.report("before")
    kept.log.recovered("before")
    id = kept.report()
    assert run(["incidents", "show", "latest"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("STALLED")
    for part in (
        "Rank 2 has left the loop",
        f"incident {id}",
        "stalled, uneven-batches, high confidence, rank 2",
        "second stall at save_checkpoint (reproducer.py:68)",
        "none yet: it goes on",
    ):
        assert part in text


def test_a_suspicion_without_a_verdict_is_shown(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    kept.see(3)
    kept.log.close()
    assert run(["incidents", "show", "latest"]) == 0
    text = capsys.readouterr().out
    assert "hangdoc ended before a verdict" in text
    assert "hangdoc report 2" in text


@pytest.mark.parametrize("name", ["latest", "the beginning", "the ID"])
def test_report_takes_an_id(kept: Kept, capsys: pytest.CaptureFixture[str], name: str) -> None:
    id = kept.report()
    names = {"latest": "latest", "the beginning": id[:12], "the ID": id}
    assert run(["report", names[name], "--json"]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["findings"][0]["playbook"] == "uneven-batches"


def test_report_prefers_a_file_of_that_name(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept.report()
    monkeypatch.chdir(tmp_path)
    Path("latest").write_text("\n")
    assert run(["report", "latest"]) == 3


def test_unknown_ids(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["incidents", "show", "latest"]) == 3
    assert "no incident in" in capsys.readouterr().err
    for name in ("latest", "20250101", "no-such-file"):
        assert run(["report", name]) == 64
        assert "does not exist" in capsys.readouterr().err


def test_export(kept: Kept, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    id = kept.report()
    kept.log.recovered(job())
    for name in ("a.zip", "a.tar.zst", "a.html"):
        assert run(["incidents", "export", "latest", str(tmp_path / name)]) == 0
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        archive.extractall(tmp_path / "out")
        assert {Path(name).suffix for name in archive.namelist()} == {".json", ".zst"}
    assert run(["report", str(tmp_path / "out" / id)]) == 2
    assert "uneven-batches" in (tmp_path / "a.html").read_text()
    assert run(["incidents", "export", "latest", str(tmp_path / "a.rar")]) == 64


def test_prune(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [kept.report(str(number)) for number in range(3)]
    kept.log.recovered("0")
    kept.log.recovered("1")
    assert run(["incidents", "prune", "--keep", "2", "--dry-run"]) == 0
    assert capsys.readouterr().out.split() == [ids[0]]
    assert len(kept.store.list()) == 3
    assert run(["incidents", "prune", "--keep", "0", "--older-than", "30d", "--size", "1G"]) == 0
    assert [record.id for record in kept.store.list()] == [ids[2]]  # it is still written
    for wrong in (["--older-than", "soon"], ["--size", "1T"], ["--older-than", "30"]):
        assert run(["incidents", "prune", *wrong]) == 64


def test_another_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Kept(tmp_path / "elsewhere").report()
    assert run(["incidents", "--dir", str(tmp_path / "elsewhere")]) == 0
    assert "uneven-batches" in capsys.readouterr().out


def test_an_option_before_the_subcommand_is_not_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["incidents", "--dir", str(tmp_path), "show", "latest"]) == 64
    assert "after `show`" in capsys.readouterr().err


def test_watch_takes_one_place(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["watch", "--no-incidents", "--incidents", str(tmp_path)]) == 64
    assert "not both" in capsys.readouterr().err
