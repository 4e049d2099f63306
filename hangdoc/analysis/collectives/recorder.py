"""Analysis `recorder`: how many collectives each rank has begun, by its Flight Recorder where one could be read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.evidence import FlightRecorder, RecordedCall

Call = tuple[str, str, tuple[str, ...]]  # operation, sizes, types


@dataclass(frozen=True, slots=True)
class RecorderFacts:
    """One rank in the group that most ranks are recorded in; None: no Flight Recorder was readable."""

    sequence: int | None = None  # collectives it has begun
    last: str | None = None  # the newest of them: "collective 20, barrier"
    last_others: str | None = None  # what most ranks began last
    behind: bool | None = None  # it has begun fewer than another rank
    differs: bool | None = None  # at the same number it began another operation, or one of other sizes, than most


UNSEEN = RecorderFacts()


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
        if len(here) < 2:
            return dict.fromkeys(case.ranks, UNSEEN), None
        newest_calls = NewestCalls.of(here.values())
        return {key: _facts(here[key], newest_calls) if key in here else UNSEEN for key in case.ranks}, None


@dataclass(frozen=True, slots=True)
class NewestCalls:
    """The newest collective of all ranks."""

    front: int
    calls: Mapping[int, Counter[Call]]  # by its number: how many began which
    usual: Mapping[int, Call]  # by its number: what most began
    told: tuple[tuple[str, int], ...]  # the two that most ranks began last, and how many

    @classmethod
    def of(cls, here: Collection[RecordedCall]) -> NewestCalls:
        calls: dict[int, Counter[Call]] = defaultdict(Counter)
        for entry in here:
            calls[entry.sequence][_call(entry)] += 1
        usual = {number: began.most_common(1)[0][0] for number, began in calls.items()}
        return cls(max(calls), calls, usual, tuple(Counter(map(_format_call, here)).most_common(2)))

    def of_others(self, mine: str) -> str:
        """What most of the ranks but one began last."""
        return max(self.told, key=lambda told: told[1] - (told[0] == mine))[0]


def _newest(record: object) -> RecordedCall | None:
    entries = [entry for entry in record.entries if not entry.p2p] if isinstance(record, FlightRecorder) else []
    return max(entries, key=lambda entry: entry.sequence, default=None)


def _facts(mine: RecordedCall, newest_calls: NewestCalls) -> RecorderFacts:
    level, usual = newest_calls.calls[mine.sequence], newest_calls.usual[mine.sequence]
    return RecorderFacts(
        sequence=mine.sequence,
        last=_format_call(mine),
        last_others=newest_calls.of_others(_format_call(mine)),
        behind=mine.sequence < newest_calls.front,
        differs=level[_call(mine)] < level[usual],
    )


def _call(entry: RecordedCall) -> Call:
    return entry.op, entry.sizes, entry.dtypes


def _format_call(entry: RecordedCall) -> str:
    return f"collective {entry.sequence}, {entry.op}{' ' + entry.sizes if entry.sizes else ''}"


ANALYSIS = RecorderAnalysis()
