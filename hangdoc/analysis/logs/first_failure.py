"""The first failure in the logs, and the ranks that were only its victims.

A rank that loses a peer fails as well, and its log often ends first. A rank that timed out, or that the launcher
terminated, is a victim too. An exception of a rank's own is a failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.analysis.logs.log_events import TIMEOUTS, JobLogs, caused_by_peer
from hangdoc.evidence.logs import TEARDOWN, LogEvent

VICTIM_EVENTS = frozenset({"connection_closed", "dump_signal", "dump_observed", *TIMEOUTS})


@dataclass(frozen=True, slots=True)
class Failure:
    """How one rank's log ends."""

    own: LogEvent | None = None  # its own exception, which ended it
    victim: LogEvent | None = None  # the event that shows it to be a victim
    first: bool = False  # its own exception came first


def failures(case: Case, logs: JobLogs) -> dict[Key, Failure]:
    """Failures of the ranks that ended by an exception, or that an event shows to be victims."""
    found = {key: failure for key, events in logs.ranks.items() if (failure := _failure(case, key, events))}
    own = {key: failure.own for key, failure in found.items() if failure.own}
    first = _first(own, _root_causes(logs))
    return {key: Failure(failure.own, failure.victim, key in first) for key, failure in found.items()}


def _failure(case: Case, key: Key, events: Sequence[LogEvent]) -> Failure | None:
    ended = case.ranks[key].alive is False
    exceptions = [event for event in events if event.kind == "exception"]
    # The same exception is in the launcher's log and in the rank's own, and only the launcher's shows the teardown.
    teardown = {event.text for event in exceptions if TEARDOWN in event.fields}
    own = [
        event
        for event in exceptions
        if event.text not in teardown and not caused_by_peer(event) and (ended or "uncaught" in event.fields)
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


def _root_causes(logs: JobLogs) -> frozenset[Key]:
    """Ranks that the launcher reports as the first failure."""
    return frozenset(key for key, event in logs.of_ranks("failure") if "root" in event.fields)


def _first(own: Mapping[Key, LogEvent], roots: frozenset[Key]) -> frozenset[Key]:
    """Ranks whose exception came first: by the launcher, by the line in a common file, by the clock of a common host.

    All of them, if the order is unknown or all raised the same exception at the same site.
    """
    if len(own) < 2 or len({event.fields.get("type") for event in own.values()}) == 1 == len(_sites(own)):
        return frozenset(own)
    if known_roots := roots & own.keys():
        return known_roots
    if len({event.source for event in own.values()}) == 1:
        return frozenset({min(own, key=lambda key: own[key].line)})
    times = {key: event.at for key, event in own.items() if event.at is not None}
    if len({host for host, _ in own}) == 1 and len(times) == len(own):
        return frozenset({min(times, key=lambda key: times[key])})
    return frozenset(own)


def _sites(own: Mapping[Key, LogEvent]) -> set[str | None]:
    return {event.fields.get("site") for event in own.values()}
