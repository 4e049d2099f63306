"""Analysis `lockfile`: will the lock file that a rank waits for ever be released?

A living holder releases the file when it is done, even if slowly, so the rank advances. A file without a living holder
stays forever. If the holder may be out of sight (another host, another user), only a file older than the job counts as
stale. A rank that holds the file and itself hangs in a collective never releases it. Neither does an idle process that
a rank has forked, which has inherited the lock with the open file. Another idle program may release it, but is no sign
that the rank advances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.ranks.progress import ProgressFacts
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.analysis.thresholds import ACTIVE_S, CLOCK_SKEW_S, IDLE_CORES, STILL_LOOKS, STILL_S, WATCHED_S
from hangdoc.evidence import Process
from hangdoc.evidence.locks import LockFile


@dataclass(frozen=True, slots=True)
class LockFileFacts:
    """The lock file that one rank waits for. None: not seen, or the rank waits for no lock file."""

    stuck: bool | None = None  # no process that could release the file is seen to do anything
    advancing: bool | None = None  # a living process outside the job's ranks holds the file and may release it
    idle: bool = False  # the processes outside of the job that hold it do nothing
    inherited: bool = False  # only idle processes that a rank started hold it: they have inherited its open file
    started_holder: bool = False  # this rank started these processes
    path: str | None = None
    kind: str | None = None  # baton | filelock | kernel | loop | database
    age_s: float | None = None  # age of the file, seconds
    holder: str | None = None  # who holds it: "pid 4711 (c++ -O3 main.cpp)", "rank 0"
    named: str | None = None  # the PID written in the file, and its state: "pid 12, no longer running"
    sure: bool | None = None  # every process that could hold the file was visible
    before: bool | None = None  # the file is older than this rank's process
    blocks: tuple[int, ...] = ()  # ranks that wait for a file held by this rank, while this rank waits for them


UNSEEN = LockFileFacts()


class LockFileDetector(Detector[LockFileFacts, None]):
    rank_facts = LockFileFacts

    def derive(self, case: Case) -> tuple[dict[Key, LockFileFacts], None]:
        facts = {key: _facts(case, key) for key in case.ranks}
        for key, own in tuple(facts.items()):
            parent = key if own.inherited else _parent_of_holders(case, key) if own.idle else None
            if parent is not None:
                facts[key] = replace(facts[key], inherited=True, idle=False)
                facts[parent] = replace(facts[parent], started_holder=True)
        blocks: dict[Key, list[int]] = {}
        for key in facts:
            for holder in _holder_ranks(case, key) if facts[key].path else ():
                if _hangs(case, holder):
                    facts[key] = replace(facts[key], stuck=True, advancing=None)
                    blocks.setdefault(holder, []).append(case.ranks[key].target.rank or 0)
        facts.update({key: replace(facts[key], blocks=tuple(ranks)) for key, ranks in blocks.items()})
        return facts, None


def _facts(case: Case, key: Key) -> LockFileFacts:
    series = [(at, record) for at, record in case.series(key, "lockfile") if isinstance(record, LockFile)]
    last = next((record for _, record in reversed(series[-2:]) if record.path is not None), None)
    if last is None or case.ranks[key].alive is False:
        return UNSEEN
    since, looks = series[-1][0], 0
    for at, before in reversed(series):
        if (before.path, before.inode) != (last.path, last.inode):
            if before.path is None and looks < STILL_LOOKS:
                continue  # between two attempts the rank is in other frames
            break
        since, looks = at, looks + 1
    same = [record for at, record in series if at >= since and record.inode == last.inode]
    unheld = not any(record.holders or record.named_alive for record in same)
    window_s = series[-1][0] - since
    watched = looks >= STILL_LOOKS and window_s >= STILL_S
    apart = not _holder_ranks(case, key)
    idle = watched and apart and window_s >= WATCHED_S and _used_s(same) < ACTIVE_S
    inherited = watched and _is_inherited(case, key, same, window_s)
    return LockFileFacts(
        stuck=(watched and unheld and _is_stale(last)) or inherited or idle,
        advancing=bool(last.holders or last.named_alive) and apart and not idle and not inherited,
        idle=idle,
        inherited=inherited,
        path=last.path,
        kind=last.kind,
        age_s=last.age_s,
        holder=_holder(case, key[0], last),
        named=_format_named(last),
        sure=_sure(last),
        before=last.before_s > 0,
    )


def _is_inherited(case: Case, key: Key, records: Sequence[LockFile], window_s: float) -> bool:
    """True if all holders are idle children of the rank that waits.

    A forked process, such as a worker of a DataLoader, inherits the open files, and with them the locks of flock(2). It
    does not know that it has them, so they stay until it ends.
    """
    return _started_holders(case, key, records[-1]) and _used_s(records) < IDLE_CORES * window_s


def _parent_of_holders(case: Case, key: Key) -> Key | None:
    """The rank on the same host that started all processes which hold the file."""
    file = case.record(key, "lockfile")
    ranks = (other for other in case.ranks if other[0] == key[0])
    return next((rank for rank in ranks if isinstance(file, LockFile) and _started_holders(case, rank, file)), None)


def _started_holders(case: Case, key: Key, file: LockFile) -> bool:
    process = case.record(key, "cpu")
    children = {child.pid for child in process.children} if isinstance(process, Process) else set()
    return file.kind == "kernel" and bool(file.holders) and {holder.pid for holder in file.holders} <= children


def _used_s(records: Sequence[LockFile]) -> float:
    """CPU time that the holders have used meanwhile; infinite: no holder was seen all the while."""
    first, last = ({holder.pid: holder.cpu_s for holder in record.holders} for record in (records[0], records[-1]))
    if not last or not last.keys() <= first.keys():
        return math.inf
    return sum(cpu_s - first[pid] for pid, cpu_s in last.items())


def _is_stale(file: LockFile) -> bool:
    """True if a file without a visible holder was certainly left behind."""
    if file.kind in ("kernel", "database"):  # the kernel releases the lock when its holder exits
        return False
    return _sure(file) or file.before_s >= CLOCK_SKEW_S


def _sure(file: LockFile) -> bool:
    """Every process that could hold the file is visible."""
    if file.hidden or not file.local:
        return False
    if file.kind in ("baton", "filelock"):  # the holder keeps the file open
        return file.named_host is None or file.named_alive is not None
    return file.named_alive is False


def _holder_ranks(case: Case, key: Key) -> list[Key]:
    """Ranks of this job, on the same host, that hold the file a rank waits for."""
    file = case.record(key, "lockfile")
    holders = file.holders if isinstance(file, LockFile) else ()
    return [(key[0], holder.pid) for holder in holders if (key[0], holder.pid) in case.ranks]


def _hangs(case: Case, key: Key) -> bool:
    stack = case.facts(StackFacts)[key]
    progress = case.facts(ProgressFacts)[key]
    return bool(stack.waits) and progress.standing_looks >= STILL_LOOKS and (progress.standing_s or 0.0) >= STILL_S


def _holder(case: Case, host: str, file: LockFile) -> str | None:
    holders = [_format_holder(case, (host, holder.pid), holder.command) for holder in file.holders]
    if not holders and file.named_alive:
        return f"pid {file.named_pid}"
    return ", ".join(holders) or None


def _format_holder(case: Case, key: Key, command: str) -> str:
    rank = case.ranks[key].target.rank if key in case.ranks else None
    return f"pid {key[1]} ({command})" if rank is None else f"rank {rank}"


def _format_named(file: LockFile) -> str | None:
    if file.named_pid is None:
        return None
    at = f" on {file.named_host}" if file.named_host else ""
    state = {True: "alive", False: "no longer running", None: "not visible from here"}
    return f"pid {file.named_pid}{at}, {state[file.named_alive]}"


ANALYSIS = LockFileDetector()
