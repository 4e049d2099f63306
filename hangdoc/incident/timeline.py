"""Timeline of the last minutes: lanes of ranks with the same history, and the lines of their logs.

Clocks of different hosts are never compared: each lane uses its own host's clock, counted back from the last moment
that hangdoc saw that host.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from hangdoc.analysis import Case, Key
from hangdoc.analysis.facts import Facts
from hangdoc.analysis.ranks.progress import looks_at
from hangdoc.evidence import FlightRecorder
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.formatting import fold_hosts

WINDOW_S = 600.0  # older samples are not drawn
MAX_LANES = 14
MAX_SITES = 8  # distinct sites; with more, a lane holds all ranks of one phase
MAX_EVENTS = 30

Member = tuple[int | None, int | None]  # rank, PID
Mix = tuple[tuple[str, float], ...]  # phase and share of the ranks in it (0 to 1), largest first
Kind = tuple[str, str | None, str | None]  # phase, operation, site


@dataclass(frozen=True, slots=True)
class Span:
    """From one sample to the next, in negative seconds before the host was last seen."""

    start_s: float
    end_s: float
    mix: Mix


@dataclass(frozen=True, slots=True)
class Lane:
    """Ranks in the same final state, and their history."""

    members: tuple[Member, ...]
    hosts: tuple[str, ...]  # hosts with the same history; drawn on the clock of the first
    phase: str
    op: str | None
    site: str | None
    spans: tuple[Span, ...]
    marks: tuple[float, ...] = ()  # log lines, in negative seconds before the host was last seen
    beats: tuple[float, ...] = ()  # operations started, from the Flight Recorder, likewise
    blamed: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """Log lines with the same text, except for numbers."""

    kind: str
    text: str  # text of the first line
    source: str
    line: int
    members: tuple[Member, ...]
    hosts: tuple[str, ...]
    count: int
    at: float | None = None  # Unix time on the host's clock; None: several hosts, or a line without time


@dataclass(frozen=True, slots=True)
class Timeline:
    lanes: tuple[Lane, ...] = ()
    more_lanes: int = 0
    window_s: float = 0.0  # length of the lanes
    events: tuple[Event, ...] = ()
    more_events: int = 0


@dataclass(slots=True)
class _Clock:
    """Moments of one host, in Unix time on its own clock."""

    times: dict[float, float]  # Unix time of its snapshots by their monotonic time
    last: float | None = None

    def saw(self, at: float) -> None:
        self.last = at if self.last is None else max(self.last, at)


@dataclass(slots=True)
class _Row:
    """The log lines of an event."""

    first: LogEvent
    members: set[Member] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    count: int = 0


def timeline(facts: Facts, blamed: frozenset[Key]) -> Timeline:
    """The last minutes of the job; empty if no source has times."""
    case = facts.case
    clocks = {host: _Clock(times) for host, times in _times(case).items()}
    log_events = list(_log_events(case))
    for host, _, event in log_events:
        if event.at is not None:
            clocks[host].saw(event.at)
    begun = {key: _begun(case, key) for key in case.ranks}
    for key in case.ranks:
        clock = clocks[key[0]]
        looks = {look.at_s for look in looks_at(case, key)}
        for at in (*(clock.times[look] for look in looks & clock.times.keys()), *begun[key]):
            clock.saw(at)
    lanes = _lanes(facts, blamed, clocks, _marks(log_events, clocks), begun)
    shown = lanes[:MAX_LANES]
    ages = [-age for lane in shown for age in (*(span.start_s for span in lane.spans), *lane.marks, *lane.beats)]
    events = _events(case, log_events)
    half = MAX_EVENTS // 2  # the first and the last events
    kept = events if len(events) <= MAX_EVENTS else events[:half] + events[-half:]
    more = len(events) - len(kept)
    return Timeline(tuple(shown), len(lanes) - len(shown), max(ages, default=0.0), tuple(kept), more)


def _times(case: Case) -> dict[str, dict[float, float]]:
    found: dict[str, dict[float, float]] = {key[0]: {} for key in case.ranks}
    for shot in case.history:
        times = found.setdefault(shot.host, {})
        if (at := _unix(shot.time)) is not None:
            times[shot.at_s] = at
    return found


def _unix(time: str) -> float | None:
    try:
        read = datetime.fromisoformat(time.replace("Z", "+00:00"))
        return (read if read.tzinfo else read.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None


def _log_events(case: Case) -> Iterator[tuple[str, Key | None, LogEvent]]:
    """Every recognized log line with its host and, if known, the rank that wrote it."""
    for key in case.ranks:
        logs = case.record(key, "logs")
        for one in logs.said if isinstance(logs, Logs) else ():
            yield key[0], key, one
    seen: set[tuple[str, int, str]] = set()
    for shot in case.history:
        logs = shot.records.get("logs")
        for one in logs.said if isinstance(logs, Logs) else ():
            if (place := (one.source, one.line, one.kind)) not in seen:  # lines about the whole job: once
                seen.add(place)
                yield shot.host, None, one


def _marks(
    log_events: Sequence[tuple[str, Key | None, LogEvent]], clocks: Mapping[str, _Clock]
) -> dict[Key, list[float]]:
    found: dict[Key, list[float]] = defaultdict(list)
    for host, key, event in log_events:
        last = clocks[host].last
        if key is not None and event.at is not None and last is not None and last - event.at <= WINDOW_S:
            found[key].append(event.at - last)
    return found


def _begun(case: Case, key: Key) -> tuple[float, ...]:
    """Start times of a rank's newest operations, from its Flight Recorder."""
    recorder = case.record(key, "recorder")
    return recorder.begun if isinstance(recorder, FlightRecorder) else ()


