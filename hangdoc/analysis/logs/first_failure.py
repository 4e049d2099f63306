"""The first failure in the logs, and the ranks that were only its victims.

A rank that loses a peer fails as well, and its log often ends first. A rank that timed out, or that the launcher
terminated, is a victim too. An exception of a rank's own is a failure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from hangdoc.analysis import Case, Key
from hangdoc.analysis.logs.log_events import TIMEOUTS, JobLogs, caused_by_peer, followed, is_cut, number
from hangdoc.analysis.thresholds import CLOCK_SKEW_S
from hangdoc.evidence.logs import TEARDOWN, LogEvent

EXCEPTION_CODES = frozenset({"1"})  # exit codes of a Python process that an uncaught exception ended
REQUESTED = frozenset({"KeyboardInterrupt", "SystemExit"})  # exceptions of a process that somebody ended
# Errors of NCCL on the rank that failed, and on those that lost it (nccl.h, ncclResult_t).
LOCAL = re.compile(r"unhandled cuda error|ncclUnhandledCudaError")
REMOTE = re.compile(r"remote process exited|ncclRemoteError")
CHILD_ENDS = ("child_exit", "failed")  # the end of a process, as its launcher reports it
SIGNALLED = ("told_to_end", "ended_from_outside")  # a launcher or scheduler passes a signal on to the ranks
VICTIM_EVENTS = frozenset({"connection_closed", "dump_signal", "dump_observed", *TIMEOUTS})


@dataclass(frozen=True, slots=True)
class Failure:
    """How one rank's log ends."""

    own: LogEvent | None = None  # its own exception, which ended it
    victim: LogEvent | None = None  # the event that shows it to be a victim
    first: bool = False  # its own exception came first
    order: str = "same"  # how that is known: same (one exception) | launcher | time | line | unknown


def failures(case: Case, logs: JobLogs) -> dict[Key, Failure]:
    """Failures of the ranks that ended by an exception, or that an event shows to be victims."""
    ends = _first_ends(logs)
    found = {key: failure for key, events in logs.ranks.items() if (failure := _failure(case, key, events, ends))}
    roots = root_causes(logs)
    own = {key: failure.own for key, failure in found.items() if failure.own}
    if not own and (root := _only_exit(logs)) and root not in found and (raised := unattributed_failure(logs)):
        own = {root: raised}  # the launcher names the rank, and the traceback in the same text names none
        found[root] = Failure(raised)
    if not own and (logged := _logged_error(logs)):
        key, event = logged
        own, found[key] = {key: event}, Failure(event)
    if not own and (local := _local_error(logs)):
        key, event = local
        own, found[key] = {key: event}, Failure(event)
    first, order = _first(own, roots)
    return {key: Failure(failure.own, failure.victim, key in first, order) for key, failure in found.items()}


def _logged_error(logs: JobLogs) -> tuple[Key, LogEvent] | None:
    """The only exception of a rank that was printed, and after which it does not go on: it may have been caught.

    Of one that its logger printed and that never counted, the progress of the others is taken for its own.
    """
    printed = [(key, event) for key, event in logs.of_ranks("exception") if "uncaught" not in event.fields]
    if len(printed) != 1 or caused_by_peer(printed[0][1]):
        return None
    key, event = printed[0]
    own = [other for rank, other in logs.of_ranks("progress") if rank == key]
    if not own and ("logged" not in event.fields or followed(logs, event, "progress")):
        return None
    waited = any(rank != key for rank, _ in logs.of_ranks(*TIMEOUTS)) or "logged" in event.fields
    return (key, event) if waited and all(other.line < event.line for other in own) else None


def _local_error(logs: JobLogs) -> tuple[Key, LogEvent] | None:
    """The only rank whose NCCL call failed by its own CUDA, where the others only lost a peer."""
    raised = [(key, event) for key, event in logs.of_ranks("exception") if caused_by_peer(event)]
    local = [(key, event) for key, event in raised if LOCAL.search(event.text)]
    remote = {key for key, event in raised if REMOTE.search(event.text)}
    return local[0] if len({key for key, _ in local}) == 1 and remote - {local[0][0]} else None


def unattributed_failure(logs: JobLogs) -> LogEvent | None:
    """The first exception of some rank that no other rank caused, in lines that name no rank."""
    own = [event for _, event in logs.unattributed if event.kind == "exception" and not caused_by_peer(event)]
    victims = [event for _, event in logs.unattributed if event.kind in VICTIM_EVENTS]
    first = next((event for event in own if event.fields.get("type") not in REQUESTED), None)
    if (
        first is None
        or _is_consequence(first, victims)
        or _is_cut_below(first, _first_ends(logs))
        or followed(logs, first, "progress")
    ):  # it was caught
        return None
    return first


