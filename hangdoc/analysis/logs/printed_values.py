"""Values that ranks print and that replicas must have in common: checksums and norms of weights, the checkpoint that
they resumed from, the world size; and the times of their own work, which should be alike.

Parts of a sharded model have norms of their own, and a float is summed in any order: a norm counts only if it differs
by more than rounding explains, and every line is of the same step.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from statistics import median

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.logs.counters import FAREWELL, counts_from_different_starts
from hangdoc.analysis.logs.figures import ranks_alike
from hangdoc.analysis.logs.log_events import JobLogs, job_logs, number
from hangdoc.analysis.thresholds import AT_ONE_PLACE, COMPARABLE_RANKS, MUCH_MORE_CPU, ROUNDING
from hangdoc.evidence.logs import LogEvent

PRINTED = "printed"  # kind of event
SECONDS, METRIC = "seconds", "metric"  # begin of the names of times, and of results
FINITE, NONFINITE = "finite", "nonfinite"  # begin of the names of losses and of norms of gradients
SETTINGS = ("setting", "model setting")  # begin of the names of what a job, and what a model, has once
SAMPLES = "samples"
OWN = (SAMPLES, "data", "loss before the reduction")  # names of what ranks should not have in common
SEED = "seed of the sampler"  # its name: of one that splits the samples among the ranks
CHECKPOINT = "checkpoint"  # its name: where a rank resumed from
ALONE = "world size 1"  # its name, if the line says that the process is the only one
MAX_SHOWN = 8  # ranks in a text


@dataclass(frozen=True, slots=True)
class PrintedFacts:
    """One rank. None: nothing that it printed can be compared."""

    odd: bool | None = None  # most ranks printed another value, or half of them a later checkpoint
    value: str | None = None  # what it printed: "weights sha1 41d07a"
    nonfinite: str | None = None  # its loss has no value, while those of most ranks have: "local loss nan at step 1841"
    slow: str | None = None  # its own work takes longer than that of its peers: "compute 8.8 s, 0.92 s on other ranks"


@dataclass(frozen=True, slots=True)
class PrintedJob:
    """All ranks."""

    apart: str | None = None  # name of a value in which ranks differ: "weights sha1"
    step: int | None = None  # of these lines
    restarted: bool = False  # it is the step, which they count from different starts
    exact: bool = False  # a checksum or a checkpoint, not a number that is rounded
    usual: str | None = None  # the value of most ranks, or the later of two checkpoints; None: there is none
    alike: tuple[Suspect, ...] = ()  # ranks of which a figure shows that they hold what the odd ones hold
    apart_runs: bool = False  # nothing shows that those of `alone` belong to one job: no rank, no launcher
    same: str | None = None  # what each rank should have of its own, and all have in common: "samples 14, 3, 9"
    seeds: str | None = None  # of the samplers that split the samples, if they differ: "7 on rank 0, 8 on rank 1"
    alone: int = 0  # processes that print a world size of 1, if there are several


class PrintedDetector(Detector[PrintedFacts, PrintedJob]):
    rank_facts = PrintedFacts
    job_facts = PrintedJob

    def derive(self, case: Case) -> tuple[dict[Key, PrintedFacts], PrintedJob]:
        nothing = dict.fromkeys(case.ranks, PrintedFacts())
        logs = job_logs(case)
        if logs is None:
            return nothing, PrintedJob()
        alone = {key for key, event in logs.of_ranks(PRINTED) if event.fields.get("name") == ALONE}
        unnumbered = max((number(event, "processes") or 0 for event in logs.all("alone")), default=0)
        tasks = max((number(event, "tasks") or 0 for event in logs.all("alone")), default=0)
        several = len(alone) > 1
        found = PrintedJob(alone=len(alone) if several else unnumbered, apart_runs=not several and not tasks)
        slow, nonfinite = _slow(logs), _nonfinite(logs)
        nothing |= {key: PrintedFacts(None, None, nonfinite.get(key), slow.get(key)) for key in {*slow, *nonfinite}}
        found = replace(found, same=_same(logs), seeds=_seeds(case, logs))
        for (name, step, _), values in sorted(_by_name(logs).items(), key=lambda item: -(item[0][1] or 0)):
            if len(values) < 2 or name.startswith((SECONDS, FINITE, NONFINITE, SEED, *OWN)) or not _differ(values):
                continue
            (usual, count), *others = Counter(values.values()).most_common()
            # A job has one setting: with a third value, each rank has its own by design, as its part of a model.
            if name.startswith(SETTINGS) and (len(others) > 1 or count == len(values) - count > 1):
                continue
            # Ranks that each evaluate a part of the data differ everywhere.
            if name.startswith(METRIC) and (count < COMPARABLE_RANKS or count < AT_ONE_PLACE * len(values)):
                continue
            for begin in (METRIC, *SETTINGS):
                name = name.removeprefix(begin).lstrip()
            majority = bool(others) and count > max(1, others[0][1])
            if name == CHECKPOINT and not majority and (newer := _newer(values.values())):
                majority, usual = True, newer  # the other side kept an older file
            odd = {case.ranks[key].target.rank: value != usual for key, value in values.items() if majority}
            alike = tuple(Suspect(rank) for rank in ranks_alike(case, odd))
            common = usual if majority else None
            found = replace(found, apart=name, step=step, exact=not _is_float(usual), usual=common, alike=alike)
            return nothing | {
                key: PrintedFacts(
                    value != usual if majority else None, f"{name} {value}", nonfinite.get(key), slow.get(key)
                )
                for key, value in values.items()
            }, found
        if counts := counts_from_different_starts(logs):
            tally = Counter(counts.values())
            most = max(tally, key=lambda at: (tally[at], at))  # if as many resumed as began anew, the higher count
            return nothing | {
                logs.keys[rank]: PrintedFacts(at != most, f"step {at}", nonfinite.get(logs.keys[rank]))
                for rank, at in counts.items()
            }, replace(found, apart="step", restarted=True, usual=str(most))
        return nothing, found


def _newer(points: Iterable[str]) -> str | None:
    """The later one of the two points from which ranks resumed, such as `step 46000`; None: they are not two."""
    numbers = {point: [int(number) for number in re.findall(r"\d{1,9}", point)] for point in points}
    two = len(numbers) == 2 and len({re.sub(r"\d+", "#", point) for point in numbers}) == 1
    return max(numbers, key=lambda point: numbers[point]) if two else None


def _by_name(logs: JobLogs) -> Mapping[tuple[str, int | None, str], dict[Key, str]]:
    """Value of each rank, by name, step and form of the line."""
    found: dict[tuple[str, int | None, str], dict[Key, str]] = defaultdict(dict)
    for key, event in logs.of_ranks(PRINTED):
        if event.fields.get("name", ALONE) not in (ALONE, FAREWELL) and "value" in event.fields:
            fields = event.fields
            found[fields["name"], number(event, "step"), fields.get("form", "")][key] = fields["value"]
    return found


def _same(logs: JobLogs) -> str | None:
    """What all ranks print alike although each should have its own: their samples, or several losses in a row.

    Nothing, if they differ as often: a batch may be shared for once, such as that of a warm-up. Several in a row are
    not, whatever another run in the text shows.
    """
    equal: dict[str, list[str]] = defaultdict(list)
    apart: Counter[str] = Counter()
    for (name, *_), values in _by_name(logs).items():
        if name in OWN and len(values) > 1:
            if len(set(values.values())) > 1:
                apart[name] += 1
            elif len(values) >= min(COMPARABLE_RANKS, len(logs.keys)):
                equal[name].append(next(iter(values.values())))
    for name, values_of in equal.items():
        several = len(set(values_of)) > 1
        if (several and len(values_of) > apart[name]) or (name == SAMPLES and not apart[name]):  # else by design
            return f"{name}: {values_of[0]}"
    return None


def _seeds(case: Case, logs: JobLogs) -> str | None:
    """The seeds of the samplers that split the samples, each with its ranks, if they differ."""
    for (name, *_), values in _by_name(logs).items():
        if name != SEED or len(set(values.values())) < 2:
            continue
        ranks = {case.ranks[key].target.rank: seed for key, seed in values.items()}
        numbered = sorted((rank, seed) for rank, seed in ranks.items() if rank is not None)
        return ", ".join(f"{seed} on rank {rank}" for rank, seed in numbered[:MAX_SHOWN])
    return None


def _slow(logs: JobLogs) -> dict[Key, str]:
    """Ranks whose own work takes longer than that of most of their peers, in the newest lines that show it."""
    for (name, *_), values in sorted(_by_name(logs).items(), key=lambda item: -(item[0][1] or 0)):
        if not name.startswith(SECONDS) or len(values) < COMPARABLE_RANKS:
            continue
        usual = median(map(float, values.values()))
        slow = {key: float(value) for key, value in values.items() if float(value) >= MUCH_MORE_CPU * usual > 0}
        if 0 < len(slow) < len(values) / 2:
            what = name.removeprefix(SECONDS).removeprefix(" of ") or "its part"
            return {key: f"{what} {value:.2g} s, {usual:.2g} s on other ranks" for key, value in slow.items()}
    return {}


def _nonfinite(logs: JobLogs) -> dict[Key, str]:
    """Ranks whose loss, or norm of gradients, became nan or infinite first and stayed so, while most printed numbers.

    Losses that a scaler skips are infinite for a step or two. What all ranks have in common is nan on all of them: so
    several others must have printed a number at that step, or later. A reduction then spreads it to them.
    """
    ranked = set(logs.keys.values())
    found: dict[str, dict[Key, dict[str, LogEvent]]] = defaultdict(lambda: defaultdict(dict))
    for key, event in logs.of_ranks(PRINTED):
        begin, _, name = event.fields.get("name", "").partition(" ")
        if begin in (FINITE, NONFINITE) and key in ranked:
            found[name][key][begin] = event
    for name, by_rank in found.items():
        bad = {key: seen[NONFINITE] for key, seen in by_rank.items() if NONFINITE in seen}
        lasting = {
            key: event
            for key, event in bad.items()
            if FINITE not in by_rank[key] or _is_after(event, by_rank[key][FINITE])
        }
        first = {key: one for key, one in lasting.items() if all(_is_after(other, one) for other in lasting.values())}
        others = [seen[FINITE] for key, seen in by_rank.items() if key not in first and FINITE in seen]
        shown = [one for one in others if all(_is_after(one, event) for event in first.values())]
        unclear = sum(key not in first for key in bad) + len(first) - len(shown)
        if first and len(shown) + len(first) >= COMPARABLE_RANKS and len(shown) > len(first) and unclear < len(shown):
            return {key: f"{name} {event.fields.get('value', '')}{_step_text(event)}" for key, event in first.items()}
    return {}


def _is_after(one: LogEvent, other: LogEvent) -> bool:
    """True if a line is of the step of another one, or of a later one; without steps, if it is not above it."""
    at, before = number(one, "step"), number(other, "step")
    if at is not None and before is not None:
        return at >= before
    return at is None and before is None and one.line >= other.line


def _step_text(event: LogEvent) -> str:
    step = number(event, "step")
    return f" at step {step}" if step is not None else ""


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
