"""What comes back: the same interface, host, script line or playbook in earlier incidents."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from hangdoc.incident.record import IncidentRecord
from hangdoc.incident.store import parse_time

WINDOW = timedelta(days=30)  # a month: a weekly job fails four times in it
OF_HOST = frozenset({"host_fault", "network", "slow_compute"})  # classes for which a host may be to blame
NOUNS = {"stalled": "stall", "failed": "failure", "slow": "slowdown", "diverging": "divergence"}
ORDINALS = ("", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
LONGEST = 120  # characters of a place


def recurrence(record: IncidentRecord, others: Collection[IncidentRecord]) -> str:
    """ "third stall on node17's eth1 in 6 days": the most specific place that earlier incidents share; "" if none."""
    now = parse_time(record.onset)
    if now is None or not record.verdicts:
        return ""
    past = [
        (begun, set(places(other.verdicts[-1])))
        for other in others
        if other.id != record.id
        and other.verdicts
        and (begun := parse_time(other.onset))
        and now - WINDOW <= begun <= now
    ]
    for place in places(record.verdicts[-1]):
        times = [begun for begun, known in past if place in known]
        if times:
            noun = NOUNS.get(record.status, "incident")
            return f"{_ordinal(len(times) + 1)} {noun} {place} in {_span(now, min(times))}"
    return ""


def places(verdict: Mapping[str, Any]) -> Iterator[str]:
    """Where the first finding of a verdict happened, most specific first: interface, host, script line, playbook."""
    finding = next(iter(_items(verdict, "findings")), None)
    if finding is None:
        return
    job = verdict.get("job")
    hosts = {line.get("rank"): line.get("host") for line in _items(job, "ranks")} if isinstance(job, Mapping) else {}
    found: list[str] = []
    for link in _items(finding, "links"):
        host, interface = hosts.get(link.get("from_rank")), link.get("interface")
        if host and interface:
            found.append(f"on {host}'s {interface}")
    culprits = _items(finding, "culprits")
    if finding.get("class") in OF_HOST:
        found += [f"on {one['host']}" for one in culprits if one.get("host")]
    found += [f"at {one['site']}" for one in culprits if one.get("site")]
    if finding.get("playbook"):
        found.append(f"of playbook {finding['playbook']}")
    yield from dict.fromkeys(" ".join(str(one).split())[:LONGEST] for one in found)


def _items(value: Any, name: str) -> list[Mapping[str, Any]]:
    found = value.get(name) if isinstance(value, Mapping) else None
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list | tuple) else []


def _ordinal(number: int) -> str:
    if number < len(ORDINALS):
        return ORDINALS[number]
    return f"{number}{'th' if number % 100 in (11, 12, 13) else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _span(now: datetime, first: datetime) -> str:
    """A time as people say it: `6 days`, `3 hours`, `20 minutes`; at least a minute."""
    whole = max((now - first).total_seconds(), 60.0)
    units = (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0))
    unit, size = next(one for one in units if whole >= one[1])
    count = round(whole / size)
    return f"{count} {unit}{'s' * (count != 1)}"
