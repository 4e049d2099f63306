"""Probe `io`: what each rank and its helpers read, write, and wait for.

Bytes from /proc/PID/io; the file a sleeping thread is at from its system call, without asking the file's filesystem
where that could block. Cheap enough for every round: a few small reads for each process.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from hangdoc.evidence import ChildProcess, FileCall, Folder, Helper, Io, Peer, Process, Stacks, Unseen
from hangdoc.system import pipes, procfs
from hangdoc.system.mounts import LOCAL, Mount, mount_of, mounts
from hangdoc.system.permissions import remedy
from hangdoc.system.target_files import TargetFiles, names
from probes import Observation, Request, Tier, _file_calls, _syscalls
from probes._file_calls import NO_DATA

MOST_ENTRIES = 20_000  # of a folder that are counted
_MOST_FILES = 16  # open data files of a rank and its helpers that are kept
_MOST_FOLDERS = 12
_MOST_HELPERS = 64
_AFRESH_S = 10.0  # how long a folder's count, and who holds a pipe, is believed
_PEERS_S = 0.4  # a walk over all descriptors of a host
_TEXT_PATH = re.compile(r"[\"'](/[^\"'\n]{2,200})[\"']")


@dataclass(slots=True)
class IoProbe:
    """Remembers what is costly to ask: the entries of folders, the other ends of pipes."""

    name: str = "io"
    scope: str = "rank"
    tier: Tier = Tier.PULSE
    needs: str = "nothing"
    record: type = Io
    order: int = 10  # after `cpu`, before `stacks`
    steady: bool = False
    _folders: dict[tuple[int, str], tuple[float, Folder | None]] = field(default_factory=dict)
    _peers: dict[tuple[int, str], tuple[float, tuple[Peer, ...]]] = field(default_factory=dict)

    def observe(self, request: Request) -> Observation:
        before = {rank.target.pid: rank.records for rank in getattr(request.previous, "ranks", ())}
        watched, old_s = {target.pid for target in request.targets}, time.monotonic() - _AFRESH_S
        self._folders = {key: kept for key, kept in self._folders.items() if key[0] in watched and kept[0] > old_s}
        records: dict[int, Io] = {}
        unseen: list[Unseen] = []
        for target in request.targets:
            process = (request.records or {}).get(target.pid, {}).get("cpu")
            if not isinstance(process, Process):
                continue
            old = before.get(target.pid, {})
            counted = procfs.io_counters(target.pid)
            if counted is None:
                why = f"the bytes and files of PID {target.pid} may not be read; {remedy(target.pid)}"
                unseen.append(Unseen(self.name, why, target.rank, target.pid, target.host))
                continue
            known = old.get(self.name)
            helpers = tuple(_helpers(process.children, known if isinstance(known, Io) else None))
            calls = tuple(_file_calls.calls(process, helpers))
            files = _files(target.pid, helpers) if request.tier >= Tier.LOOK else ()
            folders = tuple(self._counted(target.pid, files, old.get("stacks"))) if request.tier >= Tier.LOOK else ()
            records[target.pid] = Io(*counted, calls, helpers, files, folders)
        self._find_peers(records, before)
        return Observation(records, unseen=tuple(unseen))

    def _find_peers(self, records: dict[int, Io], before: Mapping[int, Mapping[str, object]]) -> None:
        """Complete the calls on pipes in which a thread has stood since the round before."""
        standing: dict[tuple[int, str], FileCall] = {}
        for pid, record in records.items():
            old = before.get(pid, {}).get(self.name)
            known = {_file_calls.identity(call) for call in old.calls} if isinstance(old, Io) else set()
            for call in record.calls:
                if call.kind in ("fifo", "pipe") and _file_calls.identity(call) in known and call.path != "pipe:[0]":
                    standing[call.tid, call.path] = call
        now = time.monotonic()
        stale = [key for key in standing if now - self._peers.get(key, (0.0, ()))[0] >= _PEERS_S]
        own = {pid for record in records.values() for pid in (helper.pid for helper in record.helpers)} | set(records)
        found = pipes.peers({path: "r" if standing[tid, path].writes else "w" for tid, path in stale}, own)
        self._peers = {key: known for key, known in self._peers.items() if key in standing}
        self._peers.update({(tid, path): (now, found[path]) for tid, path in stale})
        for pid, record in records.items():
            if any((call.tid, call.path) in standing for call in record.calls):
                calls = tuple(
                    replace(call, peers=self._peers[call.tid, call.path][1])
                    if (call.tid, call.path) in standing
                    else call
                    for call in record.calls
                )
                records[pid] = replace(record, calls=calls)

    def _counted(self, pid: int, files: Iterable[str], stacks: object) -> Iterator[Folder]:
        """The folders of open files, and those that variables name, with the number of their entries."""
        named = _named(stacks) if isinstance(stacks, Stacks) else ()
        paths = dict.fromkeys([*(os.path.dirname(file) for file in files), *named])
        table: dict[int, Mount] | None = None
        for path in islice((path for path in paths if not NO_DATA.search(path)), _MOST_FOLDERS):
            at_s, folder = self._folders.get((pid, path), (-_AFRESH_S, None))
            if time.monotonic() - at_s >= _AFRESH_S:
                table = mounts(pid) if table is None else table
                folder = _count(pid, path, table)
                self._folders[pid, path] = (time.monotonic(), folder)
            if folder is not None:
                yield folder


# --- helpers --------------------------------------------------------------------------------------


def _helpers(children: Iterable[ChildProcess], before: Io | None) -> Iterator[Helper]:
    known = {helper.pid: helper for helper in before.helpers} if before else {}
    for child in islice(children, _MOST_HELPERS):
        call = _syscalls.of(child.pid, child.pid) if child.state in "SD" else None
        switches = _switches(child.pid)
        moved = procfs.moved_bytes(child.pid)
        old = known.get(child.pid)
        # Costs a read for each thread: only where the process has not run at all.
        quiet = old is not None and (old.cpu_s, old.moved) == (child.cpu_s, moved)
        sleeps = _sleeps(call)
        locked = quiet and sleeps == "lock" and _locked(child.pid)
        yield Helper(child.pid, child.comm, child.state, child.cpu_s, moved, switches, sleeps, locked)


def _sleeps(call: _syscalls.Call | None) -> str | None:
    if call is None:
        return None
    if call.names or call.kind == "fault":
        return "file"
    if call.kind == "lock":
        return "lock" if call.private else "semaphore"
    return call.kind


def _locked(pid: int) -> bool:
    """Every thread waits for another thread of this process, for ever."""
    tids = procfs.threads(pid)
    calls = [_syscalls.of(pid, tid) for tid in tids]
    return bool(calls) and all(call and call.kind == "lock" and call.private and not call.bounded for call in calls)


def _switches(pid: int) -> int | None:
    status = procfs.read(f"/proc/{pid}/status") or b""
    _, found, tail = status.partition(b"\nvoluntary_ctxt_switches:")
    return int(tail.split()[0]) if found else None


# --- data -----------------------------------------------------------------------------------------


def _files(pid: int, helpers: Iterable[Helper]) -> tuple[str, ...]:
    """Regular files that a rank or a helper has open, which are neither code nor of the system."""
    found: dict[str, None] = {}
    for process in (pid, *(helper.pid for helper in islice(helpers, 8))):
        for fd in procfs.descriptors(process)[:256]:
            path = procfs.link(f"/proc/{process}/fd/{fd}") or ""
            if fd > 2 and path.startswith("/") and not NO_DATA.search(path):
                found[path] = None
    return tuple(islice(found, _MOST_FILES))


def _named(stacks: Stacks) -> Iterator[str]:
    """Absolute paths among the variables of the frames of the user's own code and of the script's module."""
    frames = [f.variables or () for s in stacks.threads for f in s.frames if not NO_DATA.search(f.file + "/")]
    for variable in (v for variables in (*frames, stacks.globals or ()) for v in variables):
        match = _TEXT_PATH.match(variable.text)
        if match is not None and not match[1].endswith("..."):
            yield match[1].rstrip("/") or "/"


def _count(pid: int, path: str, table: Mapping[int, Mount]) -> Folder | None:
    """The folder, where it lies on a filesystem of this machine alone: others might never answer."""
    mount = mount_of(path, table)
    if mount is None or mount.filesystem not in LOCAL:
        return None
    # No symbolic link is followed: it may lead to a mount that never answers.
    found = TargetFiles(pid).each([path], lambda fd: len(names(fd, MOST_ENTRIES)), links=False)[path]
    return Folder(path, found) if isinstance(found, int) else None


PROBE = IoProbe()
