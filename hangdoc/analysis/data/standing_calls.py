"""Analysis `calls`: the system call or the kernel function in which a process was found from outside.

By `strace`, by `/proc/PID/stack`, `wchan` and `syscall`. A process is in some call at any instant: what counts is what
the call waits for. A wait for a thread, an event or a peer of the job says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.logs.log_events import job_logs
from hangdoc.analysis.thresholds import LONG_CALL_S
from hangdoc.evidence.logs import LogEvent

WAITS = ("file", "fifo", "pipe", "server", "lock", "connect")


@dataclass(frozen=True, slots=True)
class CallFacts:
    """The call of one process. None: it was found in none that shows what it waits for."""

    on: str | None = None  # what it waits for: file | fifo | pipe | server | lock | connect
    call: str | None = None  # "read"
    path: str | None = None  # of the file, pipe or lock
    address: str | None = None  # of a connection that is not established: "10.0.0.4:29500"
    text: str | None = None  # the whole, for people
    only: bool | None = None  # it was in this call for as long as it was traced
    slow: str | None = None  # a call on a file took seconds, for people


@dataclass(frozen=True, slots=True)
class CallJob:
    """The same for a process of no known rank and PID."""

    on: str | None = None
    path: str | None = None
    text: str | None = None
    slow: str | None = None


class StandingCallDetector(Detector[CallFacts, CallJob]):
    rank_facts = CallFacts
    job_facts = CallJob

    def derive(self, case: Case) -> tuple[dict[Key, CallFacts], CallJob]:
        logs = job_logs(case)
        if logs is None:
            return dict.fromkeys(case.ranks, CallFacts()), CallJob()
        own = _standing([event for _, event in logs.unattributed])
        job = CallJob(slow=_slow(event for _, event in logs.unattributed))
        if own is not None:
            job = CallJob(own.fields["on"], own.fields.get("path"), own.text, job.slow)
        return {key: _facts(logs.ranks.get(key, ())) for key in case.ranks}, job


def _facts(events: Sequence[LogEvent]) -> CallFacts:
    standing, slow = _standing(events), _slow(events)
    if standing is None:
        return CallFacts(slow=slow)
    fields = standing.fields
    return CallFacts(
        on=fields["on"],
        call=fields.get("call"),
        path=fields.get("path"),
        address=fields.get("address"),
        text=standing.text,
        only=fields.get("only") == "yes",
        slow=slow,
    )


def _standing(events: Iterable[LogEvent]) -> LogEvent | None:
    """The last look at the process; earlier ones may show another call that it left."""
    looks = [event for event in events if event.kind == "standing_call"]
    return looks[-1] if looks and looks[-1].fields.get("on") in WAITS else None


def _slow(events: Iterable[LogEvent]) -> str | None:
    """The longest call on a file that returned after a long time."""
    found = [
        event
        for event in events
        if event.kind == "slow_call"
        and event.fields.get("on") == "file"
        and float(event.fields.get("seconds", "0")) >= LONG_CALL_S
    ]
    if not found:
        return None
    longest = max(found, key=lambda event: float(event.fields["seconds"]))
    path, seconds = longest.fields.get("path", "a file"), float(longest.fields["seconds"])
    return f"{longest.fields.get('call', 'a call')} on {path} took {seconds:.1f} s"


ANALYSIS = StandingCallDetector()
