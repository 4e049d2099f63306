"""What a restarted daemon must know: which incidents are open, and of which job. One daemon for each state folder."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from hangdoc.errors import HangdocError
from hangdoc.evidence import Target
from hangdoc.evidence.record import Record
from hangdoc.system import procfs
from hangdoc.system.private_files import open_folder, replace_file

SCHEMA = "hangdoc.state/1"
NAME, LOCK = "state.json", "lock"
MAX_BYTES = 4 << 20  # of the file
MAX_INCIDENTS = 256  # open at a time; the oldest are dropped
MAX_PROCESSES = 1024  # of one job


class JobProcesses(Record, frozen=True):
    """The processes that identify a job on this boot of this host: PID and start time (clock ticks) of each."""

    boot: str
    processes: tuple[tuple[int, int], ...] = ()  # its launcher and its ranks

    def lives(self) -> bool:
        """True if one of the processes still runs. A PID may come again, but not with its start time."""
        return self.boot == boot_id() and any(_runs(*process) for process in self.processes)


class OpenIncident(Record, frozen=True):
    """An incident that has no outcome yet."""

    id: str
    job: str
    where: JobProcesses


class State(Record, frozen=True):
    """What `state.json` holds."""

    schema: str = SCHEMA
    incidents: tuple[OpenIncident, ...] = ()


def boot_id() -> str:
    """Identifies this boot of this kernel: random(4)."""
    return (procfs.text("/proc/sys/kernel/random/boot_id") or "").strip()


def processes_of(targets: Iterable[Target]) -> JobProcesses:
    """What identifies the job of these ranks."""
    found: dict[tuple[int, int], None] = {}
    for target in targets:
        if target.launcher_pid and target.launcher_pid > 1 and (stat := procfs.stat(target.launcher_pid)):
            found[stat.pid, stat.start_ticks] = None
        if target.pid > 0:
            found[target.pid, target.start_ticks] = None
    return JobProcesses(boot_id(), tuple(found)[:MAX_PROCESSES])


def load(root: Path) -> State:
    """The state of the last daemon, empty if there is none. Raises ValueError for a damaged file, and OSError."""
    with open_folder(root) as folder:
        try:
            descriptor = os.open(NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            return State()
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES >> 20} MiB")
    try:
        state = msgspec.json.decode(data, type=State)
    except msgspec.MsgspecError as error:  # a ValueError in newer versions only
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if state.schema != SCHEMA:
        raise ValueError(f"its schema is {state.schema[:80]!r}, not {SCHEMA}")
    return state


def save(root: Path, state: State) -> None:
    """Replace the state, atomically. Raises OSError."""
    bounded = msgspec.structs.replace(state, incidents=state.incidents[-MAX_INCIDENTS:])
    replace_file(root / NAME, msgspec.json.encode(bounded))


def set_aside(root: Path) -> None:
    """Keep a damaged state beside the next one, for a look at what happened."""
    with suppress(OSError), open_folder(root) as folder:
        os.rename(NAME, f"{NAME}.damaged", src_dir_fd=folder, dst_dir_fd=folder)


class Ledger:
    """The open incidents, on disk after each change. A failed write costs only what a restart would know."""

    def __init__(self, root: Path, say: Callable[[str], None]) -> None:
        """Reads what the last daemon left; a damaged file is set aside."""
        self._root, self._say = root, say
        try:
            self._state = load(root)
        except (ValueError, OSError) as error:
            say(f"{root / NAME} is not readable, open incidents are found by their folders: {error}")
            set_aside(root)
            self._state = State()

    def __len__(self) -> int:
        return len(self._state.incidents)

    def open(self, id: str, job: str, where: JobProcesses) -> None:
        """An incident goes on, of a job with these processes."""
        self._put(id, OpenIncident(id, job, where))

    def close(self, id: str) -> None:
        """An incident is over."""
        self._put(id, None)

    def has_ended(self, id: str) -> bool:
        """True if none of the processes of this incident's job runs any more; False if one does, or none is known."""
        known = next((one for one in self._state.incidents if one.id == id), None)
        return known is not None and not known.where.lives()

    def _put(self, id: str, incident: OpenIncident | None) -> None:
        others = [one for one in self._state.incidents if one.id != id]
        incidents = (*others, *([incident] if incident else []))
        if incidents == self._state.incidents:
            return
        self._state = msgspec.structs.replace(self._state, incidents=incidents)
        try:
            save(self._root, self._state)
        except OSError as error:
            self._say(f"cannot write {self._root / NAME}: {error.strerror}; a restart knows less of open incidents")


class StateLock:
    """Holds the state folder for one daemon; the kernel releases it however the daemon ends."""

    def __init__(self, root: Path) -> None:
        """Raises HangdocError if another daemon holds it, with its PID, or if the folder cannot be used."""
        try:
            with open_folder(root, make=True) as folder:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                self._descriptor = os.open(LOCK, flags, 0o600, dir_fd=folder)
        except OSError as error:
            raise HangdocError(
                f"cannot use the state folder {root}: {error.strerror}; choose another with --state"
            ) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, 20, 0).decode(errors="replace").strip()
            self.close()
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise HangdocError(f"cannot lock the state folder {root}: {error.strerror}") from None
            who = f"with PID {holder} " if holder.isascii() and holder.isdecimal() else ""
            raise HangdocError(
                f"another hangdoc daemon {who}uses {root}; stop it, or choose another folder with --state"
            ) from None
        with suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        os.close(self._descriptor)


def _runs(pid: int, start_ticks: int) -> bool:
    stat = procfs.stat(pid)
    return stat is not None and stat.start_ticks == start_ticks and stat.state not in "ZX"
