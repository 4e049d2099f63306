"""Analysis `tables`: what tables of other tools (`ps`, `kubectl`) and the kernel's log say of processes and pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.logs.arrivals import ArrivalsJob
from hangdoc.analysis.logs.log_events import JobLogs, job_logs, known_host, last
from hangdoc.analysis.logs.notices import MAX_SUSPECTS, NoticesJob
from hangdoc.analysis.ranks.host_ranks import on_hosts


@dataclass(frozen=True, slots=True)
class TablesFacts:
    """One rank's process in such a table. None: no table shows it."""

    uninterruptible: str | None = None  # line: it is in state D
    storage: bool | None = None  # it is in state D in a function of a file system
    reported: bool | None = None  # the kernel itself reports that it has been in state D for minutes
    storage_lost: bool | None = None  # a line about its host, and about no rank: its storage is lost
    helpers: bool | None = None  # processes that it started are in that state, and not the rank itself
    defunct: str | None = None  # line: it has ended, and its launcher has not reaped it


@dataclass(frozen=True, slots=True)
class TablesJob:
    """The same for processes of no known rank, and the pods of the job."""

    unstarted: tuple[Suspect, ...] = ()  # pods that have not started
    unstarted_why: str | None = None  # line about the first of them
    uncreated: bool = False  # that pod does not exist
    hung: tuple[Suspect, ...] = ()  # processes of no known rank that the kernel reports as blocked
    hung_why: str | None = None  # line about the first of them
    hung_storage: bool = False  # its stack is in a file system


class TablesDetector(Detector[TablesFacts, TablesJob]):
    rank_facts = TablesFacts
    job_facts = TablesJob

    def derive(self, case: Case) -> tuple[dict[Key, TablesFacts], TablesJob]:
        logs = job_logs(case)
        if logs is None:
            return dict.fromkeys(case.ranks, TablesFacts()), TablesJob()
        lost = {one.host for one in case.job(NoticesJob).storage_lost_at if one.rank is None}
        return {key: replace(_facts(logs, key), storage_lost=key[0] in lost) for key in case.ranks}, _job(
            case, logs, case.job(ArrivalsJob).absent
        )


def _facts(logs: JobLogs, key: Key) -> TablesFacts:
    events = logs.ranks.get(key, ())
    waits = [event for event in events if event.kind == "kernel_wait"]
    # The kernel may report a hung task without its stack. The newest event that names a function tells more.
    wait = next((event for event in reversed(waits) if event.fields.get("wchan")), waits[-1] if waits else None)
    gone = last(events, "defunct")
    return TablesFacts(
        uninterruptible=wait.text if wait else None,
        storage="storage" in wait.fields if wait else None,
        reported=any("seconds" in event.fields for event in waits) if wait else None,
        helpers="helpers" in wait.fields if wait else None,
        defunct=gone.text if gone else None,
    )


def _job(case: Case, logs: JobLogs, absent: Sequence[Suspect]) -> TablesJob:
    """`absent`: ranks that did not come to the barrier at the start: as many as pods wait, these are their ranks."""
    pods = list(logs.all("pod_waits"))
    hung = [(host, event) for host, event in logs.unattributed if event.kind == "kernel_wait"]
    ranks = {key: rank for rank, key in logs.keys.items()}
    rank_of: dict[str, int | None] = dict.fromkeys(event.fields.get("pod", "") for event in pods)
    rank_of |= {event.fields.get("pod", ""): ranks.get(key) for key, event in logs.of_ranks("pod_waits")}
    unstarted = list(on_hosts(case, (Suspect(rank, None, pod) for pod, rank in rank_of.items())))
    if unstarted and len(unstarted) == len(absent) and all(one.rank is None for one in unstarted):
        unstarted = list(absent) if len(absent) > 1 else [replace(unstarted[0], rank=absent[0].rank)]
    return TablesJob(
        unstarted=tuple(unstarted)[:MAX_SUSPECTS],
        unstarted_why=pods[0].text if pods else None,
        uncreated=bool(pods) and "uncreated" in pods[0].fields,
        hung=tuple(dict.fromkeys(Suspect(None, None, host) for host, _ in hung if known_host(host)))[:MAX_SUSPECTS],
        hung_why=hung[0][1].text if hung else None,
        hung_storage=any("storage" in event.fields for _, event in hung),
    )


ANALYSIS = TablesDetector()
