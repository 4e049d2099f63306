"""Watches of one Slurm step share an incident: each task of `srun hangdoc watch -- COMMAND` adds its evidence to one.

They find each other in the folder of incidents, which must be on a file system that the nodes share. A lock file makes
them take turns; flock(2) on a file works over NFS, on a folder it does not.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from hangdoc.system.private_files import open_folder

LOCK_S = 3.0  # for the other tasks of the step; then an incident is kept alone
CALLED = "called"  # among the members: one has called the user
MAX_BYTES = 8 << 20  # of a lock file; 10,000 tasks take 0.5 MB
MAX_INCIDENTS = 1_000  # of a step, in its lock file
OLD_S = 7 * 86400.0
_LOCK = re.compile(r"\.step-[A-Za-z0-9_.-]{1,64}\.lock")
_PART = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def step_of(environment: Mapping[str, str]) -> str:
    """The Slurm step that this process is a task of, with the restart of its job: `4711.0.r1`; "": none with peers."""
    job, step, tasks, restart = (
        environment.get(name, "")
        for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_RESTART_COUNT")
    )
    if not (tasks.isascii() and tasks.isdecimal() and int(tasks) > 1):
        return ""
    found = f"{job}.{step}" + (f".r{restart}" if restart not in ("", "0") else "")
    return found if job and step and _PART.fullmatch(found) else ""


class Turn:
    """The turn of one task, and what the tasks know of each other: in the lock file, by incident."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def enter(self, id: str, name: str) -> None:
        """This task writes the incident. Raises OSError."""
        known = self._read()
        known.setdefault(id, []).append(name)
        self._write(known)

    def leave(self, id: str, name: str) -> bool:
        """This task no longer writes it. True: nobody does. Raises OSError."""
        known = self._read()
        left = [one for one in known.get(id, ()) if one != name]
        self._write({**known, id: left})
        return not [one for one in left if one != CALLED]

    def call(self, id: str) -> bool:
        """True for the first task that calls the user for this incident. Raises OSError."""
        known = self._read()
        if CALLED in known.get(id, ()):
            return False
        known.setdefault(id, []).append(CALLED)
        self._write(known)
        return True

    def members(self, id: str) -> tuple[str, ...]:
        """Who writes the incident. Raises OSError."""
        return tuple(one for one in self._read().get(id, ()) if one != CALLED)

    def _read(self) -> dict[str, list[str]]:
        """A file that cannot be read, since its writer was killed, counts as empty."""
        try:
            found = msgspec.json.decode(os.pread(self._descriptor, MAX_BYTES, 0), type=dict[str, list[str]])
        except msgspec.MsgspecError:
            return {}
        return dict(list(found.items())[-MAX_INCIDENTS:])

    def _write(self, known: Mapping[str, list[str]]) -> None:
        content = msgspec.json.encode(known)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, content[:MAX_BYTES], 0)


@contextmanager
def turn(folder: Path, step: str) -> Iterator[Turn]:
    """The turn of this task in the folder of all incidents. Raises OSError if the others take too long."""
    with open_folder(folder, make=True) as opened:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(f".step-{step}.lock", flags, 0o600, dir_fd=opened)
    try:
        until_s = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.02)
        os.utime(descriptor)
        yield Turn(descriptor)
    finally:
        os.close(descriptor)


def remove_old(folder: int) -> None:
    """Remove the locks that nobody has taken for a week, in an open folder. Raises OSError."""
    for name in filter(_LOCK.fullmatch, os.listdir(folder)):
        if time.time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime > OLD_S:
            os.unlink(name, dir_fd=folder)
