"""Analysis `recorder`: how many collectives each rank has begun, by its Flight Recorder where one could be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.evidence import FlightRecorder, Recorded


@dataclass(frozen=True, slots=True)
class RecorderFacts:
    """One rank in the group that most ranks are recorded in; None: no Flight Recorder was readable."""

    sequence: int | None = None  # collectives it has begun
    last: str | None = None  # the newest of them: "collective 20, barrier"
    last_others: str | None = None  # what most ranks began last
    behind: bool | None = None  # it has begun fewer than another rank
    differs: bool | None = None  # at the same number it began another operation, or one of other sizes, than most


@dataclass(slots=True)
class RecorderAnalysis:
    name: str = "recorder"
    order: int = 52
    rank_facts: type | None = RecorderFacts
    job_facts: type | None = None

    def derive(self, case: Case) -> tuple[dict[Key, RecorderFacts], None]:
        newest = {key: last for key in case.ranks if (last := _newest(case.record(key, "recorder"))) is not None}
        common = Counter(entry.group for entry in newest.values()).most_common(1)
        here = {key: entry for key, entry in newest.items() if entry.group == common[0][0]} if common else {}
        return {key: _facts(key, here) for key in case.ranks}, None


def _newest(record: object) -> Recorded | None:
    entries = [entry for entry in record.entries if not entry.p2p] if isinstance(record, FlightRecorder) else []
    return max(entries, key=lambda entry: entry.sequence, default=None)


def _facts(key: Key, here: Mapping[Key, Recorded]) -> RecorderFacts:
    mine = here.get(key)
    if mine is None or len(here) < 2:
        return RecorderFacts()
    front = max(entry.sequence for entry in here.values())
    level = Counter(_call(entry) for entry in here.values() if entry.sequence == mine.sequence)
    often = level.most_common(1)[0]
    return RecorderFacts(
        sequence=mine.sequence,
        last=_told(mine),
        last_others=Counter(_told(entry) for other, entry in here.items() if other != key).most_common(1)[0][0],
        behind=mine.sequence < front,
        differs=_call(mine) != often[0] and level[_call(mine)] < often[1],
    )


def _call(entry: Recorded) -> tuple[str, str, tuple[str, ...]]:
    return entry.op, entry.sizes, entry.dtypes


def _told(entry: Recorded) -> str:
    return f"collective {entry.sequence}, {entry.op}{' ' + entry.sizes if entry.sizes else ''}"


ANALYSIS = RecorderAnalysis()