def _only_exit(logs: JobLogs) -> Key | None:
    """The only rank that its launcher reports as the first to fail, by an exit code of Python's exceptions."""
    roots = root_causes(logs)
    (root,) = roots if len(roots) == 1 else (None,)
    ends = [event for key, event in logs.of_ranks("failure") if key == root]
    ends += [event for event in logs.all(*CHILD_ENDS) if _rank_of(event, logs) == root]
    return root if {event.fields.get("code") for event in ends} & EXCEPTION_CODES else None


def _first_ends(logs: JobLogs) -> dict[str, int]:
    """The line of each source in which the first timeout of any rank stands, or the first signal that ends the job."""
    found: dict[str, int] = {}
    for event in logs.all(*TIMEOUTS, *SIGNALLED):
        found[event.source] = min(event.line, found.get(event.source, event.line))
    return found


def _is_cut_below(event: LogEvent, ends: Mapping[str, int]) -> bool:
    """True for a traceback without its exception below such a line: most likely that of a wait, or of the signal."""
    return is_cut(event) and ends.get(event.source, event.line + 1) <= event.line


def _failure(case: Case, key: Key, events: Sequence[LogEvent], ends: Mapping[str, int]) -> Failure | None:
    ended = case.ranks[key].alive is False
    exceptions = [event for event in events if event.kind == "exception"]
    # The same exception is in the launcher's log and in the rank's own, and only the launcher's shows the teardown.
    teardown = {event.text for event in exceptions if TEARDOWN in event.fields}
    own = [
        event
        for event in exceptions
        if event.text not in teardown
        and not caused_by_peer(event)
        and (ended or "uncaught" in event.fields)
        and not _is_cut_below(event, ends)
    ]
    victims = [
        event
        for event in events
        if event.kind in VICTIM_EVENTS
        or (event.kind == "exception" and event.text not in teardown and caused_by_peer(event))
    ]
    if own and not _is_consequence(own[0], victims):
        return Failure(own[0])
    return Failure(None, victims[0]) if victims else None


def _is_consequence(own: LogEvent, victims: Sequence[LogEvent]) -> bool:
    """The rank was a victim before it raised its own exception."""
    return any(victim.source == own.source and victim.line < own.line for victim in victims)


def root_causes(logs: JobLogs) -> frozenset[Key]:
    """Ranks that the launcher reports as the first failure: in its table, else in its line about a process."""
    named = frozenset(key for key, event in logs.of_ranks("failure") if "root" in event.fields)
    return named or _only_child(logs)


def _only_child(logs: JobLogs) -> frozenset[Key]:
    """The rank of the only process whose end a launcher reports: of its host, it reports the first."""
    found = {_rank_of(event, logs) for event in logs.all(*CHILD_ENDS)}
    return frozenset(filter(None, found)) if len(found) == 1 else frozenset()


def _rank_of(event: LogEvent, logs: JobLogs) -> Key | None:
    """The rank that the end of a process was, by its number or its PID."""
    rank, pid = number(event, "rank"), number(event, "pid")
    if rank is not None:
        return logs.keys.get(rank)
    return next((key for key in logs.keys.values() if key[1] == pid), None)


def _first(own: Mapping[Key, LogEvent], roots: frozenset[Key]) -> tuple[frozenset[Key], str]:
    """Ranks whose exception came first, and how that is known.

    By the launcher, by the clock of a common host, by the line in a common file. All of them, if the order is unknown
    or all raised the same exception at the same site.
    """
    if len(own) < 2 or len({event.fields.get("type") for event in own.values()}) == 1 == len(_sites(own)):
        return frozenset(own), "same"
    if known_roots := roots & own.keys():
        return known_roots, "launcher"
    times = {key: event.at for key, event in own.items() if event.at is not None}
    if len(times) == len(own) and _in_order(times):
        return frozenset({min(times, key=lambda key: times[key])}), "time"
    if len({event.source for event in own.values()}) == 1:
        return frozenset({min(own, key=lambda key: own[key].line)}), "line"
    return frozenset(own), "unknown"


def _in_order(times: Mapping[Key, float]) -> bool:
    """True if the clocks show which came first: the clock of one host, or a gap that clock skew cannot explain."""
    earliest, second = sorted(times.values())[:2]
    return second - earliest >= CLOCK_SKEW_S or (len({host for host, _ in times}) == 1 and second > earliest)


def _sites(own: Mapping[Key, LogEvent]) -> set[str | None]:
    return {event.fields.get("site") for event in own.values()}


@cache
def _kinds() -> Sequence[tuple[str, re.Pattern[str]]]:
    entries = yaml.safe_load((Path(__file__).parent / "error_kinds.yaml").read_text(encoding="utf-8"))
    return tuple((entry["kind"], re.compile(entry["match"])) for entry in entries)


def error_kind(event: LogEvent | None) -> str | None:
    """The kind of an exception in error_kinds.yaml; None: no event, or of no known kind."""
    return next((kind for kind, match in _kinds() if match.search(event.text)), None) if event else None
