"""Analysis `recorder`: the newest collective of each live rank, from its Flight Recorder if one could be read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.evidence import FlightRecorder, RecordedCall

Call = tuple[str, str, tuple[str, ...]]  # operation, sizes, dtypes


@dataclass(frozen=True, slots=True)
class RecorderFacts:
    """One rank, in the process group most ranks used last; None: no Flight Recorder readable, or another group."""

    sequence: int | None = None  # sequence number of its newest collective
    last: str | None = None  # that collective: "collective 20, barrier"
    last_others: str | None = None  # the newest collective of most of its peers
    behind: bool | None = None  # a peer has started a later one
    differs: bool | None = None  # under the same number most ranks started another operation, size or dtype


UNSEEN = RecorderFacts()


class RecorderAnalysis(Analysis[RecorderFacts, None]):
    rank_facts = RecorderFacts

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
    """The newest collective of every rank."""

    front: int  # highest sequence number
    calls: Mapping[int, Counter[Call]]  # by sequence number: ranks per call
    usual: Mapping[int, Call]  # by sequence number: the call of most ranks
    most_common: tuple[tuple[str, int], ...]  # the two most common newest collectives, with their number of ranks

    @classmethod
    def of(cls, here: Collection[RecordedCall]) -> NewestCalls:
        calls: dict[int, Counter[Call]] = defaultdict(Counter)
        for entry in here:
            calls[entry.sequence][_call(entry)] += 1
        usual = {number: began.most_common(1)[0][0] for number, began in calls.items()}
        return cls(max(calls), calls, usual, tuple(Counter(map(_format_call, here)).most_common(2)))

    def of_peers(self, own: str) -> str:
        """The newest collective of most ranks, without one rank in `own`."""
        return max(self.most_common, key=lambda pair: pair[1] - (pair[0] == own))[0]


def _newest(record: object) -> RecordedCall | None:
    entries = [entry for entry in record.entries if not entry.p2p] if isinstance(record, FlightRecorder) else []
    return max(entries, key=lambda entry: entry.sequence, default=None)


def _facts(own: RecordedCall, newest_calls: NewestCalls) -> RecorderFacts:
    level, usual = newest_calls.calls[own.sequence], newest_calls.usual[own.sequence]
    return RecorderFacts(
        sequence=own.sequence,
        last=_format_call(own),
        last_others=newest_calls.of_peers(_format_call(own)),
        behind=own.sequence < newest_calls.front,
        differs=level[_call(own)] < level[usual],
    )


def _call(entry: RecordedCall) -> Call:
    return entry.op, entry.sizes, entry.dtypes


def _format_call(entry: RecordedCall) -> str:
    return f"collective {entry.sequence}, {entry.op}{' ' + entry.sizes if entry.sizes else ''}"


ANALYSIS = RecorderAnalysis()
