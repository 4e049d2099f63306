"""Analysis `headcounts`: hosts on which fewer processes of the job run than on the others, by what people counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.logs.log_events import job_logs, numbers
from hangdoc.evidence.logs import LogEvent

KIND = "process_count"
MAX_SUSPECTS = 256


@dataclass(frozen=True, slots=True)
class HeadcountsJob:
    """None or empty: nobody counted, or the counts are equal."""

    text: str | None = None  # "0 processes on n3, 4 on n0, n1, n2"
    short: tuple[Suspect, ...] = ()  # ranks, or hosts, without a process: their host has none, or fewer than the others
    come: int = 0  # processes on all hosts that were counted
    whole: bool = False  # as many as the job has ranks


class HeadcountsDetector(Detector[object, HeadcountsJob]):
    job_facts = HeadcountsJob

    def derive(self, case: Case) -> tuple[dict[Key, object], HeadcountsJob]:
        logs = job_logs(case)
        event = next(logs.all(KIND), None) if logs else None
        counts = {host: int(count) for host, count in _pairs(event, "counts") if count.isdecimal()}
        if logs is None or event is None or len(counts) < 2:
            return {}, HeadcountsJob()
        come, usual = sum(counts.values()), max(counts.values())
        short = [host for host, count in counts.items() if count < usual]
        if come == logs.named:
            return {}, HeadcountsJob(come=come, whole=True)
        # Where most hosts have fewer than one of them, that one may run something else as well.
        if not short or 2 * len(short) > len(counts):
            return {}, HeadcountsJob(come=come)
        ranks = dict(_pairs(event, "ranks"))
        found = [one for host in short for one in _missing(host, counts[host], ranks.get(host, ""))]
        return {}, HeadcountsJob(_sides(counts, short), tuple(found)[:MAX_SUSPECTS], come)


def _pairs(event: LogEvent | None, name: str) -> list[tuple[str, str]]:
    """The hosts in a field, and what belongs to each: `n0=4 n1=4`."""
    parts = (part.partition("=") for part in (event.fields.get(name, "") if event else "").split())
    return [(host, value) for host, _, value in parts]


def _missing(host: str, count: int, ranks: str) -> list[Suspect]:
    """The ranks of a host without any process; else the host."""
    known = numbers(ranks)
    return [Suspect(None, None, host)] if count or not known else [Suspect(rank, None, host) for rank in known]


def _sides(counts: Mapping[str, int], short: list[str]) -> str:
    """Who has how many, the few first."""
    usual = Counter(count for host, count in counts.items() if host not in short).most_common(1)[0][0]
    few = ", ".join(f"{counts[host]} on {host}" for host in short[:4])
    others = [host for host, count in counts.items() if count == usual]
    return f"processes: {few}; {usual} on {', '.join(others[:4])}"[:300]


ANALYSIS = HeadcountsDetector()
