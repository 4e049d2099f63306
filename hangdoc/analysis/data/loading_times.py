"""Analysis `loading_times`: which share of its steps a rank waits for data, by the times that the training loop prints.

Ranks in lockstep wait for the one whose batch comes last. If one rank waits far longer for its data than the others, it
delays them; if all wait alike, nobody is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.logs.log_events import JobLogs, job_logs
from hangdoc.analysis.thresholds import DATA_APART, DATA_WAIT_S, HALF, LEAST_WAIT_S, MOSTLY, PRINTED_STEPS
from hangdoc.evidence.logs import LogEvent


@dataclass(frozen=True, slots=True)
class LoadingTimeFacts:
    """One rank. None: no line shows its times."""

    share: float | None = None  # of the time of its steps
    data_s: float | None = None  # wait for the batch of a step, seconds
    late: bool | None = None  # it waits far longer for its data than the other ranks
    text: str | None = None  # the last line


@dataclass(frozen=True, slots=True)
class LoadingTimeJob:
    seen: bool = False  # a line shows such times
    share: float | None = None  # of the time of the steps, over all lines
    data_s: float | None = None  # wait for the batch of a step, seconds, over all lines
    steps: int = 0  # printed
    starving: bool = False  # most of the time of the steps is a wait for data
    surely: bool = False  # nearly all of it, over several lines
    text: str | None = None  # the last line


class LoadingTimeDetector(Detector[LoadingTimeFacts, LoadingTimeJob]):
    rank_facts = LoadingTimeFacts
    job_facts = LoadingTimeJob

    def derive(self, case: Case) -> tuple[dict[Key, LoadingTimeFacts], LoadingTimeJob]:
        logs = job_logs(case)
        if logs is None:
            return dict.fromkeys(case.ranks, LoadingTimeFacts()), LoadingTimeJob()
        waits = dict(logs.of_ranks("data_wait", "loading_time"))
        late = _late({key: _data_s(event) for key, event in waits.items()})
        facts = {key: _facts(waits.get(key), key in late if waits else None) for key in case.ranks}
        return facts, _job(logs)


def _facts(event: LogEvent | None, late: bool | None) -> LoadingTimeFacts:
    if event is None:
        return LoadingTimeFacts()
    step = float(event.fields.get("step", 0))
    share = float(event.fields["data"]) / step if step else None
    return LoadingTimeFacts(share, _data_s(event), late, event.text)


def _data_s(event: LogEvent) -> float:
    steps = int(event.fields.get("steps", 2)) - 1
    return float(event.fields["data"]) / max(steps, 1)


def _late(waits: dict[Key, float]) -> frozenset[Key]:
    """The ranks that wait far longer than most; empty where half of them do."""
    if len(waits) < 2:
        return frozenset()
    usual = min(waits.values()) if len(waits) == 2 else median(waits.values())
    late = {
        key
        for key, data_s in waits.items()
        if data_s >= DATA_WAIT_S and data_s >= DATA_APART * max(usual, LEAST_WAIT_S)
    }
    return frozenset(late) if 2 * len(late) <= len(waits) else frozenset()


def _job(logs: JobLogs) -> LoadingTimeJob:
    events = list(logs.all("loading_time"))
    data, step = (sum(float(event.fields[name]) for event in events) for name in ("data", "step"))
    steps = sum(int(event.fields["steps"]) for event in events)
    counted = steps - len(events)  # without the first of each rank
    if not events or step <= 0 or counted < 1:
        return LoadingTimeJob(bool(events))
    share, data_s = data / step, data / counted
    starving = share >= HALF and data_s >= DATA_WAIT_S
    return LoadingTimeJob(
        True, share, data_s, steps, starving, starving and share >= MOSTLY and counted >= PRINTED_STEPS, events[-1].text
    )


ANALYSIS = LoadingTimeDetector()
