"""Lock files that real processes wait for, and their holders."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from hangdoc.evidence import Target
from hangdoc.evidence.locks import LockFile
from hangdoc.system import procfs
from probes import Probe, Request, Tier, lockfile
from probes.cpu import CpuProbe
from probes.lockfile import PROBE, LockFileProbe
from probes.source import SourceProbe
from probes.stacks import StacksProbe
from tests.support.polling import until

BATON = """\
import os, time
class FileBaton:
    def __init__(self, path, wait_seconds=0.1):
        self.lock_file_path, self.wait_seconds, self.fd = path, wait_seconds, None
    def wait(self):
        while os.path.exists(self.lock_file_path):
            time.sleep(self.wait_seconds)
"""
FILELOCK = """\
import os, time
class SoftFileLock:
    def __init__(self, path):
        class Context: pass
        self._context = Context()
        self._context.lock_file = path
    def acquire(self, poll_interval=0.1):
        while True:
            if not os.path.exists(self._context.lock_file):
                return
            time.sleep(poll_interval)
"""
WAITS = {
    "baton": "from torch.utils.file_baton import FileBaton\nsay()\nFileBaton(path).wait()",
    "filelock": "from filelock.soft import SoftFileLock\nsay()\nSoftFileLock(path).acquire()",
    "kernel": "import fcntl\nfd = os.open(path, os.O_RDWR)\nsay()\nfcntl.flock(fd, fcntl.LOCK_EX)",
    "loop": """
class Cache:
    def __init__(self, path):
        self.marker = pathlib.Path(path)
    def fill(self):
        while self.marker.exists():
            time.sleep(0.1)
say()
Cache(path).fill()""",
    "tries": """
def take(marker):
    while True:
        try:
            os.open(marker, os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            time.sleep(0.1)
say()
take(path)""",
}
OTHER_WAITS = {
    "for it to come": "def wait():\n    while not os.path.exists(path + '2'):\n        time.sleep(0.1)\nsay()\nwait()",
    "for nothing": "def train(lock_file):\n    while True:\n        time.sleep(0.1)\nsay()\ntrain(path)",
}
HEAD = "import os, pathlib, sys, time\npath = sys.argv[1]\ndef say():\n    print('ready', flush=True)\n"


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    for name, text in (("torch/utils/file_baton.py", BATON), ("filelock/soft.py", FILELOCK)):
        file = tmp_path / "libraries" / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
        for folder in list(file.parents)[: name.count("/")]:
            (folder / "__init__.py").touch()
    return tmp_path / "libraries"


@contextmanager
def program(code: str, folder: Path, *arguments: object, path: str = "") -> Iterator[Target]:
    script = folder / f"script{len(list(folder.iterdir()))}.py"
    script.write_text(HEAD + code + "\n")
    command = [sys.executable, str(script), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            stat = procfs.stat(process.pid)
            assert stat is not None
            yield Target(process.pid, stat.start_ticks, "here", 0)
        finally:
            process.kill()


class Looker:
    """The probe with those that it builds on."""

    def __init__(self) -> None:
        self.probes = (CpuProbe(), StacksProbe(), SourceProbe(), LockFileProbe())

    def look(self, target: Target) -> LockFile:
        records: dict[int, dict[str, Any]] = {target.pid: {}}
        for probe in self.probes:
            for pid, record in probe.observe(Request([target], Tier.LOOK, records=records)).by_pid.items():
                records[pid][probe.name] = record
        seen = records[target.pid]["lockfile"]
        assert isinstance(seen, LockFile)
        return seen

    def until_found(self, target: Target) -> LockFile:
        return until(lambda: self.look(target), lambda seen: seen.path)


@contextmanager
def held(path: Path, locked: bool) -> Iterator[int]:
    """Another process that has the file open, and locked if so."""
    lines = "import fcntl, sys, time; f = open(sys.argv[1], 'r+')\n" + "fcntl.flock(f, fcntl.LOCK_EX)\n" * locked
    command = [sys.executable, "-c", f"{lines}print('ready', flush=True)\ntime.sleep(60)", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


def test_is_a_probe() -> None:
    assert isinstance(PROBE, Probe)


@pytest.mark.parametrize(
    ("how", "kind"), [(how, how if how in ("baton", "filelock", "kernel") else "loop") for how in WAITS]
)
def test_waited_for_and_had_by(how: str, kind: str, tmp_path: Path, libraries: Path) -> None:
    lock = tmp_path / "features.lock"
    lock.touch()
    with (
        held(lock, locked=True) as holder,
        program(WAITS[how], tmp_path, lock, path=str(libraries)) as target,
    ):
        seen = Looker().until_found(target)
    assert (seen.path, seen.kind, seen.inode) == (str(lock), kind, lock.stat().st_ino)
    assert [one.pid for one in seen.holders] == [holder]
    assert "import fcntl" in seen.holders[0].command
    assert seen.local
    assert seen.hidden == 0
    assert 0 <= seen.age_s < 60


@pytest.mark.parametrize("how", ["baton", "loop"])
def test_a_process_that_looks_at_the_file_does_not_hold_it(how: str, tmp_path: Path, libraries: Path) -> None:
    lock = tmp_path / "watched.lock"
    lock.touch()
    looks = "import os\nplace = os.open(path, os.O_PATH)\nsay()\ntime.sleep(60)"  # as another hangdoc does
    with (
        program(looks, tmp_path, lock),
        program(WAITS[how], tmp_path, lock, path=str(libraries)) as target,
    ):
        seen = Looker().until_found(target)
    assert seen.path == str(lock)
    assert seen.holders == ()


def test_a_process_that_opens_the_file_for_a_moment_does_not_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another hangdoc does, which reads the PID in it."""
    lock = tmp_path / "read.lock"
    lock.touch()
    briefly = os.open(lock, os.O_RDONLY)
    holds = lockfile._holds

    def then_closed(pid: int, descriptor: int, kind: Any) -> bool:
        held = holds(pid, descriptor, kind)
        if (pid, descriptor) == (os.getpid(), briefly):
            assert held
            os.close(briefly)
        return held

    monkeypatch.setattr(lockfile, "_holds", then_closed)
    with held(lock, locked=False) as holder:
        assert lockfile._search(lock.name, lock.stat(), None) == ((holder,), 0)


def test_a_descriptor_closed_meanwhile_holds_nothing(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "read.lock", os.O_RDWR | os.O_CREAT)
    assert lockfile._holds(os.getpid(), descriptor, None)
    os.close(descriptor)
    assert not lockfile._holds(os.getpid(), descriptor, None)


@pytest.mark.parametrize("how", ["baton", "filelock", "loop"])
def test_left_behind(how: str, tmp_path: Path, libraries: Path) -> None:
    lock = tmp_path / "lock"
    done = subprocess.Popen(["true"])
    done.wait()
    lock.write_text(f"{done.pid}\n{os.uname().nodename}\n")
    time.sleep(0.05)
    with program(WAITS[how], tmp_path, lock, path=str(libraries)) as target:
        seen = Looker().until_found(target)
    assert seen.path == str(lock)
    assert seen.holders == ()
    assert (seen.named_pid, seen.named_host, seen.named_alive) == (done.pid, os.uname().nodename, False)
    assert seen.before_s > -1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        pytest.param(str(os.getpid()), (os.getpid(), None, True), id="own"),
        ("4711 another-host", (4711, "another-host", None)),
        ("", (None, None, None)),
        ("\xff\x00 yesterday", (None, None, None)),
        ("99999999999", (None, None, None)),
    ],
    ids=["our own PID", "PID and host", "nothing", "words", "no PID"],
)
def test_pid_and_host_in_the_file(text: str, named: tuple[object, ...], tmp_path: Path) -> None:
    lock = tmp_path / "vocabulary.lck"
    lock.write_text(text)
    with program(WAITS["loop"], tmp_path, lock) as target:
        seen = Looker().until_found(target)
    assert (seen.named_pid, seen.named_host, seen.named_alive) == named


