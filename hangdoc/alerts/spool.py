"""Alerts on disk until their receiver has them, and what each incident has announced so far.

    ROOT/queue/RECEIVER/INCIDENT.REVISION.json    an alert that its receiver has not taken yet
    ROOT/announced/INCIDENT.json                  the newest alert of an incident

Every file is written atomically and synced. An alert is queued first and announced second: after a crash in between,
the same change gets the same revision again, so that receivers recognise it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from hangdoc.alerts.message import Alert
from hangdoc.errors import HangdocError
from hangdoc.evidence.record import Record
from hangdoc.system.private_files import open_folder, read_file, replace_file

MAX_ENTRIES = 1_000  # in the queue of one receiver
MAX_BYTES = 16 * 2**20  # in the queue of one receiver
MAX_FILE = 256 * 2**10  # bytes of one file
MAX_ANNOUNCED = 500  # incidents
MAX_PAST = 16  # sets of labels of one incident

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")
_ENTRY = re.compile(rf"(?P<incident>{_ID.pattern})\.(?P<revision>[0-9]{{6}})\.json")
_ANNOUNCED = re.compile(rf"{_ID.pattern}\.json")


class Past(Record, frozen=True):
    """The alert under earlier labels, which a newer one replaced."""

    labels: Mapping[str, str]
    onset: str
    ended: float  # seconds since the epoch


class Announced(Record, frozen=True):
    """An alert of an incident, and what it replaces."""

    alert: Alert
    at: float  # of the alert, seconds since the epoch
    past: tuple[Past, ...] = ()  # oldest first

    @property
    def is_over(self) -> bool:
        return self.alert.kind == "resolved"


def file_name(incident: str) -> str:
    """The id of an incident as the name of a file; an id of another form as its hash."""
    return incident if _ID.fullmatch(incident) else hashlib.sha256(incident.encode(errors="replace")).hexdigest()[:32]


class Queue:
    """The alerts that wait for one receiver: per incident in order, at most MAX_ENTRIES. Not for several threads.

    Where the disk takes no file, an alert waits in memory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dropped = 0  # alerts that made room, or whose file is damaged
        self._sizes: dict[tuple[str, int], int] = {}  # (incident, revision) -> bytes, oldest first
        self._unsaved: dict[tuple[str, int], Announced] = {}
        for name, size in _files(folder, _ENTRY):
            found = _ENTRY.fullmatch(name)
            assert found is not None
            self._sizes[found["incident"], int(found["revision"])] = size

    def __len__(self) -> int:
        return len(self._sizes)

    def heads(self) -> list[tuple[str, int]]:
        """The oldest waiting alert of each incident."""
        first: dict[str, tuple[str, int]] = {}
        for key in sorted(self._sizes):
            first.setdefault(key[0], key)
        return list(first.values())

    def put(self, announced: Announced) -> None:
        """Keep an alert until `remove`; the same one again replaces itself. Never raises OSError."""
        content = msgspec.json.encode(announced)
        key = (file_name(announced.alert.incident), announced.alert.revision)
        self._sizes.pop(key, None)
        while self._sizes and (len(self) >= MAX_ENTRIES or sum(self._sizes.values()) + len(content) > MAX_BYTES):
            self._drop()
        self._sizes[key] = len(content)
        self._unsaved[key] = announced
        self.save()

    def save(self) -> None:
        """Write what waits in memory, as far as the disk takes it. Never raises OSError."""
        with suppress(OSError):
            for key, announced in tuple(self._unsaved.items()):
                _write(self._path(key), announced)
                del self._unsaved[key]

    def get(self, key: tuple[str, int]) -> Announced | None:
        """A waiting alert; None: its file is gone or damaged, and so is the entry."""
        if key in self._unsaved:
            return self._unsaved[key]
        found = _read(self._path(key))
        if found is None:
            self.dropped += self._path(key).exists()  # else an earlier process of ours has delivered it
            self.remove(key)
        return found

    def remove(self, key: tuple[str, int]) -> None:
        """Forget an alert."""
        self._sizes.pop(key, None)
        if self._unsaved.pop(key, None) is None:
            _remove(self._path(key))

    def _drop(self) -> None:
        """Make room: the oldest alert that a newer one of its incident replaces, else the oldest."""
        keys = list(self._sizes)
        newest = dict(sorted(keys))
        self.remove(next((key for key in keys if key[1] < newest[key[0]]), keys[0]))
        self.dropped += 1

    def _path(self, key: tuple[str, int]) -> Path:
        return self.folder / f"{key[0]}.{key[1]:06d}.json"


class Ledger:
    """What each incident has announced; in memory, and on disk where it can be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: dict[str, Announced] = {}
        self._unsaved: set[str] = set()  # incidents that the disk did not take
        for name, _ in _files(folder, _ANNOUNCED):
            if (one := _read(folder / name)) is not None:
                self._found[one.alert.incident] = one

    def __iter__(self) -> Iterator[Announced]:
        return iter(tuple(self._found.values()))

    def get(self, incident: str) -> Announced | None:
        return self._found.get(incident)

    def put(self, announced: Announced) -> None:
        """Never raises OSError: without a disk, it lasts as long as this process."""
        self._found.pop(announced.alert.incident, None)
        self._found[announced.alert.incident] = announced
        self._unsaved.add(announced.alert.incident)
        self.save()
        while len(self._found) > MAX_ANNOUNCED:
            oldest = next((one for one in self if one.is_over), next(iter(self)))
            self.remove(oldest)

    def save(self) -> None:
        """Write what is in memory only, as far as the disk takes it. Never raises OSError."""
        with suppress(OSError):
            for incident in tuple(self._unsaved):
                _write(self._path(self._found[incident]), self._found[incident])
                self._unsaved.remove(incident)

    def remove(self, announced: Announced) -> None:
        self._found.pop(announced.alert.incident, None)
        self._unsaved.discard(announced.alert.incident)
        _remove(self._path(announced))

    def _path(self, announced: Announced) -> Path:
        return self.folder / f"{file_name(announced.alert.incident)}.json"


def open_spool(root: Path) -> None:
    """Make the folder of a spool with mode 0700. Raises HangdocError if others may write to it."""
    try:
        with open_folder(root, make=True) as folder:
            found = os.fstat(folder)
            if found.st_uid != os.geteuid():
                raise HangdocError(f"{root} belongs to uid {found.st_uid}: name a folder of your own as `state_dir`")
            if stat.S_IMODE(found.st_mode) & 0o077:
                os.chmod(f"/proc/self/fd/{folder}", 0o700)
    except OSError as error:
        raise HangdocError(f"{root}: {error.strerror}; alerts need a folder for what is not delivered yet") from None


def _files(folder: Path, pattern: re.Pattern[str]) -> Iterator[tuple[str, int]]:
    """Name and size of each regular file with such a name, oldest first; others are left alone."""
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if pattern.fullmatch(entry.name) and stat.S_ISREG(status.st_mode):
                    found.append((status.st_mtime_ns, entry.name, status.st_size))
    yield from ((name, size) for _, name, size in sorted(found))


def _read(path: Path) -> Announced | None:
    """The alert in a file; None: there is none, or it is damaged."""
    try:
        return msgspec.json.decode(read_file(path, MAX_FILE), type=Announced)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


def _write(path: Path, announced: Announced) -> None:
    """Raises OSError."""
    with open_folder(path.parent, make=True):
        replace_file(path, msgspec.json.encode(announced))


def _remove(path: Path) -> None:
    with suppress(OSError), open_folder(path.parent) as folder:
        os.unlink(path.name, dir_fd=folder)
