"""Analysis `preparations`: a rank that still prepares the data when the others give up waiting for it.

Libraries of data sets draw a bar while they map, filter or tokenize. Only the first rank does so where a script guards
the work (`main_process_first`, `zero_first`); the others wait in a barrier, whose timeout may be shorter than the work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.logs.log_events import TIMEOUTS, JobLogs, caused_by_peer, is_cut, job_logs, number
from hangdoc.evidence.logs import LogEvent

KIND, AWAITED = "preparing", "id_awaited"
MAX_PERCENT = 100
OF_A_WAIT = re.compile(r"(?:[\w.]{1,200}\.)?Dist(?:Store|Backend|Network)Error")


@dataclass(frozen=True, slots=True)
class PreparationFacts:
    """One rank."""

    at_work: bool | None = None  # it prepared data when others gave up waiting; None: not known


@dataclass(frozen=True, slots=True)
class PreparationJob:
    """None: no rank prepared data when others gave up."""

    bar: str | None = None  # its last line: "Tokenizing: 92%|...| 402733/437910"
    what: str | None = None  # "Tokenizing"
    percent: int | None = None  # how far it was
    absent: tuple[Suspect, ...] = ()  # the rank, if no line of its own is known


class PreparationDetector(Detector[PreparationFacts, PreparationJob]):
    rank_facts = PreparationFacts
    job_facts = PreparationJob

    def derive(self, case: Case) -> tuple[dict[Key, PreparationFacts], PreparationJob]:
        nothing = dict.fromkeys(case.ranks, PreparationFacts())
        logs = job_logs(case)
        waited = _waiting(logs) if logs else set()
        found = _unfinished(logs) if logs else None
        if logs is None or found is None or not waited:
            return nothing, PreparationJob()
        key, bar = found
        if key in _in_the_wait(logs):
            key = None  # it waits, so that the bar in its log is another rank's
        if key in waited or _trains(logs, bar):
            return nothing, PreparationJob()
        rank = _rank(logs, key, waited)
        key = logs.keys.get(rank) if rank is not None else key
        if key is not None:
            nothing[key] = PreparationFacts(at_work=True)
        suspects = (Suspect(rank),) if rank is not None and key is None else ()
        return nothing, PreparationJob(bar.text, bar.fields.get("what"), number(bar, "percent"), suspects)


def _trains(logs: JobLogs, bar: LogEvent) -> bool:
    """True if a counter other than the bars of this library grows."""
    bars = {(event.source, event.line) for event in logs.all(KIND)}
    what = bar.fields.get("what", "")
    counters = (event for event in logs.all("progress") if (event.source, event.line) not in bars)
    return any(not what or what not in event.text for event in counters)


def _waiting(logs: JobLogs) -> set[Key | int | None]:
    """Ranks that gave up waiting for another one, by number where nothing else is known; None: no line names it."""
    kinds = (*TIMEOUTS, AWAITED, "barrier_of_store", "store_timeout")
    found: set[Key | int | None] = {key for key, _ in logs.of_ranks(*kinds)}
    found |= {key for key, event in logs.of_ranks("exception") if caused_by_peer(event)}
    reporters = [number(event, "reporter") for _, event in logs.unattributed if event.kind in kinds]
    return found | {None if rank is None else logs.keys.get(rank, rank) for rank in reporters}


def _in_the_wait(logs: JobLogs) -> set[Key]:
    """Ranks whose main thread waited for another one: it cannot draw a bar meanwhile."""
    found = {key for key, _ in logs.of_ranks("store_timeout")}
    raised = ((key, event) for key, event in logs.of_ranks("exception") if caused_by_peer(event))
    return found | {key for key, event in raised if is_cut(event) or OF_A_WAIT.fullmatch(event.fields["type"])}


def _unfinished(logs: JobLogs) -> tuple[Key | None, LogEvent] | None:
    """The last bar of a preparation, and the rank that drew it, unless it was finished."""
    bars: list[tuple[Key | None, LogEvent]] = [*logs.of_ranks(KIND)]
    bars += [(None, event) for _, event in logs.unattributed if event.kind == KIND]
    if not bars:
        return None
    key, last = max(bars, key=lambda bar: bar[1].line)
    return (key, last) if (number(last, "percent") or 0) < MAX_PERCENT else None


def _rank(logs: JobLogs, key: Key | None, waiting: set[Key | int | None]) -> int | None:
    """The rank at work: the one that drew the bar, that the others wait for, or the first one."""
    ranks = {known: rank for rank, known in logs.keys.items()}
    if key is not None:
        return ranks.get(key)
    named = {number(event, "from_rank") for event in logs.all(AWAITED)} - {None}
    if len(named) == 1:
        return named.pop()
    first = logs.keys.get(0)  # it works alone where the text names none
    return 0 if first is None or first not in waiting else None


ANALYSIS = PreparationDetector()
