"""Probe `lockfile`: the lock file that the main thread of a rank waits for, its age and its holders.

There are two kinds of lock file. Kernel locks (flock, fcntl) end with their holder. Existence locks (torch's FileBaton,
filelock's SoftFileLock, a loop around `os.path.exists`) outlive a holder that dies. The holder has the file open, so
the probe searches the descriptors of all processes, at most every two seconds and only while a rank waits.

SQLite locks parts of its files with fcntl, and sleeps between attempts (sqliteDefaultBusyCallback in its main.c): a
writer has a write lock on the database, or with a write-ahead log on the file `-shm` (sqlite.org/lockingv3.html and
walformat.html).
"""

from __future__ import annotations

import os
import platform
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from hangdoc.evidence import Frame, Process, Source, Stack, Stacks, Target
from hangdoc.evidence.locks import LockFile, LockFileHolder
from hangdoc.introspect.frames import main_stack
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.module_globals import Places
from hangdoc.introspect.objects import Objects, within
from hangdoc.redaction.text import redact
from hangdoc.system import procfs
from hangdoc.system.command_text import command_text
from hangdoc.system.mounts import LOCAL, mounts
from hangdoc.system.syscalls import current_call
from hangdoc.system.target_files import TargetFiles, content
from probes import Observation, Request, Tier

