"""The pulse of each job: CPU time and bytes, cheap enough for every other second, compared with its own past.

A job whose pulse is as before needs no look. A pulse judges nothing: it only says that a look is worth it.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hangdoc.evidence import Snapshot, Sockets, Target
from hangdoc.evidence.target import parse_endpoint
from hangdoc.system import procfs
from hangdoc.system.netns import call_inside, namespace
from hangdoc.system.sockdiag import SockDiag

KNOWN_BEATS = 30  # of the past that a beat is compared with: a minute
LEARNED_BEATS = 3  # before that, the rhythm is not known
QUIETER, LOUDER = 0.25, 4.0  # times the least and most bytes per second of the past
FEW_BYTES = 4096.0  # per second: keepalives and heartbeats
RESUMED_BYTES = 256.0  # per second, of a stalled job: even the smallest steps carry more
CPU_FACTOR, CPU_MARGIN = 2.0, 0.1  # times, and cores, beyond the least and most of the past


@dataclass(slots=True)
class _Job:
    """The last beats of one job."""

    at_s: float = 0.0
    bytes: dict[int, int] = field(default_factory=dict)  # inode of a socket -> bytes so far
    cpu_s: dict[int, float] = field(default_factory=dict)  # by PID
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=KNOWN_BEATS))  # bytes per second
    shares: deque[dict[int, float]] = field(default_factory=lambda: deque(maxlen=KNOWN_BEATS))  # cores, by PID


class Pulse:
    """Takes the pulse of every job. Which sockets carry data is learned from the last look."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._jobs: dict[str, _Job] = {}
        self._inodes: dict[str, dict[int, int]] = {}  # job -> inode of a data socket -> its network namespace
        self._members: dict[int, int] = {}  # network namespace -> a PID in it
        self._tables: dict[int, SockDiag] = {}

    def learn(self, job: str, shots: Sequence[Snapshot]) -> None:
        """Learn the sockets of a job from its newest snapshots. Traffic with its store says nothing about steps."""
        found: dict[int, int] = {}
        for shot in shots:
            for rank in shot.ranks:
                sockets = rank.records.get("sockets")
                if not isinstance(sockets, Sockets) or sockets.namespace is None:
                    continue
                self._members[sockets.namespace] = rank.target.pid
                port = _store_port(rank.target)
                for one in sockets.connections:
                    if one.state == "established" and one.inode and port not in (one.local_port, one.remote_port):
                        found[one.inode] = sockets.namespace
        self._inodes[job] = found

    def restart(self, job: str) -> None:
        """The job is in another state: its past says nothing about what comes next."""
        self._jobs.pop(job, None)

    def knows(self, job: str, stalled: bool) -> bool:
        """True if a change would show: its rhythm is learned, and bytes always move, or, in a stall, could move again.

        CPU time is not enough: a rank that waits may sleep or spin.
        """
        known = self._jobs.get(job)
        if known is None or len(known.rates) < LEARNED_BEATS:
            return False
        return bool(known.bytes) if stalled else min(known.rates) > FEW_BYTES

    def beat(self, targets: Mapping[str, Sequence[Target]], stalled: Container[str] = ()) -> frozenset[str]:
        """Take the pulse of every job; returns the jobs that move otherwise than before.

        `stalled`: jobs that stood still at the last look. Bytes that move again are odd there from the first beat on.
        """
        self._forget(targets)
        moved = self._moved()
        return frozenset(job for job, ranks in targets.items() if self._differs(job, ranks, moved, job in stalled))

    def close(self) -> None:
        for table in self._tables.values():
            table.close()
        self._tables.clear()

    def _differs(self, job: str, ranks: Iterable[Target], moved: Mapping[int, int], stalled: bool) -> bool:
        known, now_s = self._jobs.setdefault(job, _Job()), self._clock()
        spent = {rank.pid: stat.cpu_s for rank in ranks if rank.pid > 0 and (stat := procfs.stat(rank.pid))}
        passed_s, before, cpu_before = now_s - known.at_s, known.bytes, known.cpu_s
        known.at_s, known.cpu_s = now_s, spent
        known.bytes = {inode: moved[inode] for inode in self._inodes.get(job, {}) if inode in moved}
        if not cpu_before or passed_s <= 0:
            return False
        same = known.bytes.keys() & before.keys()
        rate = sum(known.bytes[inode] - before[inode] for inode in same) / passed_s
        shares = {pid: (cpu_s - cpu_before[pid]) / passed_s for pid, cpu_s in spent.items() if pid in cpu_before}
        learned = len(known.rates) >= LEARNED_BEATS
        differs = (stalled and rate > LOUDER * max(known.rates, default=0.0) + RESUMED_BYTES) or (
            learned and (_is_odd(rate, known.rates) or _computes_otherwise(shares, known.shares))
        )
        known.rates.append(rate)
        known.shares.append(shares)
        return differs

    def _moved(self) -> dict[int, int]:
        """Bytes that each data socket has carried so far, both ways."""
        wanted: dict[int, set[int]] = defaultdict(set)
        for inodes in self._inodes.values():
            for inode, where in inodes.items():
                wanted[where].add(inode)
        for where in self._tables.keys() - wanted.keys():
            self._tables.pop(where).close()  # an open socket keeps its namespace alive
        found: dict[int, int] = {}
        for where, inodes_there in wanted.items():
            try:
                if where not in self._tables:
                    if namespace(self._members[where]) != where:
                        continue
                    self._tables[where] = call_inside(self._members[where], SockDiag)
                found.update(self._tables[where].bytes_moved(inodes_there))
            except OSError:  # refused, or its last process has ended: then a look must tell
                if table := self._tables.pop(where, None):
                    table.close()
        return found

    def _forget(self, jobs: Iterable[str]) -> None:
        living = set(jobs)
        self._jobs = {job: known for job, known in self._jobs.items() if job in living}
        self._inodes = {job: inodes for job, inodes in self._inodes.items() if job in living}
        used = {where for inodes in self._inodes.values() for where in inodes.values()}
        self._members = {where: pid for where, pid in self._members.items() if where in used}


def _store_port(target: Target) -> int | None:
    endpoint = parse_endpoint(target.master) if target.master else None
    return endpoint[1] if endpoint else None


def _is_odd(rate: float, past: Sequence[float]) -> bool:
    return rate < QUIETER * min(past) or rate > LOUDER * max(past) + FEW_BYTES


def _computes_otherwise(shares: Mapping[int, float], past: Sequence[Mapping[int, float]]) -> bool:
    for pid, share in shares.items():
        before = [earlier[pid] for earlier in past if pid in earlier]
        if not before:
            continue
        if share < min(before) / CPU_FACTOR - CPU_MARGIN or share > max(before) * CPU_FACTOR + CPU_MARGIN:
            return True
    return False