@pytest.mark.parametrize("what", OTHER_WAITS)
def test_other_waits_are_no_lock_file(what: str, tmp_path: Path) -> None:
    lock = tmp_path / "train.lock"
    lock.touch()
    with program(OTHER_WAITS[what], tmp_path, lock) as target:
        looker = Looker()
        assert {looker.look(target).path for _ in range(5)} == {None}


DATABASE = """
import sqlite3
base = sqlite3.connect(path, timeout=60, isolation_level=None)
base.execute("pragma journal_mode = {mode}")
base.execute("create table if not exists samples (number)")
{begun}
say()
{then}
time.sleep(60)
"""


def database(mode: str, begun: str = "", then: str = "") -> str:
    def run(statement: str) -> str:
        return f"base.execute({statement!r})" if statement else ""

    return DATABASE.format(mode=mode, begun=run(begun), then=run(then))


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_database_that_another_process_writes(mode: str, tmp_path: Path) -> None:
    """In processes of their own: who closes a file gives up the locks that it has on it."""
    base = tmp_path / "samples.cache"
    with (
        program(database(mode, begun="begin immediate"), tmp_path, base) as writer,
        program(database(mode, then="insert into samples values (1)"), tmp_path, base) as target,
    ):
        seen = Looker().until_found(target)
    assert (seen.path, seen.kind) == (f"{base}-shm" if mode == "wal" else str(base), "database")
    assert [holder.pid for holder in seen.holders] == [writer.pid]
    assert (seen.named_pid, seen.local) == (None, True)


def test_the_holders_of_several_databases_are_searched_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search goes over the descriptors of all processes."""
    opened = "import sqlite3\nothers = [sqlite3.connect(pathlib.Path(path).with_name(f'a{n}.db')) for n in range(2)]\n"
    opened += "for one in others: one.execute('create table if not exists t (n)')\n"
    base = tmp_path / "samples.db"
    code = opened + database("delete", then="insert into samples values (1)")
    with (
        program(database("delete", begun="begin immediate"), tmp_path, base),
        program(code, tmp_path, base) as target,
    ):
        looker = Looker()
        looker.until_found(target)
        search = Mock(return_value=((), 0))
        monkeypatch.setattr(lockfile, "_search", search)
        assert looker.until_found(target).holders  # between two tries, SQLite does not sleep
    search.assert_not_called()


def test_a_sleep_beside_a_database_in_use_waits_for_no_lock(tmp_path: Path) -> None:
    base = tmp_path / "samples.db"
    with (
        program(database("wal"), tmp_path, base) as target,
        program(database("wal", begun="begin immediate"), tmp_path, base),
    ):
        looker = Looker()
        assert {looker.look(target).path for _ in range(5)} == {None}


def test_a_released_file_is_not_reported(tmp_path: Path) -> None:
    lock = tmp_path / "train.lock"
    lock.touch()
    with program(WAITS["loop"] + "; time.sleep(60)", tmp_path, lock) as target:
        looker = Looker()
        looker.until_found(target)
        lock.unlink()
        assert looker.look(target).path is None