_HOLDERS_CACHE_S = 2.0
_MAX_BYTES = 1024  # of a lock file: a PID and a host name
_MAX_LIKELY = 16  # descriptors of one process with the file's name
_MAX_PATH = 250
_MAX_COMMAND = 80  # characters of a holder's command line
_CALLS = {"x86_64": {73: "flock", 72: "fcntl"}, "aarch64": {32: "flock", 25: "fcntl"}}.get(platform.machine(), {})
_SLEEPS = re.compile(r"flock|locks_|fcntl|do_lock|posix_lock")  # kernel functions
# Lines of fdinfo that show a lock of such a kind as held; "->" marks a wait.
_KERNEL_LOCKS = {
    "kernel": re.compile(r"lock:(?!.*->)"),
    "database": re.compile(r"lock:(?!.*->).*\sPOSIX\s+\S+\s+WRITE\s"),
}
_BATON = re.compile(r"torch/utils/file_baton\.py$")
_FILELOCK = re.compile(r"/filelock/(?:\w+/)*\w+\.py$")  # since 4.0, in folders: _core/_acquire.py
_TESTS = re.compile(r"\b(exists|isfile|is_file|lexists)\(")
_SQLITE = b"SQLite format 3\0"  # first bytes of a database
_SHARED_INDEX = "-shm"  # ends the name of the file beside a database with a write-ahead log
_MAX_OPEN = 256  # descriptors of one process
_MAX_DATABASES = 4  # of one process
_NO_DATABASES = ("/dev/", "/proc/", "/sys/")
_LOCKISH = re.compile(r"lock|lck|baton|mutex|\.pid$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Wait:
    """A wait for a lock file: candidate paths, likeliest first. Of several databases it is the one that is locked."""

    kind: str
    paths: tuple[str, ...]


@dataclass(slots=True)
class LockFileProbe:
    """See the module; satisfies `probes.Probe`."""

    name: str = "lockfile"
    scope: str = "rank"
    tier: Tier = Tier.LOOK
    needs: str = "ptrace"
    record: type = LockFile
    order: int = 41
    steady: bool = False
    _places: Places = field(default_factory=Places)
    _kept: dict[int, tuple[Any, _Wait]] = field(default_factory=dict)  # by PID, until its variables or files change
    _holders: dict[tuple[int, int], tuple[float, tuple[int, ...], int]] = field(default_factory=dict)

    def observe(self, request: Request) -> Observation:
        found: dict[int, LockFile] = {}
        watched = {target.pid for target in request.targets}
        self._kept = {pid: kept for pid, kept in self._kept.items() if pid in watched}
        for target in request.targets:
            records = (request.records or {}).get(target.pid, {})
            stacks = records.get("stacks")
            if isinstance(stacks, Stacks) and stacks.threads:
                found[target.pid] = LockFile()
                with suppress(Unreadable, OSError):  # the process has ended, or the file was released
                    wait = self._wait(target, stacks, records)
                    if wait is not None:
                        found[target.pid] = self._look(target, wait)
        return Observation(found)

    def _wait(self, target: Target, stacks: Stacks, records: Mapping[str, Any]) -> _Wait | None:
        main = main_stack(stacks.threads)
        kernel = _in_kernel(target.pid, records.get("cpu"), main.tid)
        if kernel:
            return _Wait("kernel", (kernel,))
        kind, frames, hops = _waiting_frames(main, records.get("source"))
        if not kind:
            if not _naps(target.pid, main, records.get("source")):
                return None
            files = _open_files(target.pid)
            return self._keep(target, "database", files, lambda: _databases(target.pid, files))
        candidates = tuple(_path_objects(frames, hops))
        texts = (text for address, far in candidates for text in self._strings(target, address, far))
        return self._keep(target, kind, candidates, lambda: filter(_is_path, texts))

    def _keep(self, target: Target, kind: str, origin: object, paths: Callable[[], Iterable[str]]) -> _Wait:
        """The wait, whose paths are looked for anew only if what they come from has changed."""
        key = (target.start_ticks, kind, origin)
        if target.pid not in self._kept or self._kept[target.pid][0] != key:
            self._kept[target.pid] = key, _Wait(kind, tuple(dict.fromkeys(paths())))
        return self._kept[target.pid][1]

    def _look(self, target: Target, wait: _Wait) -> LockFile:
        found = TargetFiles(target.pid).each(wait.paths, os.fstat)
        for path, made in found.items():
            if not isinstance(made, OSError) and stat.S_ISREG(made.st_mode):
                with suppress(OSError):
                    file = self._lock_file(target, wait.kind, path, made)
                    if file.holders or wait.kind != "database":
                        return file
        return LockFile()

    def _lock_file(self, target: Target, kind: str, path: str, made: os.stat_result) -> LockFile:
        written = max(made.st_mtime, made.st_ctime)
        process = procfs.stat(target.pid)
        started = time.time() - procfs.age_s(process.start_ticks) if process else written
        local = _is_local(target.pid, path)
        pid, host = _named(target.pid, path) if local and kind not in _KERNEL_LOCKS else (None, None)
        here = host in (None, os.uname().nodename)
        holders, hidden = self._find_holders(path, made, _KERNEL_LOCKS.get(kind))
        return LockFile(
            path=redact("path", path)[:_MAX_PATH],
            kind=kind,
            inode=made.st_ino,
            age_s=max(0.0, time.time() - written),
            before_s=started - written,
            local=local,
            holders=tuple(_holder(pid) for pid in holders if pid != target.pid),
            hidden=hidden,
            named_pid=pid,
            named_host=host,
            named_alive=_is_alive(pid) if pid is not None and here else None,
        )

    def _find_holders(
        self, path: str, made: os.stat_result, lock: re.Pattern[str] | None
    ) -> tuple[tuple[int, ...], int]:
        """As `_search`, not older than `_HOLDERS_CACHE_S`; without those that have died since."""
        key = (made.st_dev, made.st_ino)
        at, pids, hidden = self._holders.get(key, (0.0, (), 0))
        if time.monotonic() - at > _HOLDERS_CACHE_S:
            pids, hidden = _search(os.path.basename(path), made, lock)
            now = time.monotonic()
            self._holders = {one: kept for one, kept in self._holders.items() if now - kept[0] <= _HOLDERS_CACHE_S}
            self._holders[key] = (now, pids, hidden)
        return tuple(pid for pid in pids if _is_alive(pid)), hidden

    def _strings(self, target: Target, address: int, hops: int) -> Iterator[str]:
        """Strings at most `hops` attributes away from an object."""
        memory = Memory(target.pid)
        place = self._places.find((target.pid, target.start_ticks), memory)
        if place is not None:
            objects = Objects(memory, place.interpreter.version)
            for level in within(memory, address, hops):
                yield from (seen.text for seen in objects.describe(level).values() if seen.kind == "str" and seen.text)


# --- waits ----------------------------------------------------------------------------------------


def _in_kernel(pid: int, process: object, tid: int) -> str | None:
    """The file that a thread blocked in flock(2) or fcntl(2) wants to lock."""
    threads = process.threads if isinstance(process, Process) else ()
    thread = next((thread for thread in threads if thread.tid == tid), None)
    if thread is None or thread.syscall_fd is None or not _SLEEPS.match(thread.wchan or ""):
        return None
    return procfs.link(f"/proc/{pid}/fd/{thread.syscall_fd}") if thread.syscall in _CALLS else None


def _naps(pid: int, main: Stack, source: object) -> bool:
    """A thread sleeps for some time in native code: its line of Python calls no `sleep`."""
    call = current_call(pid, main.tid)
    frame = next((frame for frame in main.frames if not frame.native), None)
    if call is None or call.kind != "time" or frame is None:
        return False
    place = source.places.get(f"{frame.file}:{frame.line}") if isinstance(source, Source) else None
    return place is None or not any(name.endswith(("sleep", "wait")) for name in place.calls)


def _open_files(pid: int) -> tuple[str, ...]:
    """Paths of what a process has open, sorted; without what cannot be a database."""
    links = {procfs.link(f"/proc/{pid}/fd/{fd}") or "" for fd in procfs.numbers(f"/proc/{pid}/fd", _MAX_OPEN)}
    return tuple(sorted(link for link in links if link.startswith("/") and not link.startswith(_NO_DATABASES)))


def _databases(pid: int, links: Sequence[str]) -> Iterator[str]:
    """The SQLite files among the open files of a process, those with the locks of a write-ahead log first."""
    yield from islice((link for link in links if link.endswith(_SHARED_INDEX)), _MAX_DATABASES)
    heads = TargetFiles(pid).each(links, lambda fd: content(fd, len(_SQLITE)).data)
    yield from islice((path for path, head in heads.items() if head == _SQLITE), _MAX_DATABASES)


def _waiting_frames(main: Stack, source: object) -> tuple[str, list[Frame], int]:
    """Kind of wait, the frames with variables that lead to the path, and the most attributes in between."""
    frames = [frame for frame in main.frames if not frame.native]
    if frames and _BATON.search(frames[0].file):
        return "baton", frames[:1], 1
    inner = [frame for frame in frames[:12] if _FILELOCK.search(frame.file)]
    if inner and frames.index(inner[0]) <= 3:
        return "filelock", inner[:4], 2
    own = next((frame for frame in frames[:2] if "/lib/python3" not in frame.file), None)
    place = source.places.get(f"{own.file}:{own.line}") if own and isinstance(source, Source) else None
    loop = place.loops[-1] if place and place.loops else None
    if own and place and loop and loop.header.startswith("while"):
        asks = _TESTS.search(loop.header) and not re.search(r"\bnot\b", loop.header)
        tries = any(name.endswith(("sleep", "wait")) for name in place.calls) and "os.open" in place.around
        if asks or tries:
            return "loop", [own], 2  # self, its Path, its text
    return "", [], 0


def _path_objects(frames: Sequence[Frame], hops: int) -> Iterator[tuple[int, int]]:
    """Objects that may hold the path, and the most attributes in between: strings, then paths, then `self`."""
    named = {v.name: v for frame in reversed(frames) for v in frame.variables or () if v.address}
    for variable in named.values():
        if variable.kind == "str" and variable.length != 0:
            yield variable.address or 0, 0
    for variable in named.values():
        if re.match(r"<\w*Path at ", variable.text):
            yield variable.address or 0, 1
    if "self" in named:
        yield named["self"].address or 0, hops


def _is_path(text: str) -> bool:
    return len(text) <= _MAX_PATH and text.isprintable() and _LOCKISH.search(os.path.basename(text)) is not None


# --- holders --------------------------------------------------------------------------------------


def _search(name: str, made: os.stat_result, lock: re.Pattern[str] | None) -> tuple[tuple[int, ...], int]:
    """PIDs that hold the file (or such a lock on it), and the number of processes that could not be checked.

    They are looked at again once all others were: a holder keeps the file, whoever reads it once (another hangdoc
    does) has closed it by then.
    """
    found: dict[int, list[int]] = {}  # descriptors of the file by PID
    hidden = 0
    for pid in procfs.numbers("/proc"):
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")
        except FileNotFoundError:
            continue
        except OSError:
            hidden += _owner(pid) == made.st_uid
            continue
        links = ((fd, procfs.link(f"/proc/{pid}/fd/{fd}") or "") for fd in descriptors)
        likely = [int(fd) for fd, link in links if link.endswith(name)][:_MAX_LIKELY]
        if held := _held(pid, likely, made, lock):
            found[pid] = held
    return tuple(pid for pid, held in found.items() if _held(pid, held, made, lock)), hidden


def _held(pid: int, likely: Sequence[int], made: os.stat_result, lock: re.Pattern[str] | None) -> list[int]:
    """Those among the descriptors of a process that hold the file, or such a lock on it."""
    there = TargetFiles(pid).each(likely, os.fstat) if likely else {}
    return [fd for fd, status in there.items() if _same(status, made) and _holds(pid, fd, lock)]


def _same(there: os.stat_result | OSError, made: os.stat_result) -> bool:
    return not isinstance(there, OSError) and (there.st_dev, there.st_ino) == (made.st_dev, made.st_ino)


def _holds(pid: int, descriptor: int, lock: re.Pattern[str] | None) -> bool:
    """True if the file is open there, or for a kernel lock: such a lock is held. Source: proc_pid_fdinfo(5).

    An O_PATH descriptor does not open the file: another hangdoc has one while it looks at the file.
    """
    lines = (procfs.text(f"/proc/{pid}/fdinfo/{descriptor}") or "").splitlines()
    if lock is not None:
        return any(lock.match(line) for line in lines)
    flags = next((int(line.split()[-1], 8) for line in lines if line.startswith("flags:")), None)
    return flags is not None and not flags & os.O_PATH  # None: closed meanwhile


def _owner(pid: int) -> int | None:
    with suppress(OSError):
        return os.stat(f"/proc/{pid}").st_uid
    return None


def _is_alive(pid: int) -> bool:
    found = procfs.stat(pid)
    return found is not None and found.state not in "ZX"


def _holder(pid: int) -> LockFileHolder:
    return LockFileHolder(pid, command_text(pid, _MAX_COMMAND) or "", sum(_cpu(pid, 2)))


def _cpu(pid: int, deep: int) -> Iterable[float]:
    found = procfs.stat(pid)
    yield found.cpu_s + found.reaped_s if found else 0.0
    for child in procfs.children(pid) if deep else ():
        yield from _cpu(child, deep - 1)


def _named(pid: int, path: str) -> tuple[int | None, str | None]:
    """PID and host written in a lock file: filelock writes both, one per line; most libraries only a PID."""
    words = TargetFiles(pid).read(path, _MAX_BYTES).data.decode(errors="replace").split()
    if not words or not words[0].isdecimal() or not 0 < int(words[0]) < 1 << 23:
        return None, None
    return int(words[0]), words[1] if len(words) > 1 else None


def _is_local(pid: int, path: str) -> bool:
    """True if the path is on a local filesystem."""
    whole = path if os.path.isabs(path) else os.path.join(procfs.link(f"/proc/{pid}/cwd") or "/", path)
    on = [m for m in mounts(pid).values() if whole == m.point or whole.startswith(m.point.rstrip("/") + "/")]
    return bool(on) and max(on, key=lambda mount: len(mount.point)).filesystem in LOCAL


PROBE = LockFileProbe()
