"""The incidents on disk: a folder for each, with its record (`incident.json`) and a recording of the evidence.

Folders have mode 0700 and files 0600; nothing follows a symbolic link of another user. Whoever writes an incident holds
a lock on its folder (flock(2)), which the kernel releases however the writer ends: an incident without an end and
without a lock is one whose writer has gone.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from hangdoc.errors import HangdocError
from hangdoc.evidence import Snapshot
from hangdoc.incident import step
from hangdoc.incident.record import SCHEMA, IncidentRecord
from hangdoc.recording.codec import decode, encode
from hangdoc.recording.recorder import Recorder
from hangdoc.system.private_files import open_folder, replace_file, sync_folder
from hangdoc.verdict import Verdict

RECORD = "incident.json"
MAX_AGE_S = 90 * 86400.0  # a quarter: time enough for a review of what came back
MAX_INCIDENTS = 500
MAX_BYTES = 2 * 2**30  # of all incidents
INCIDENT_BYTES = 64 * 2**20  # of the recording of one; its oldest parts without a verdict go first
RECORD_BYTES = 16 * 2**20  # a longer record is not read; 16 verdicts on 4,096 ranks take 10 MB
MAX_LISTED = 10_000  # incidents
Merge = Callable[[IncidentRecord, IncidentRecord], IncidentRecord]
LOCK_TRIES, LOCK_RETRY_S = 5, 0.02
_ID = re.compile(r"(\d{8}T\d{6}Z)-[A-Za-z0-9._-]{1,100}-[0-9a-f]{4}")
_UNFINISHED = re.compile(rf"\.{_ID.pattern}\.new")
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def default_root() -> Path:
    """The folder for what hangdoc keeps: $HANGDOC_STATE, or /var/lib/hangdoc for root, or that of the XDG standard.

    Raises NoPlace for a user without a home.
    """
    if state := os.environ.get("HANGDOC_STATE"):
        return Path(state).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/hangdoc")
    if (state := os.environ.get("XDG_STATE_HOME", "")).startswith("/"):
        return Path(state) / "hangdoc"
    try:
        return Path.home() / ".local/state/hangdoc"
    except RuntimeError:
        raise NoPlace("there is no home folder to keep incidents in; set HANGDOC_STATE to a folder") from None


class NoPlace(HangdocError):
    """There is no folder for incidents; the message is one sentence with the remedy."""


class UnknownIncident(HangdocError):
    """No incident has this ID, or several begin like that; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the store keeps; open incidents of a living writer are kept in any case."""

    age_s: float = MAX_AGE_S
    number: int = MAX_INCIDENTS
    bytes: int = MAX_BYTES


@dataclass(frozen=True, slots=True)
class Entry:
    """A folder of the store."""

    id: str
    record: IncidentRecord | None  # None: not readable
    bytes: int  # on disk
    open: bool  # its writer lives


@dataclass(slots=True)
class _Held:
    """An incident that this process writes."""

    lock: int  # descriptor of its folder
    recorder: Recorder


class IncidentStore:
    """The incidents in `root`/incidents. `open`, `update` and `list` raise OSError; `append` never does.

    `say` gets the reason once if a recording stops.
    """

    def __init__(
        self, root: Path, limits: Limits | None = None, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.folder = root.absolute() / "incidents"
        self.limits = limits or Limits()
        self._say = say
        self._held: dict[str, _Held] = {}
        self._name = f"{platform.node()} {os.getpid()} {secrets.token_hex(4)}"  # among the tasks of a step

    def path(self, id: str) -> Path:
        """The folder of an incident."""
        return self.folder / id

    # --- writing ----------------------------------------------------------------------------------

    def open(self, record: IncidentRecord, shots: Sequence[Snapshot] = ()) -> None:
        """Keep an incident with its evidence so far, or take over one whose writer has gone.

        A new folder appears with all of that, or not at all. Raises BlockingIOError if another process writes the
        incident, and other OSErrors.
        """
        self._open(record, shots)

    def join(self, record: IncidentRecord, shots: Sequence[Snapshot]) -> IncidentRecord:
        """Keep evidence in the incident that another task of the step has opened for this job; else in a new one.

        Returns the record of the incident. Raises OSError.
        """
        with step.turn(self.folder, record.step) as turn:
            newest = (entry.record for entry in self.entries() if entry.record)
            joined = next((one for one in newest if _is_shared(one, record)), None)
            known = joined or record
            self._open(known, shots, shared=True)
            turn.enter(known.id, self._name)
        return known

    def leave(self, record: IncidentRecord) -> None:
        """Stop writing an incident of a step. If nobody is left, and it came to nothing, it is removed.

        Raises OSError.
        """
        self.close(record.id)
        with step.turn(self.folder, record.step) as turn:
            known = self._known(record.id)
            empty = known is not None and not known.verdicts and known.ended is None
            if turn.leave(record.id, self._name) and empty:
                self._remove(record.id)

    def _open(self, record: IncidentRecord, shots: Sequence[Snapshot], shared: bool = False) -> None:
        is_new = not self.path(record.id).is_dir()
        name = f".{record.id}.new" if is_new else record.id
        with open_folder(self.folder / name, make=True) as folder:
            lock = os.open(".", _READ, dir_fd=folder)
        host = platform.node() if shared else record.id.partition("-")[2].rpartition("-")[0]
        recorder = Recorder(self.folder / name, host, INCIDENT_BYTES, self._say, durable=True, make_room=self.make_room)
        try:
            _lock(lock, shared)
            for shot in shots:
                recorder.snapshot(shot)
            recorder.sync()
            replace_file(self.folder / name / RECORD, _text(record))
            if is_new:
                with open_folder(self.folder) as root:
                    os.rename(name, record.id, src_dir_fd=root, dst_dir_fd=root)
                    sync_folder(root)
                recorder.directory = self.path(record.id)
        except BaseException:
            recorder.close()
            os.close(lock)
            if is_new:
                with suppress(OSError):
                    self._remove(name)
            raise
        self._held[record.id] = _Held(lock, recorder)

    def append(self, id: str, shots: Sequence[Snapshot], verdict: Verdict | None = None) -> None:
        """Append evidence to the recording of an open incident."""
        if (held := self._held.get(id)) is None:
            return
        for shot in shots:
            held.recorder.snapshot(shot)
        if verdict is not None:
            held.recorder.verdict(verdict)

    def update(self, record: IncidentRecord, merge: Merge = lambda known, new: new) -> None:
        """Replace the record of an open incident, atomically. Raises OSError.

        `merge`: of the record on disk, if other tasks of the step write it as well.
        """
        if not record.step:
            replace_file(self.path(record.id) / RECORD, _text(record))
            return
        with step.turn(self.folder, record.step):
            known = self._known(record.id)
            replace_file(self.path(record.id) / RECORD, _text(merge(known, record) if known else record))

    def close(self, id: str) -> None:
        """Close the recording and release the folder; no effect if it is not open here."""
        if (held := self._held.pop(id, None)) is not None:
            held.recorder.close()
            with suppress(OSError):
                os.close(held.lock)

    def discard(self, id: str) -> None:
        """Remove an incident that was none. Raises OSError."""
        self.close(id)
        self._remove(id)

    # --- reading ----------------------------------------------------------------------------------

    def entries(self) -> tuple[Entry, ...]:
        """Every folder of the store, newest first; none if there is no store. Raises OSError."""
        try:
            with self._opened() as folder:
                names = sorted(filter(_ID.fullmatch, os.listdir(folder)), reverse=True)[:MAX_LISTED]
                found = [entry for name in names if (entry := self._entry(name, folder)) is not None]
        except FileNotFoundError:
            return ()
        return tuple(sorted(found, key=_age, reverse=True))

    def list(self) -> tuple[IncidentRecord, ...]:
        """The readable records, newest first. Raises OSError."""
        return tuple(entry.record for entry in self.entries() if entry.record is not None)

    def find(self, name: str) -> Entry:
        """The incident with this ID, or with an ID that begins so; `latest`: the newest. Raises UnknownIncident."""
        entries = self.entries()
        found = entries[:1] if name == "latest" else [one for one in entries if name and one.id.startswith(name)]
        exact = [one for one in found if one.id == name] or found
        if len(exact) == 1:
            return exact[0]
        if not entries:
            raise UnknownIncident(
                f"no incident in {self.folder}; `hangdoc watch` keeps them there, --dir names another place"
            )
        if not exact:
            raise UnknownIncident(f"no incident {name} in {self.folder}; list them: hangdoc incidents")
        ids = ", ".join(one.id for one in exact[:3])
        raise UnknownIncident(f"{len(exact)} incidents begin with {name}: {ids}; give more of the ID")

    def load(self, name: str) -> IncidentRecord:
        """The record of an incident, see `find`. Raises UnknownIncident."""
        entry = self.find(name)
        if entry.record is None:
            raise UnknownIncident(
                f"the record of incident {entry.id} is damaged; its evidence may be whole: hangdoc report {entry.id}"
            )
        return entry.record

    def files(self, id: str) -> Iterator[tuple[str, bytes]]:
        """Name and content of each file of an incident. Raises OSError."""
        with open_folder(self.path(id)) as folder:
            for name in sorted(_names(folder)):
                yield name, _read(name, folder, INCIDENT_BYTES)

    # --- retention --------------------------------------------------------------------------------

    def prune(self, dry_run: bool = False, now: datetime | None = None) -> tuple[Entry, ...]:
        """Remove what is over the limits, oldest first; returns it. Raises OSError."""
        oldest = (now or datetime.now(timezone.utc)) - timedelta(seconds=self.limits.age_s)
        entries = self.entries()
        kept, used = sum(entry.open for entry in entries), sum(entry.bytes for entry in entries if entry.open)
        removed: list[Entry] = []
        for entry in entries:
            if entry.open:
                continue
            if kept >= self.limits.number or used + entry.bytes > self.limits.bytes or _opened_at(entry.id) < oldest:
                removed.append(entry)
            else:
                kept, used = kept + 1, used + entry.bytes
        if dry_run:
            return tuple(removed)
        self._remove_unfinished()
        return tuple(entry for entry in reversed(removed) if self._remove(entry.id))

    def make_room(self) -> bool:
        """Remove the oldest incident without a living writer; False: there is none. Never raises."""
        with suppress(OSError):
            return any(self._remove(entry.id) for entry in reversed(self.entries()) if not entry.open)
        return False

    def _remove_unfinished(self) -> None:
        """Remove folders whose writer was killed before their evidence was complete, and old locks of steps."""
        with suppress(FileNotFoundError), self._opened() as root:
            step.remove_old(root)
            for name in filter(_UNFINISHED.fullmatch, os.listdir(root)):
                self._remove(name)

    def _remove(self, id: str) -> bool:
        """Remove an incident, unless somebody writes it."""
        with self._opened() as root:
            try:
                folder = os.open(id, _READ, dir_fd=root)
            except FileNotFoundError:
                return False
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for name in os.listdir(folder):
                    os.unlink(name, dir_fd=folder)
            except BlockingIOError:
                return False
            finally:
                os.close(folder)
            os.rmdir(id, dir_fd=root)
        return True

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """A descriptor of the folder that can be listed."""
        with open_folder(self.folder) as path:
            folder = os.open(".", _READ, dir_fd=path)
        try:
            yield folder
        finally:
            os.close(folder)

    def _known(self, id: str) -> IncidentRecord | None:
        """The record on disk; None: there is none that can be read."""
        with self._opened() as folder:
            entry = self._entry(id, folder)
        return entry.record if entry else None

    def _entry(self, id: str, root: int) -> Entry | None:
        try:
            folder = os.open(id, _READ, dir_fd=root)
        except OSError:  # removed meanwhile, or not a folder
            return None
        try:
            sizes = [os.stat(name, dir_fd=folder, follow_symlinks=False).st_size for name in os.listdir(folder)]
            record = _record(id, folder)
            shared = record is not None and bool(record.step)
            return Entry(id, record, sum(sizes), id in self._held or _is_locked(folder, shared))
        except OSError:
            return Entry(id, None, 0, id in self._held)
        finally:
            os.close(folder)


def _age(entry: Entry) -> tuple[str, str]:
    """When it was opened: an ID has the second, its record the millisecond."""
    return entry.id[:16], entry.record.opened if entry.record else ""


def _is_shared(known: IncidentRecord, new: IncidentRecord) -> bool:
    return (known.step, known.job, known.ended) == (new.step, new.job, None)


def _lock(folder: int, shared: bool = False) -> None:
    """Lock a folder; a lister holds the lock for an instant. Raises BlockingIOError and other OSErrors."""
    for tries_left in reversed(range(LOCK_TRIES)):
        try:
            fcntl.flock(folder, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            if not tries_left:
                raise
            time.sleep(LOCK_RETRY_S)
        else:
            return


def _is_locked(folder: int, shared: bool) -> bool:
    """`shared`: its writers, tasks of a step, do not exclude each other."""
    try:
        fcntl.flock(folder, (fcntl.LOCK_EX if shared else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a filesystem without locks: nobody can tell
        return False
    return False


def _record(id: str, folder: int) -> IncidentRecord | None:
    try:
        value = json.loads(_read(RECORD, folder, RECORD_BYTES))
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            return None
        record = decode(IncidentRecord, value)
    except (OSError, ValueError, RecursionError):  # BadRecord is a ValueError
        return None
    times = (record.onset, record.opened, record.updated)
    return record if record.id == id and all(map(parse_time, times)) else None


def _read(name: str, folder: int, most: int) -> bytes:
    """A regular file of at most `most` bytes. Raises OSError."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", name)
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), name)
    return content


def _names(folder: int) -> Sequence[str]:
    listing = os.open(".", _READ, dir_fd=folder)
    try:
        return os.listdir(listing)
    finally:
        os.close(listing)


def _text(record: IncidentRecord) -> bytes:
    value = {"schema": SCHEMA, **encode(record)}
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def parse_time(text: str) -> datetime | None:
    """An instant with its zone; None: malformed."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else None


def _opened_at(id: str) -> datetime:
    """When an incident was opened, by its ID; one with an impossible date is the oldest."""
    try:
        return datetime.strptime(id[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return datetime.min.replace(tzinfo=timezone.utc)
