"""The state folder: one daemon, and what the next one learns."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hangdoc.daemon.state import (
    LOCK,
    MAX_INCIDENTS,
    NAME,
    JobProcesses,
    Ledger,
    OpenIncident,
    State,
    StateLock,
    boot_id,
    load,
    processes_of,
    save,
)
from hangdoc.errors import HangdocError
from hangdoc.evidence import Target
from hangdoc.system import procfs


def here() -> JobProcesses:
    stat = procfs.stat(os.getpid())
    assert stat is not None
    return JobProcesses(boot_id(), ((stat.pid, stat.start_ticks),))


def test_open_incidents_survive_and_closed_ones_do_not(tmp_path: Path) -> None:
    said: list[str] = []
    ledger = Ledger(tmp_path, said.append)
    ledger.open("one", "job", here())
    ledger.open("two", "other", JobProcesses(boot_id(), ((os.getpid(), 1),)))  # a reused PID
    ledger.open("three", "third", JobProcesses("another boot", here().processes))
    ledger.close("three")
    again = Ledger(tmp_path, said.append)
    assert len(again) == 2
    assert not again.has_ended("one")
    assert again.has_ended("two")
    assert not again.has_ended("three"), "closed: nothing is known of it"
    assert stat.S_IMODE(os.stat(tmp_path / NAME).st_mode) == 0o600
    assert not said


def test_after_a_reboot_every_job_has_ended(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, print)
    ledger.open("one", "job", JobProcesses("another boot", here().processes))
    assert ledger.has_ended("one")


@pytest.mark.parametrize(
    "content", [b"{", b'{"schema":"hangdoc.state/9"}', b'{"incidents":[{"id":1}]}', b"[" * 100_000, b"x" * (5 << 20)]
)
def test_a_damaged_state_is_set_aside(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    said: list[str] = []
    ledger = Ledger(tmp_path, said.append)
    assert len(ledger) == 0
    assert len(said) == 1
    assert (tmp_path / f"{NAME}.damaged").read_bytes() == content
    ledger.open("one", "job", here())
    assert len(load(tmp_path).incidents) == 1


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text('{"schema":"hangdoc.state/1"}')
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    said: list[str] = []
    Ledger(tmp_path, said.append)
    assert len(said) == 1


def test_the_number_of_open_incidents_is_bounded(tmp_path: Path) -> None:
    open_ones = (OpenIncident(f"{number:05d}", "job", here()) for number in range(MAX_INCIDENTS + 5))
    save(tmp_path, State(incidents=tuple(open_ones)))
    kept = load(tmp_path).incidents
    assert len(kept) == MAX_INCIDENTS
    assert kept[-1].id == f"{MAX_INCIDENTS + 4:05d}"


def test_a_folder_that_cannot_be_written_is_said_and_survived(tmp_path: Path) -> None:
    said: list[str] = []
    ledger = Ledger(tmp_path, said.append)
    (tmp_path / NAME).mkdir()
    ledger.open("one", "job", here())
    assert len(ledger) == 1
    assert "cannot write" in said[-1]


def test_the_launcher_and_the_ranks_identify_a_job() -> None:
    parent = procfs.stat(os.getppid())
    assert parent is not None
    found = processes_of([Target(10, 7, "here", 0, launcher_pid=parent.pid), Target(-2, 0, "here", 1)])
    assert found.processes == ((parent.pid, parent.start_ticks), (10, 7))
    assert found.lives()


HOLD = """
import sys
from pathlib import Path
from hangdoc.daemon.state import StateLock
lock = StateLock(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_second_daemon_names_the_first_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "ready\n"
        with pytest.raises(HangdocError, match=f"PID {first.pid} uses {tmp_path}; stop it"):
            StateLock(tmp_path)
        first.kill()
        first.wait()
        StateLock(tmp_path).close()
    assert stat.S_IMODE(os.stat(tmp_path / LOCK).st_mode) == 0o600


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HangdocError, match=r"choose another with --state"):
        StateLock(tmp_path / "file" / "below")
