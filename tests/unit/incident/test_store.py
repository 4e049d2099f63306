from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from msgspec.structs import replace

from hangdoc.incident.record import IncidentRecord, Outcome
from hangdoc.incident.store import RECORD, IncidentStore, Limits, NoPlace, UnknownIncident, default_root
from hangdoc.recording.recorder import read
from hangdoc.system.private_files import replace_file
from tests.support.paths import ROOT
from tests.support.polling import until
from tests.support.stalled_jobs import rounds

AT = "2026-11-24T03:15:12.000+00:00"


def record(number: int = 0, day: int = 24) -> IncidentRecord:
    id = f"202611{day:02d}T031512Z-node17-{number:04x}"
    return IncidentRecord(id, "none", "train.py", "ada", None, 3, ("node17",), AT, AT, AT, None, "unknown")


@pytest.fixture
def store(tmp_path: Path) -> IncidentStore:
    return IncidentStore(tmp_path / "state")


def add(store: IncidentStore, *records: IncidentRecord, padding: int = 0) -> None:
    for one in records:
        store.open(one)
        (store.path(one.id) / "padding").write_bytes(b"\0" * padding)
        store.close(one.id)


def test_a_record_is_read_as_it_was_written(store: IncidentStore) -> None:
    first = replace(record(), outcome=Outcome("recovered", "It did.", AT), verdicts=({"status": "stalled"},))
    store.open(first)
    store.update(replace(first, status="stalled"))
    assert store.list() == (replace(first, status="stalled"),)
    value = json.loads((store.path(first.id) / RECORD).read_text())
    assert value["schema"] == "hangdoc.incident/1"
    assert value["recurrence"] == ""


def test_only_its_owner_reads_it(store: IncidentStore) -> None:
    old = os.umask(0)
    try:
        add(store, record())
    finally:
        os.umask(old)
    folder = store.path(record().id)
    assert [path.stat().st_mode & 0o777 for path in (folder.parent.parent, folder.parent, folder)] == [0o700] * 3
    assert (folder / RECORD).stat().st_mode & 0o777 == 0o600


def test_nothing_follows_a_link(store: IncidentStore, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / RECORD).write_text("precious")
    add(store, record(1))
    store.path(record(2).id).symlink_to(elsewhere)
    (store.path(record(1).id) / RECORD).unlink()
    (store.path(record(1).id) / RECORD).symlink_to(elsewhere / RECORD)
    assert [(entry.id, entry.record) for entry in store.entries()] == [(record(1).id, None)]
    IncidentStore(store.folder.parent, Limits(number=0)).prune()
    assert (elsewhere / RECORD).read_text() == "precious"
    assert not store.path(record(1).id).exists()
    store.path(record(3).id).mkdir()
    (store.path(record(3).id) / RECORD).symlink_to(elsewhere / RECORD)
    with pytest.raises(OSError, match="symbolic link"):
        store.open(record(3))
    assert (elsewhere / RECORD).read_text() == "precious"


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b'{"schema":"hangdoc.incident/1"}', b'{"schema":"other"}', b"[" * 100_000, b"\xff\x00"],
)
def test_a_damaged_record_hides_no_other(store: IncidentStore, content: bytes) -> None:
    add(store, record(1), record(2, 25))
    (store.path(record(2, 25).id) / RECORD).write_bytes(content)
    assert [entry.record and entry.record.id for entry in store.entries()] == [None, record(1).id]
    with pytest.raises(UnknownIncident, match="damaged"):
        store.load(record(2, 25).id)


def test_a_fifo_does_not_block(store: IncidentStore) -> None:
    add(store, record())
    (store.path(record().id) / RECORD).unlink()
    os.mkfifo(store.path(record().id) / RECORD)
    assert store.list() == ()


def test_a_record_under_another_id_is_not_believed(store: IncidentStore) -> None:
    add(store, record(1))
    store.path(record(1).id).rename(store.path(record(2).id))
    assert store.list() == ()


