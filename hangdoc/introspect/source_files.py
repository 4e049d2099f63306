"""Source files of the targets: read through the target's root, parsed in the sandbox, cached as plain data."""

from __future__ import annotations

import errno
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hangdoc.evidence import Stacks
from hangdoc.system import procfs, sandbox
from hangdoc.system.target_files import Content, TargetFiles, content, read_failure, regular

T = TypeVar("T")

MAX_BYTES = 1_000_000  # larger files are generated code
CLOCK_SLACK_S = 2.0  # start times are in clock ticks, file times may come from a file server
MAX_FILES = 200  # of one process in one round
MAX_ROUND_BYTES = 16 << 20  # of files parsed in one round; the next round continues
MAX_CACHED = 1 << 13  # answers, one per line, of a few hundred bytes each
MAX_PARSED_BYTES = 64 << 20  # for one process in total; a megabyte takes up to a second
MAX_CRASHES = 3  # files of one process that crash or overrun the parser; each counts as its share of those bytes
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESRCH)

Identity = tuple[int, int, int, int]  # device, inode, mtime (ns), size


@dataclass(frozen=True, slots=True)
class Lack:
    """A file that is not used, and why."""

    pid: int
    file: str
    why: str


class LruCache(Generic[T]):
    """A mapping of bounded size; drops the least recently used entry."""

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
    """Answers of a parser (`module:function`, run in the sandbox) about files, by key: a line, or 0 for the file.

    `records` turns an answer into (key, item) pairs; it may yield more keys than requested. `older`: skip files that
    changed after their process started. Files without any of `words` are not parsed.
    """

    def __init__(
        self,
        function: str,
        records: Callable[[Any], Iterable[tuple[int, T]]],
        older: bool = True,
        words: tuple[bytes, ...] = (b"",),
        most: int = MAX_CACHED,
    ) -> None:
        self._function, self._records, self._older, self._words = function, records, older, words
        self._kept: LruCache[T | None] = LruCache(most)  # by content and key
        self._bad: LruCache[str] = LruCache(MAX_CACHED)  # why a content cannot be parsed
        self._spent: LruCache[int] = LruCache(MAX_CACHED)  # bytes parsed, by PID and start time

    def ask(
        self, wanted: Mapping[int, Mapping[str, Iterable[int]]]
    ) -> tuple[dict[tuple[int, str, int], T], list[Lack]]:
        """Items by process, file and key, and the files that could not be used; missing files are not reported."""
        contents: dict[int, dict[str, Identity]] = {}
        missing: dict[Identity, tuple[int, str, set[int]]] = {}
        lacks: list[Lack] = []
        for pid, files in wanted.items():
            contents[pid] = self._contents(pid, list(files)[:MAX_FILES], lacks)
            for file, identity in contents[pid].items():
                unknown = {key for key in files[file] if (identity, key) not in self._kept}
                if unknown and identity not in self._bad and not self._is_spent(pid):
                    missing.setdefault(identity, (pid, file, set()))[2].update(unknown)
        self._parse(missing, lacks)
        found: dict[tuple[int, str, int], T] = {}
        for pid, identities in contents.items():
            for file, identity in identities.items():
                reason = self._bad.get(identity) or self._skip_reason(pid, identity, wanted[pid][file])
                if reason is not None and file.endswith(".py"):  # other files may be in another language
                    lacks.append(Lack(pid, file, reason))
                for key in wanted[pid][file]:
                    if (item := self._kept.get((identity, key))) is not None:
                        found[pid, file, key] = item
        return found, lacks

    def _skip_reason(self, pid: int, identity: Identity, keys: Iterable[int]) -> str | None:
        """Why a valid file is not parsed; None: it is."""
        left_out = self._is_spent(pid) and any((identity, key) not in self._kept for key in keys)
        return "could not be parsed (files of its process took too long)" if left_out else None

    def _is_spent(self, pid: int) -> bool:
        return (self._spent.get(_process(pid)) or 0) > MAX_PARSED_BYTES

    def __len__(self) -> int:
        return len(self._kept)

    def _contents(self, pid: int, files: list[str], lacks: list[Lack]) -> dict[str, Identity]:
        """Files that exist, may be read, and have not changed since the process started (if `older`)."""
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
        """Parse these contents in the sandbox and cache the answers."""
        questions: list[tuple[Identity, int, bytes, list[int]]] = []
        left = MAX_ROUND_BYTES
        by_pid: dict[int, list[str]] = {}
        for identity, (pid, file, _) in sorted(missing.items(), key=lambda item: item[0][3]):
            left -= identity[3]
            if left >= 0:
                by_pid.setdefault(pid, []).append(file)
        for pid, files in by_pid.items():
            for file, read in TargetFiles(pid).each(files, lambda fd: content(fd, MAX_BYTES)).items():
                if not isinstance(read, Content):
                    lacks.append(Lack(pid, file, f"could not be read ({read_failure(read)})"))
                elif (identity := _identity(read.status)) in missing:  # else it changed meanwhile
                    questions.append((identity, pid, read.data, sorted(missing[identity][2])))
        asked = []
        for question in sorted(questions, key=lambda question: len(question[2])):  # small files first
            if any(word in question[2] for word in self._words):
                asked.append(question)
            else:
                self._keep(question[0], question[3], ())
        answers = sandbox.run_each(self._function, [(data, keys) for _, _, data, keys in asked]) if asked else []
        for (identity, pid, data, keys), answer in zip(asked, answers, strict=True):
            ended = isinstance(answer, sandbox.Failed) and answer.ended
            cost = MAX_PARSED_BYTES // MAX_CRASHES + 1 if ended else len(data)
            self._spent.put(_process(pid), (self._spent.get(_process(pid)) or 0) + cost)
            if not isinstance(answer, sandbox.Failed):
                self._keep(identity, keys, self._records(answer))
                continue
            if answer.tried:
                self._bad.put(identity, f"could not be parsed ({answer.why})")
            else:
                lacks.append(Lack(pid, missing[identity][1], f"could not be parsed ({answer.why})"))

    def _keep(self, identity: Identity, asked: Iterable[int], items: Iterable[tuple[int, T]]) -> None:
        answers: dict[int, T | None] = {**dict.fromkeys(asked), **dict(items)}
        for key, item in answers.items():
            self._kept.put((identity, key), item)


def own_files(stacks: Stacks) -> dict[str, None]:
    """User files on the stacks, once each."""
    frames = (frame for stack in stacks.threads for frame in stack.frames)
    return {frame.file: None for frame in frames if not frame.native and _is_own(frame.file)}


def _is_own(file: str) -> bool:
    library = "/site-packages/" in file or "/dist-packages/" in file or "/lib/python3" in file
    return not library and not file.startswith("<") and "torchinductor" not in file


def _process(pid: int) -> tuple[int, int]:
    stat = procfs.stat(pid)
    return pid, stat.start_ticks if stat else 0


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
