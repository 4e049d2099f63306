"""What source files of the targets say: read as their users see them, parsed in a child process, kept as plain data."""

from __future__ import annotations

import errno
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hangdoc.system import procfs, sandbox
from hangdoc.system.target_files import Content, TargetFiles, content, read_failure, regular

T = TypeVar("T")

MAX_BYTES = 1_000_000  # a larger file is generated code
CLOCK_SLACK_S = 2.0  # start times come in clock ticks, those of files from the file's server
MOST_FILES = 200  # of one process in one look
MOST_READ_BYTES = 16 << 20  # of files that are parsed in one look; the next one goes on
MOST_KEPT = 1 << 13  # answers: places of lines, of which each has some hundred bytes
MOST_PARSED_BYTES = 64 << 20  # for one process in all; a megabyte costs up to a second
MOST_BAD = 3  # files of one process that may end or overrun the parser; each counts as its share of those bytes
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESRCH)

Identity = tuple[int, int, int, int]  # device, inode, time of change (ns), size: one content

Asked = tuple[int, str, int]  # process, file, key


@dataclass(frozen=True, slots=True)
class Lack:
    """A file whose source is not used, and why."""

    pid: int
    file: str
    why: str


class Kept(Generic[T]):
    """A mapping of bounded size: what was not asked for the longest goes first."""

    def __init__(self, most: int) -> None:
        self._items: OrderedDict[Hashable, T] = OrderedDict()
        self._most = most

    def __contains__(self, key: Hashable) -> bool:
        return key in self._items

    def get(self, key: Hashable) -> T | None:
        if key in self._items:
            self._items.move_to_end(key)
        return self._items.get(key)

    def put(self, key: Hashable, item: T) -> None:
        self._items[key] = item
        self._items.move_to_end(key)
        while len(self._items) > self._most:
            self._items.popitem(last=False)

    def __len__(self) -> int:
        return len(self._items)


