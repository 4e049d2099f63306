"""Values that ranks print and that replicas must have in common: checksums and norms of weights, the checkpoint that
they resumed from, the world size; and the times of their own work, which should be alike.

Parts of a sharded model have norms of their own, and a float is summed in any order: a norm counts only if it differs
by more than rounding explains, and every line is of the same step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from statistics import median

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.logs.log_events import JobLogs, job_logs, number
from hangdoc.analysis.thresholds import AT_ONE_PLACE, COMPARABLE_RANKS, MUCH_MORE_CPU, ROUNDING

PRINTED = "printed"  # kind of event
SECONDS, METRIC = "seconds", "metric"  # begin of the names of times, and of results
ALONE = "world size 1"  # its name, if the line says that the process is the only one


@dataclass(frozen=True, slots=True)
class PrintedFacts:
    """One rank. None: nothing that it printed can be compared."""

    odd: bool | None = None  # most ranks printed another value
    value: str | None = None  # what it printed: "weights sha1 41d07a"
    slow: str | None = None  # its own work takes longer than that of its peers: "compute 8.8 s, 0.92 s on other ranks"


@dataclass(frozen=True, slots=True)
class PrintedJob:
    """All ranks."""

    apart: str | None = None  # name of a value in which ranks differ: "weights sha1"
    step: int | None = None  # of these lines
    exact: bool = False  # a checksum or a checkpoint, not a number that is rounded
    usual: str | None = None  # the value of most ranks; None: there is none
    alone: int = 0  # ranks that print a world size of 1, if there are several


class PrintedDetector(Detector[PrintedFacts, PrintedJob]):
    rank_facts = PrintedFacts
    job_facts = PrintedJob

    def derive(self, case: Case) -> tuple[dict[Key, PrintedFacts], PrintedJob]:
        nothing = dict.fromkeys(case.ranks, PrintedFacts())
        logs = job_logs(case)
        if logs is None:
            return nothing, PrintedJob()
        alone = {key for key, event in logs.of_ranks(PRINTED) if event.fields.get("name") == ALONE}
        found = PrintedJob(alone=len(alone) if len(alone) > 1 else 0)
        slow = _slow(logs)
        nothing |= {key: PrintedFacts(slow=text) for key, text in slow.items()}
        for (name, step), values in sorted(_by_name(logs).items(), key=lambda item: -(item[0][1] or 0)):
            if len(values) < 2 or name.startswith(SECONDS) or not _differ(values):
                continue
            (usual, count), *others = Counter(values.values()).most_common()
            # Ranks that each evaluate a part of the data differ everywhere.
            if name.startswith(METRIC) and (count < COMPARABLE_RANKS or count < AT_ONE_PLACE * len(values)):
                continue
            name = name.removeprefix(METRIC).lstrip()
            majority = bool(others) and count > max(1, others[0][1])
            found = PrintedJob(name, step, not _is_float(usual), usual if majority else None, found.alone)
            return nothing | {
                key: PrintedFacts(value != usual if majority else None, f"{name} {value}", slow.get(key))
                for key, value in values.items()
            }, found
        return nothing, found


def _by_name(logs: JobLogs) -> Mapping[tuple[str, int | None], dict[Key, str]]:
    """Value of each rank, by name and step."""
    found: dict[tuple[str, int | None], dict[Key, str]] = defaultdict(dict)
    for key, event in logs.of_ranks(PRINTED):
        if event.fields.get("name", ALONE) != ALONE and "value" in event.fields:
            found[event.fields["name"], number(event, "step")][key] = event.fields["value"]
    return found


def _slow(logs: JobLogs) -> dict[Key, str]:
    """Ranks whose own work takes longer than that of most of their peers, in the newest lines that show it."""
    for (name, _), values in sorted(_by_name(logs).items(), key=lambda item: -(item[0][1] or 0)):
        if not name.startswith(SECONDS) or len(values) < COMPARABLE_RANKS:
            continue
        usual = median(map(float, values.values()))
        slow = {key: float(value) for key, value in values.items() if float(value) >= MUCH_MORE_CPU * usual > 0}
        if 0 < len(slow) < len(values) / 2:
            what = name.removeprefix(SECONDS).removeprefix(" of ") or "its part"
            return {key: f"{what} {value:.2g} s, {usual:.2g} s on other ranks" for key, value in slow.items()}
    return {}


def _differ(values: Mapping[Key, str]) -> bool:
    """True if the values differ, numbers by more than rounding."""
    if not all(map(_is_float, values.values())):
        return len(set(values.values())) > 1
    numbers = [float(value) for value in values.values()]
    return max(numbers) - min(numbers) > ROUNDING * max(map(abs, numbers))


def _is_float(value: str) -> bool:
    try:
        return isfinite(float(value)) and "." in value
    except ValueError:
        return False


ANALYSIS = PrintedDetector()