def test_names(store: IncidentStore) -> None:
    with pytest.raises(UnknownIncident, match="no incident in"):
        store.find("latest")
    add(store, record(1, 23), record(1, 24), record(2, 24))
    assert store.find("latest").id == record(2, 24).id
    assert store.find("20261123").id == record(1, 23).id
    assert store.load(record(1, 24).id).id == record(1, 24).id
    with pytest.raises(UnknownIncident, match="2 incidents begin with 20261124"):
        store.find("20261124")
    for name in ("", "2025", "../state"):
        with pytest.raises(UnknownIncident):
            store.find(name)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (Limits(), [5, 4, 3, 2, 1]),
        (Limits(number=2), [5, 4]),
        (Limits(bytes=35_000), [5, 4, 3]),
        (Limits(age_s=2.5 * 86400), [5, 4]),
    ],
)
def test_retention(tmp_path: Path, limits: Limits, kept: list[int]) -> None:
    store = IncidentStore(tmp_path, limits)
    add(store, *(record(day, day) for day in range(1, 6)), padding=10_000)
    now = datetime(2026, 11, 6, 12, tzinfo=timezone.utc)
    would = store.prune(dry_run=True, now=now)
    assert len(store.list()) == 5
    assert {one.id for one in would} == {one.id for one in store.prune(now=now)}
    assert [one.id for one in store.list()] == [record(day, day).id for day in kept]


def test_an_open_incident_is_never_removed(tmp_path: Path) -> None:
    writer, other = IncidentStore(tmp_path), IncidentStore(tmp_path, Limits(number=0))
    writer.open(record(1))
    assert other.prune() == ()
    assert not other.make_room()
    with pytest.raises(BlockingIOError):
        other.open(record(1))
    writer.close(record(1).id)
    assert [one.id for one in other.prune()] == [record(1).id]


def test_a_killed_writer_leaves_an_incident_that_another_takes_over(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.unit.incident.test_store import record\n"
        "from hangdoc.incident.store import IncidentStore\n"
        "s = IncidentStore(Path(sys.argv[1])); s.open(record()); print(1, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    store = IncidentStore(tmp_path)
    assert store.entries()[0].open
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    assert until(store.entries, lambda found: not found[0].open)[0].record == record()
    store.open(record())
    assert store.entries()[0].open


def test_a_full_disk_costs_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = IncidentStore(tmp_path)
    add(store, *(record(number) for number in range(3)), padding=1000)
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(store.entries()) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        store.open(record(9))
    assert store.make_room()
    store.open(record(9))
    assert [one.id for one in store.list()] == [record(9).id, record(2).id, record(1).id]


def test_the_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HANGDOC_STATE", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.delenv("HANGDOC_STATE")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_root() == Path("/var/lib/hangdoc")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_root() == Path("/state/hangdoc")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/ada")
    assert default_root() == Path("/home/ada/.local/state/hangdoc")
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(NoPlace, match="HANGDOC_STATE"):
        default_root()


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_an_incident_appears_with_its_evidence_or_not_at_all(
    store: IncidentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def record_written(path: Path, content: bytes) -> None:
        seen.append(len(store.entries()))
        assert list(path.parent.glob("*.zst"))
        replace_file(path, content)

    monkeypatch.setattr("hangdoc.incident.store.replace_file", record_written)
    store.open(record(), rounds())
    assert seen == [0]
    (entry,) = store.entries()
    store.close(entry.id)
    assert [len(one.snapshots) for one in read(store.path(entry.id))] == [len(rounds())]
    unfinished = store.folder / f".{record(1).id}.new"
    unfinished.mkdir()
    (unfinished / "incident.jsonl.zst").write_bytes(b"cut")
    store.prune()
    assert [path.name for path in store.folder.iterdir()] == [entry.id]


def test_the_age_is_that_of_the_id(tmp_path: Path) -> None:
    """A clock that was wrong, or an impossible date, keeps nothing for ever."""
    store = IncidentStore(tmp_path, Limits(age_s=timedelta(days=1).total_seconds()))
    odd = replace(record(), id="20269924T991512Z-node17-0000")
    add(store, odd)
    assert [one.id for one in store.prune()] == [odd.id]
