"""Analysis `lockfile`: will the lock file that a rank waits for ever be released?

A living holder releases it when it is done, be it slow: then the rank is on its way. A file that nobody living has
stays for ever. Where the holder may be out of sight (another host, another user) only a file older than the job is told
to be a left-over. A holder that itself waits in a collective, while nothing else moves, never gets out of there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.progress import ProgressFacts
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence.locks import LockFile

STANDS_S = 1.9
MIN_LOOKS = 3
BEFORE_S = 60.0  # so much older than the job is no matter of clocks


@dataclass(frozen=True, slots=True)
class LockFileFacts:
    """One rank; None: not seen, or it waits for no lock file."""

    stuck: bool | None = None  # nobody will ever release what it waits for
    advancing: bool | None = None  # a living process has it, and will
    path: str | None = None
    kind: str | None = None  # baton | filelock | kernel | loop
    age_s: float | None = None
    holder: str | None = None  # "pid 4711 (c++ -O3 main.cpp)", "rank 0"
    named: str | None = None  # the PID that stands in the file, and what became of it
    sure: bool | None = None  # everybody who could have it was seen
    before: bool | None = None  # the file is older than this rank's process
    blocks: tuple[int, ...] = ()  # ranks that wait for a lock which this rank has, while it waits for them


UNSEEN = LockFileFacts()


@dataclass(slots=True)
class LockFileAnalysis:
    name: str = "lockfile"
    order: int = 42
    rank_facts: type | None = LockFileFacts
    job_facts: type | None = None

    def derive(self, case: Case) -> tuple[dict[Key, LockFileFacts], None]:
        facts = {key: _facts(case, key) for key in case.ranks}
        blocks: dict[Key, list[int]] = {}
        for key in facts:
            for holder in _ranks_that_have(case, key) if facts[key].path else ():
                if _waits_for_good(case, holder):
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
            if before.path is None and looks < MIN_LOOKS:
                continue  # between two attempts the frames of the wait are others
            break
        since, looks = at, looks + 1
    same = [record for at, record in series if at >= since and record.inode == last.inode]
    nobody = not any(record.holders or record.named_alive for record in same)
    proved = nobody and looks >= MIN_LOOKS and series[-1][0] - since >= STANDS_S
    return LockFileFacts(
        stuck=proved and _left(last),
        advancing=bool(last.holders or last.named_alive) and not _ranks_that_have(case, key),
        path=last.path,
        kind=last.kind,
        age_s=last.age_s,
        holder=_holder(case, key[0], last),
        named=_named(last),
        sure=_sure(last),
        before=last.before_s > 0,
    )


def _left(file: LockFile) -> bool:
    """Nobody has it: was it left behind, or can that not be said?"""
    if file.kind == "kernel":  # the kernel releases it with its holder
        return False
    return _sure(file) or file.before_s >= BEFORE_S


def _sure(file: LockFile) -> bool:
    if file.hidden or not file.local:
        return False
    if file.kind in ("baton", "filelock"):  # whoever has it keeps it open
        return file.named_host is None or file.named_alive is not None
    return file.named_alive is False


def _ranks_that_have(case: Case, key: Key) -> list[Key]:
    """The ranks of this job, on the same host, that have the file which a rank waits for."""
    file = case.record(key, "lockfile")
    holders = file.holders if isinstance(file, LockFile) else ()
    return [(key[0], holder.pid) for holder in holders if (key[0], holder.pid) in case.ranks]


def _waits_for_good(case: Case, key: Key) -> bool:
    stack: StackFacts = case.rank_facts["stack"][key]
    progress: ProgressFacts = case.rank_facts["progress"][key]
    return bool(stack.waits) and progress.standing_looks >= MIN_LOOKS and (progress.standing_s or 0.0) >= STANDS_S


def _holder(case: Case, host: str, file: LockFile) -> str | None:
    told = [_told(case, (host, holder.pid), holder.command) for holder in file.holders]
    if not told and file.named_alive:
        return f"pid {file.named_pid}"
    return ", ".join(told) or None


def _told(case: Case, key: Key, command: str) -> str:
    rank = case.ranks[key].target.rank if key in case.ranks else None
    return f"pid {key[1]} ({command})" if rank is None else f"rank {rank}"


def _named(file: LockFile) -> str | None:
    if file.named_pid is None:
        return None
    at = f" on {file.named_host}" if file.named_host else ""
    what = {True: "which is alive", False: "no such process any more", None: "which cannot be seen from here"}
    return f"pid {file.named_pid}{at}, {what[file.named_alive]}"


ANALYSIS = LockFileAnalysis()
