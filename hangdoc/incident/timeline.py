"""When the ranks did what: lanes of like ranks over the last minutes, and what their logs said meanwhile.

Clocks of two hosts are never compared: each lane is drawn by the clock of its own host, backwards from the last moment
that was seen of that host.
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

WINDOW_S = 600.0  # what is older is not drawn
MOST_LANES = 14
MOST_SITES = 8  # different places at which ranks stand; where there are more, a lane is all ranks of a phase
MOST_EVENTS = 30

Member = tuple[int | None, int | None]  # rank, PID
Mix = tuple[tuple[str, float], ...]  # phase and the share of the ranks in it (0..1), largest first
Kind = tuple[str, str | None, str | None]  # phase, operation, place


@dataclass(frozen=True, slots=True)
class Span:
    """From one look to the next; negative seconds from the last moment seen of that host."""

    start_s: float
    end_s: float
    mix: Mix


@dataclass(frozen=True, slots=True)
class Lane:
    """Ranks that ended up doing the same, and what they did before."""

    members: tuple[Member, ...]
    hosts: tuple[str, ...]  # all whose ranks did the same one after the other; drawn by the clock of the first
    phase: str
    op: str | None
    site: str | None
    spans: tuple[Span, ...]
    marks: tuple[float, ...] = ()  # lines of their logs, negative seconds from the last moment
    beats: tuple[float, ...] = ()  # operations that they began, as their Flight Recorders have it, likewise
    blamed: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """Lines of logs that say the same."""

    kind: str
    text: str  # of the first of them
    source: str
    line: int
    members: tuple[Member, ...]
    hosts: tuple[str, ...]
    count: int
    at: float | None = None  # Unix time by that host's clock; None: of several hosts, or the line does not say


@dataclass(frozen=True, slots=True)
class Timeline:
    lanes: tuple[Lane, ...] = ()
    more_lanes: int = 0
    window_s: float = 0.0  # how far back the lanes go
    events: tuple[Event, ...] = ()
    more_events: int = 0


@dataclass(slots=True)
class _Clock:
    """What happened when on one host, in Unix time by its own clock."""

    times: dict[float, float]  # of its snapshots, by their monotonic instants
    last: float | None = None

    def saw(self, at: float) -> None:
        self.last = at if self.last is None else max(self.last, at)


@dataclass(slots=True)
class _Row:
    """The lines that make an event."""

    first: LogEvent
    members: set[Member] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    count: int = 0


def timeline(facts: Facts, blamed: frozenset[Key]) -> Timeline:
    """The last minutes of the job; empty where no source says when it was."""
    case = facts.case
    clocks = {host: _Clock(times) for host, times in _times(case).items()}
    said = list(_said(case))
    for host, _, one in said:
        if one.at is not None:
            clocks[host].saw(one.at)
    begun = {key: _begun(case, key) for key in case.ranks}
    for key in case.ranks:
        clock = clocks[key[0]]
        looks = {look.at_s for look in looks_at(case, key)}
        for at in (*(clock.times[look] for look in looks & clock.times.keys()), *begun[key]):
            clock.saw(at)
    lanes = _lanes(facts, blamed, clocks, _marks(said, clocks), begun)
    shown = lanes[:MOST_LANES]
    ages = [-age for lane in shown for age in (*(span.start_s for span in lane.spans), *lane.marks, *lane.beats)]
    events = _events(case, said)
    half = MOST_EVENTS // 2  # how it began and how it ended
    told = events if len(events) <= MOST_EVENTS else events[:half] + events[-half:]
    more = len(events) - len(told)
    return Timeline(tuple(shown), len(lanes) - len(shown), max(ages, default=0.0), tuple(told), more)


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


def _said(case: Case) -> Iterator[tuple[str, Key | None, LogEvent]]:
    """Every line that means something, with its host and, where it is known, the rank that wrote it."""
    for key in case.ranks:
        logs = case.record(key, "logs")
        for one in logs.said if isinstance(logs, Logs) else ():
            yield key[0], key, one
    told: set[tuple[str, int, str]] = set()
    for shot in case.history:
        logs = shot.records.get("logs")
        for one in logs.said if isinstance(logs, Logs) else ():
            if (place := (one.source, one.line, one.kind)) not in told:  # what was said of the whole job: once
                told.add(place)
                yield shot.host, None, one


def _marks(said: Sequence[tuple[str, Key | None, LogEvent]], clocks: Mapping[str, _Clock]) -> dict[Key, list[float]]:
    found: dict[Key, list[float]] = defaultdict(list)
    for host, key, one in said:
        last = clocks[host].last
        if key is not None and one.at is not None and last is not None and last - one.at <= WINDOW_S:
            found[key].append(one.at - last)
    return found


def _begun(case: Case, key: Key) -> tuple[float, ...]:
    """When a rank began its newest operations, as its Flight Recorder has it."""
    recorder = case.record(key, "recorder")
    return recorder.begun if isinstance(recorder, FlightRecorder) else ()


def _lanes(
    facts: Facts,
    blamed: frozenset[Key],
    clocks: Mapping[str, _Clock],
    marks: Mapping[Key, Sequence[float]],
    begun: Mapping[Key, Sequence[float]],
) -> list[Lane]:
    """Those with culprits first, then the largest."""
    kinds: dict[Key, Kind] = {(r.host, r.pid): (r.stack.phase, r.stack.op, r.stack.site) for r in facts.ranks}
    if len(set(kinds.values())) > MOST_SITES:
        kinds = {key: (kind[0], None, None) for key, kind in kinds.items()}
    alike: dict[tuple[str, Kind, bool], list[Key]] = defaultdict(list)
    for key, kind in kinds.items():
        alike[key[0], kind, key in blamed].append(key)
    lanes: dict[object, Lane] = {}
    for (host, kind, guilty), keys in alike.items():
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
    """A rank as people name it; the PID of a process that is not known is made up, and left out."""
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


def _events(case: Case, said: Sequence[tuple[str, Key | None, LogEvent]]) -> list[Event]:
    """By host and time; the same said by many ranks or often is one event."""
    rows: dict[tuple[str, str], _Row] = {}
    for host, key, one in said:
        row = rows.setdefault((one.kind, re.sub(r"\d+", "0", one.text)), _Row(one))
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