class Sources(Generic[T]):
    """What a confined function says of files, key by key: by line, or by 0 for the whole file.

    `told` makes items of its answer; it may hold more keys than were asked for. Files `older` only: those that
    changed after their process was started do not describe it. Files without any of `words` say nothing.
    """

    def __init__(
        self,
        function: str,
        told: Callable[[Any], Iterable[tuple[int, T]]],
        older: bool = True,
        words: tuple[bytes, ...] = (b"",),
        most: int = MOST_KEPT,
    ) -> None:
        self._function, self._told, self._older, self._words = function, told, older, words
        self._kept: Kept[T | None] = Kept(most)  # by content and key
        self._bad: Kept[str] = Kept(MOST_KEPT)  # contents that cannot be parsed, and why
        self._spent: Kept[int] = Kept(MOST_KEPT)  # bytes that were parsed, by PID and start

    def ask(
        self, wanted: Mapping[int, Mapping[str, Iterable[int]]]
    ) -> tuple[dict[tuple[int, str, int], T], list[Lack]]:
        """By process, file and key; and the files that could not be used. Those that are not there are not said."""
        contents: dict[int, dict[str, Identity]] = {}
        missing: dict[Identity, tuple[int, str, set[int]]] = {}
        lacks: list[Lack] = []
        for pid, files in wanted.items():
            contents[pid] = self._contents(pid, list(files)[:MOST_FILES], lacks)
            for file, identity in contents[pid].items():
                unknown = {key for key in files[file] if (identity, key) not in self._kept}
                if unknown and identity not in self._bad and not self._is_spent(pid):
                    missing.setdefault(identity, (pid, file, set()))[2].update(unknown)
        self._parse(missing, lacks)
        found: dict[tuple[int, str, int], T] = {}
        for pid, identities in contents.items():
            for file, identity in identities.items():
                reason = self._bad.get(identity) or self._spared(pid, identity, wanted[pid][file])
                if reason is not None and file.endswith(".py"):  # what else frames name may be in another language
                    lacks.append(Lack(pid, file, reason))
                for key in wanted[pid][file]:
                    if (item := self._kept.get((identity, key))) is not None:
                        found[pid, file, key] = item
        return found, lacks

    def _spared(self, pid: int, identity: Identity, keys: Iterable[int]) -> str | None:
        """Why a file is not parsed though nothing is wrong with it."""
        left_out = self._is_spent(pid) and any((identity, key) not in self._kept for key in keys)
        return "is not parsed, since the other files of its process took too long" if left_out else None

    def _is_spent(self, pid: int) -> bool:
        return (self._spent.get(_process(pid)) or 0) > MOST_PARSED_BYTES

    def __len__(self) -> int:
        return len(self._kept)

    def _contents(self, pid: int, files: list[str], lacks: list[Lack]) -> dict[str, Identity]:
        """The files that are there, may be read, and are as they were when the process was started."""
        found: dict[str, Identity] = {}
        stat = procfs.stat(pid)
        started = time.time() - procfs.age_s(stat.start_ticks) if stat else 0.0
        for file, status in TargetFiles(pid).each(files, regular).items():
            if isinstance(status, OSError):
                if status.errno not in _GONE:
                    lacks.append(Lack(pid, file, f"could not be read ({read_failure(status)})"))
            elif self._older and status.st_mtime > started + CLOCK_SLACK_S:
                lacks.append(Lack(pid, file, "changed after the process started"))
            elif status.st_size > MAX_BYTES:
                lacks.append(Lack(pid, file, f"has more than {MAX_BYTES} bytes"))
            else:
                found[file] = _identity(status)
        return found

    def _parse(self, missing: Mapping[Identity, tuple[int, str, set[int]]], lacks: list[Lack]) -> None:
        """Keep what the child says of these contents."""
        questions: list[tuple[Identity, int, bytes, list[int]]] = []
        left = MOST_READ_BYTES
        by_pid: dict[int, list[str]] = {}
        for identity, (pid, file, _) in sorted(missing.items(), key=lambda item: item[0][3]):
            left -= identity[3]
            if left >= 0:
                by_pid.setdefault(pid, []).append(file)
        for pid, files in by_pid.items():
            for file, read in TargetFiles(pid).each(files, lambda fd: content(fd, MAX_BYTES)).items():
                if not isinstance(read, Content):
                    lacks.append(Lack(pid, file, f"could not be read ({read_failure(read)})"))
                elif (identity := _identity(read.status)) in missing:  # else it has just changed
                    questions.append((identity, pid, read.data, sorted(missing[identity][2])))
        asked = []
        for question in sorted(questions, key=lambda one: len(one[2])):  # a large one must not delay a small one
            if any(word in question[2] for word in self._words):
                asked.append(question)
            else:
                self._keep(question[0], question[3], ())
        answers = sandbox.run_each(self._function, [(data, keys) for _, _, data, keys in asked]) if asked else []
        for (identity, pid, data, keys), answer in zip(asked, answers, strict=True):
            ended = isinstance(answer, sandbox.Failed) and answer.ended
            cost = MOST_PARSED_BYTES // MOST_BAD + 1 if ended else len(data)
            self._spent.put(_process(pid), (self._spent.get(_process(pid)) or 0) + cost)
            if not isinstance(answer, sandbox.Failed):
                self._keep(identity, keys, self._told(answer))
                continue
            if answer.tried:
                self._bad.put(identity, f"could not be parsed ({answer.why})")
            else:
                lacks.append(Lack(pid, missing[identity][1], f"could not be parsed ({answer.why})"))

    def _keep(self, identity: Identity, asked: Iterable[int], items: Iterable[tuple[int, T]]) -> None:
        told: dict[int, T | None] = {**dict.fromkeys(asked), **dict(items)}
        for key, item in told.items():
            self._kept.put((identity, key), item)


def _process(pid: int) -> tuple[int, int]:
    stat = procfs.stat(pid)
    return pid, stat.start_ticks if stat else 0


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