def _lanes(
    facts: Facts,
    blamed: frozenset[Key],
    clocks: Mapping[str, _Clock],
    marks: Mapping[Key, Sequence[float]],
    begun: Mapping[Key, Sequence[float]],
) -> list[Lane]:
    """Lanes with culprits first, then by size."""
    kinds: dict[Key, Kind] = {(r.host, r.pid): (r.stack.phase, r.stack.op, r.stack.site) for r in facts.ranks}
    if len(set(kinds.values())) > MAX_SITES:
        kinds = {key: (kind[0], None, None) for key, kind in kinds.items()}
    groups: dict[tuple[str, Kind, bool], list[Key]] = defaultdict(list)
    for key, kind in kinds.items():
        groups[key[0], kind, key in blamed].append(key)
    lanes: dict[object, Lane] = {}
    for (host, kind, guilty), keys in groups.items():
        spans = _spans(facts.case, keys, clocks[host])
        ticks = tuple(sorted({round(age, 1) for key in keys for age in marks.get(key, ())}))
        last = clocks[host].last or 0.0
        ages = {round(at - last, 1) for key in keys for at in begun[key] if last - at <= WINDOW_S}
        if not (spans or ticks or ages):
            continue
        members = tuple(member(facts.case, key) for key in keys)
        made = Lane(members, (host,), *kind, spans, ticks, tuple(sorted(ages)), guilty)
        same = (kind, guilty, tuple(span.mix for span in spans))
        first = lanes.setdefault(same, made)
        if first is not made:
            lanes[same] = replace(first, members=(*first.members, *members), hosts=(*first.hosts, host))
    return sorted(lanes.values(), key=lambda lane: (not lane.blamed, -len(lane.members), lane.hosts))


def member(case: Case, key: Key) -> Member:
    """Rank and PID for display; made-up PIDs (not positive) are left out."""
    return case.ranks[key].target.rank, key[1] if key[1] > 0 else None


def _spans(case: Case, keys: Sequence[Key], clock: _Clock) -> tuple[Span, ...]:
    seen: dict[float, Counter[str]] = defaultdict(Counter)
    for key in keys:
        for look in looks_at(case, key):
            at = clock.times.get(look.at_s)
            if at is not None and clock.last is not None and clock.last - at <= WINDOW_S:
                seen[at - clock.last][look.phase] += 1
    instants = sorted(seen)
    found: list[Span] = []
    for at, until in zip(instants, [*instants[1:], instants[-1]] if instants else [], strict=True):
        whole = seen[at].total()
        mix = tuple((phase, round(count / whole, 2)) for phase, count in seen[at].most_common())
        if found and found[-1].mix == mix:
            found[-1] = Span(found[-1].start_s, until, mix)
        else:
            found.append(Span(at, until, mix))
    return tuple(found)


def _events(case: Case, log_events: Sequence[tuple[str, Key | None, LogEvent]]) -> list[Event]:
    """Events by host and time; repeated lines, or lines of several ranks, are one event."""
    rows: dict[tuple[str, str], _Row] = {}
    for host, key, event in log_events:
        row = rows.setdefault((event.kind, re.sub(r"\d+", "0", event.text)), _Row(event))
        row.count += 1
        row.hosts.add(host)
        if key is not None:
            row.members.add(member(case, key))
    found = []
    for (kind, _), row in rows.items():
        first, hosts = row.first, tuple(sorted(row.hosts))
        at = first.at if len(hosts) == 1 else None
        found.append(Event(kind, first.text, first.source, first.line, _in_order(row.members), hosts, row.count, at))
    return sorted(found, key=lambda event: (fold_hosts(event.hosts), event.at is None, event.at or 0.0))


def _in_order(members: Iterable[Member]) -> tuple[Member, ...]:
    return tuple(sorted(members, key=lambda one: (one[0] is None, one[0] or 0, one[1] or 0)))
