"""Analysis `recompiles`: ranks whose log shows that torch.compile compiles the same code again in step after step.

A few recompilations at the start are healthy: dynamic shapes, branches seen for the first time. They count if torch
had compiled the function several times before, and if the steps with one take much longer than the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.logs.log_events import JobLogs, job_logs, number
from hangdoc.analysis.thresholds import RECOMPILATIONS, RECOMPILING_COUNTED, RECOMPILING_SLOWS
from hangdoc.evidence.logs import LogEvent

_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?(?:e[+-]?\d{1,2})?")
KIND, PACE = "recompiled", "step_pace"


@dataclass(frozen=True, slots=True)
class RecompilesFacts:
    """One rank. None: its log shows none."""

    again: bool | None = None  # it compiles code again and again that it had compiled several times before
    uncompiled: bool | None = None  # it reached the limit, and not all ranks did: a function runs uncompiled since then
    line: str | None = None  # the last line about it


@dataclass(frozen=True, slots=True)
class RecompilesJob:
    """None or False: no log shows it."""

    again: bool = False  # a rank compiles again and again, whether or not a line names it
    everywhere: bool = False  # every known rank does, or no line names a rank
    line: str | None = None  # the last line about it
    recompiling_s: float | None = None  # median time of the steps with a recompilation, if these are the slow ones
    usual_s: float | None = None  # median time of the other steps


class RecompilesDetector(Detector[RecompilesFacts, RecompilesJob]):
    rank_facts = RecompilesFacts
    job_facts = RecompilesJob

    def derive(self, case: Case) -> tuple[dict[Key, RecompilesFacts], RecompilesJob]:
        nothing = dict.fromkeys(case.ranks, RecompilesFacts())
        logs = job_logs(case)
        if logs is None:
            return nothing, RecompilesJob()
        by_rank = {key: [event for event in events if event.kind == KIND] for key, events in logs.ranks.items()}
        again = {key: events[-1].text for key, events in by_rank.items() if _again(events)}
        once = {key for key, events in by_rank.items() if _late(events)}  # the text may show few of its lines
        unowned = [event for _, event in logs.unattributed if event.kind == KIND]
        every = [*unowned, *(event for events in by_rank.values() for event in events)]
        limited = {key: text for key, events in by_rank.items() if (text := _limit(events)) is not None}
        if len(limited) == len(by_rank) > 1 or _limit(unowned):
            limited = {}  # all ranks reached it, or perhaps all
        facts = {
            key: RecompilesFacts(key in again or None, key in limited or None, limited.get(key, again.get(key)))
            for key in again | limited
        }
        if not again and not _again(every):
            return nothing | facts, RecompilesJob()
        line = next(iter(again.values()), every[-1].text)
        usual, slow = _pace(logs)
        return nothing | facts, RecompilesJob(True, not again or once >= set(logs.keys.values()), line, slow, usual)


def _again(events: list[LogEvent]) -> bool:
    """True if functions were compiled again that had been compiled several times."""
    return len(_late(events)) >= RECOMPILING_COUNTED


def _limit(events: list[LogEvent]) -> str | None:
    """The last line that says that the limit of recompilations is reached."""
    return next((event.text for event in reversed(events) if "limit" in event.fields), None)


def _late(events: list[LogEvent]) -> set[tuple[str | None, str | None]]:
    """The compilations, by frame and count, of functions that had been compiled several times."""
    return {
        (event.fields.get("frame"), event.fields.get("count"))
        for event in events
        if (number(event, "count") or 0) >= RECOMPILATIONS
    }


def _pace(logs: JobLogs) -> tuple[float | None, float | None]:
    """Median seconds of the usual steps, and of those with a recompilation, if they are much longer."""
    for event in logs.all(PACE):
        usual, slow = _seconds(event, "usual_s"), _seconds(event, "recompiling_s")
        if usual is not None and slow is not None and slow >= RECOMPILING_SLOWS * usual:
            return usual, slow
    return None, None


def _seconds(event: LogEvent, name: str) -> float | None:
    value = event.fields.get(name, "")
    return float(value) if _NUMBER.fullmatch(value) else None


ANALYSIS = RecompilesDetector()
