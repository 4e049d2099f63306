"""Which failure came first, by the logs, and which ranks were only its victims.

A rank whose peer is gone ends as well, and often its log ends first; who waited until a timeout, or was told to end by
the launcher, is a victim too. An exception of a rank's own is none of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.analysis.logs.log_events import TIMEOUTS, JobLogs, caused_by_peer
from hangdoc.evidence.logs import TEARDOWN, LogEvent

TOLD = frozenset({"connection_closed", "dump_signal", "dump_observed", *TIMEOUTS})


@dataclass(frozen=True, slots=True)
class Failure:
    """How one rank's log ends."""

    own: LogEvent | None = None  # an exception of its own that ended it
    victim: LogEvent | None = None  # the line that says it is a victim
    first: bool = False


def failures(case: Case, heard: JobLogs) -> dict[Key, Failure]:
    """Of each rank that ended by an exception, or of which a line says that it is a victim."""
    found = {key: one for key, said in heard.ranks.items() if (one := _failure(case, key, said))}
    own = {key: one.own for key, one in found.items() if one.own}
    first = _first(own, _roots(heard))
    return {key: Failure(one.own, one.victim, key in first) for key, one in found.items()}


def _failure(case: Case, key: Key, lines: Sequence[LogEvent]) -> Failure | None:
    ended = case.ranks[key].alive is False
    raised = [one for one in lines if one.kind == "exception"]
    torn = {one.text for one in raised if TEARDOWN in one.fields}  # its own log does not tell that
    own = [
        one
        for one in raised
        if one.text not in torn and not caused_by_peer(one) and (ended or "uncaught" in one.fields)
    ]
    victims = [
        one
        for one in lines
        if one.kind in TOLD or (one.kind == "exception" and one.text not in torn and caused_by_peer(one))
    ]
    if own and not _later(victims, own[0]):
        return Failure(own[0])
    return Failure(None, victims[0]) if victims else None


def _later(victims: Sequence[LogEvent], own: LogEvent) -> bool:
    """It had been a victim before, so its own exception came of that."""
    return any(one.source == own.source and one.line < own.line for one in victims)


def _roots(heard: JobLogs) -> frozenset[Key]:
    """The ranks that their launcher saw fail first."""
    return frozenset(key for key, said in heard.of("failure") if "root" in said.fields)


def _first(own: Mapping[Key, LogEvent], roots: frozenset[Key]) -> frozenset[Key]:
    """Whose exception came first: by the launcher, by the order in a common file, by the clock of a common host.

    Where neither tells, or all raised the same, all of them.
    """
    if len(own) < 2 or len({one.fields.get("type") for one in own.values()}) == 1 == len(_sites(own)):
        return frozenset(own)
    if told := roots & own.keys():
        return told
    if len({one.source for one in own.values()}) == 1:
        return frozenset({min(own, key=lambda key: own[key].line)})
    times = {key: one.at for key, one in own.items() if one.at is not None}
    if len({host for host, _ in own}) == 1 and len(times) == len(own):
        return frozenset({min(times, key=lambda key: times[key])})
    return frozenset(own)


def _sites(own: Mapping[Key, LogEvent]) -> set[str | None]:
    return {one.fields.get("site") for one in own.values()}
