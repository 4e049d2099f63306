"""Analysis `arrivals`: ranks that announced themselves at the start of the job, and those that never did.

Each rank prints such a line (Lightning, NCCL, the store's barrier, a script of the user), and all wait until the last
one has come. Where most ranks of a known number have printed it and nothing follows, the others never came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.logs.log_events import TIMEOUTS, JobLogs, caused_by_peer, job_logs, number
from hangdoc.analysis.thresholds import FEW_ABSENT, REPORTERS
from hangdoc.evidence import limits
from hangdoc.evidence.logs import LogEvent
from hangdoc.formatting import name_ranks

KIND, COUNTED, TASKS = "announced", "workers_counted", "tasks_counted"
MEMBER = "member_missing"  # one that a barrier names, of those that did not come
MISSING = ("clients_missing", "barrier_of_store")  # how many had joined when the wait ended
# What a job prints once all ranks have come, or a rank that has failed.
COME = TIMEOUTS | {"progress", "work_status", "dump_signal", "joined", "failed", "failure", "all_come"}


@dataclass(frozen=True, slots=True)
class ArrivalsJob:
    """None, 0 or empty: no rank is known to be absent."""

    absent: tuple[Suspect, ...] = ()  # ranks that did not announce themselves, while most others did
    come: int = 0  # ranks that did
    size: int | None = None  # ranks of the job
    line: str | None = None  # the last announcement
    twice: str | None = None  # "ranks 0-1": several processes took each of these numbers, and nobody the others
    more: bool = False  # more processes came than the job has ranks
    tasks: int | None = None  # that Slurm started, fewer than the job has ranks
    tasks_line: str | None = None
    listed: bool = False  # the barrier itself names who is absent
    counted: str | None = None  # the last line by which a launcher still waits: "waiting for workers: 7/8 ready"


class ArrivalsDetector(Detector[object, ArrivalsJob]):
    job_facts = ArrivalsJob

    def derive(self, case: Case) -> tuple[dict[Key, object], ArrivalsJob]:
        logs = job_logs(case)
        if logs is None:
            return {}, ArrivalsJob()
        counted = list(logs.all(COUNTED))
        if counted and not _went_on(logs):
            joined, expected = number(counted[-1], "joined"), number(counted[-1], "expected")
            if (
                joined is not None
                and expected is not None
                and 0 < joined < expected
                and limits.valid_world_size(expected)
            ):
                return {}, ArrivalsJob((), joined, expected, counted[-1].text, counted[-1].text)
        listed = {rank: event for event in logs.all(MEMBER) if (rank := number(event, "member")) is not None}
        if listed and any(True for _ in logs.all("barrier_of_start")) and not _went_on(logs):
            count = next(iter(logs.all("members_counted")), None)
            joined, expected = number(count, "joined") or 0, number(count, "expected")
            said = next(iter(listed.values())).text
            return {}, ArrivalsJob(tuple(map(Suspect, sorted(listed))), joined, expected, said, listed=True)
        if crowded := next(filter(_is_crowded, logs.all("barrier_of_store")), None):
            joined, expected = number(crowded, "joined") or 0, number(crowded, "expected")
            return {}, ArrivalsJob((), joined, expected, f"world_size={expected}, worker_count={joined}", more=True)
        announced = [event for event in logs.all(KIND) if _is_certain(event, logs)]
        waiting = [event for event in logs.all("barrier_of_store") if "rank" in event.fields]
        sizes = (*(number(event, "size") for event in announced), *(number(event, "expected") for event in waiting))
        size = max((at for at in sizes if at is not None), default=logs.named)
        if limits.valid_world_size(size) is None or size is None or _went_on(logs):
            return {}, ArrivalsJob()
        lines = {(event.source, event.line): rank for event in announced if (rank := _rank_in(event, size)) is not None}
        ranks = Counter(lines.values())
        here = {*ranks, *_waiting(waiting, size)}
        absent = limits.absent_ranks(size, {*here, *logs.keys})
        line = next((events[-1].text for events in (announced, waiting) if events), None)
        if absent and len(ranks) > 1 and ranks.total() == size and len(set(ranks.values())) == 1:
            return {}, ArrivalsJob(come=size, size=size, line=line, twice=name_ranks(sorted(ranks)))
        tasks = next((event for event in logs.all(TASKS)), None)
        by_member = {(event.source, event.line) for event in announced if "member" in event.fields}
        started = number(tasks, "tasks") if tasks and by_member >= lines.keys() else None
        counts = {number(event, "joined") for event in logs.all(*MISSING)}
        # The second of two hosts never starts: the ranks of the first, which have the first numbers, all announce
        # themselves, and somebody says that nothing follows.
        half = 2 * len(here) == size and here == set(range(len(here))) and by_member >= lines.keys()
        half = half and not started and any(True for _ in logs.all("said_stuck"))
        few = len(absent) <= FEW_ABSENT * len(here) or len(here) in counts or half
        named = tuple(map(Suspect, absent)) if len(here) >= REPORTERS and few else ()
        if tasks and started and 0 < len(ranks) <= started < size:
            return {}, ArrivalsJob(named, len(ranks), size, line, tasks=started, tasks_line=tasks.text)
        return {}, ArrivalsJob(named, len(here), size, line) if named else ArrivalsJob()


def _is_crowded(event: LogEvent) -> bool:
    joined, expected = number(event, "joined"), number(event, "expected")
    return joined is not None and expected is not None and joined > expected


def _went_on(logs: JobLogs) -> bool:
    """True if a line shows that all ranks had come, or that a rank failed by itself."""
    raised = (event for event in logs.all("exception") if not caused_by_peer(event))
    return any(True for _ in logs.all(*COME)) or any(True for _ in raised)


def _is_certain(event: LogEvent, logs: JobLogs) -> bool:
    """True unless the line has two numbers that may be anything, and no other line has the same number of ranks."""
    sizes = {logs.named, *(number(other, "expected") for other in logs.all(*MISSING))}
    return "loose" not in event.fields or number(event, "size") in sizes


def _waiting(events: Sequence[LogEvent], size: int) -> set[int]:
    """Ranks that say that they wait in the barrier of `init_process_group`, if the barrier counts no others."""
    ranks = {
        rank for event in events if (rank := number(event, "rank")) is not None and number(event, "expected") == size
    }
    return ranks if len(ranks) == max((number(event, "joined") or 0 for event in events), default=0) else set()


def _rank_in(event: LogEvent, size: int) -> int | None:
    """The rank in the whole job; None for a part of it."""
    return number(event, "rank") if number(event, "size") in (None, size) else None


ANALYSIS = ArrivalsDetector()
