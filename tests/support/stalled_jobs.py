"""A stalled job for tests of incidents, from a capture: its rounds, its end, and the log that keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from hangdoc.analysis.facts import Facts
from hangdoc.evidence import End, RankEvidence, Snapshot
from hangdoc.incident.log import Change, IncidentLog
from hangdoc.incident.store import IncidentStore, Limits
from hangdoc.recording.recorder import read
from hangdoc.system.exits import format_exit
from tests.support.judge import judge
from tests.support.paths import ROOT

CULPRIT = 2  # rank that left the loop


@cache
def rounds() -> tuple[Snapshot, ...]:
    """The rounds of a job whose last shard is one sample short: it stands still from the third on."""
    return read(ROOT / "playbooks/uneven-batches/capture.jsonl.zst")[0].snapshots


def job() -> str:
    return rounds()[0].ranks[0].target.job


def ended(*ends: End, after_s: float = 1.0, last: Snapshot | None = None) -> Snapshot:
    """A round in which the first ranks have ended like this; the rest are as in `last`."""
    before = last or rounds()[-1]
    at_s = before.at_s + after_s
    dead = [_dead(rank, replace(end, at_s=at_s)) for rank, end in zip(before.ranks, ends, strict=False)]
    return replace(before, at_s=at_s, ranks=(*dead, *before.ranks[len(dead) :]))


def _dead(rank: RankEvidence, end: End) -> RankEvidence:
    return RankEvidence(rank.target, False, {}, format_exit(end), end)


@cache
def facts_of(count: int) -> Facts:
    """The facts after the first rounds."""
    return judge().facts(rounds()[:count])


@dataclass
class Kept:
    """A log of incidents, with what it said and told."""

    root: Path
    limits: Limits = field(default_factory=Limits)
    said: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = IncidentStore(self.root, self.limits, self.said.append)
        self.log = IncidentLog(self.store, self.said.append, [self.changes.append])

    @property
    def told(self) -> list[str]:
        return [change.kind for change in self.changes]

    def see(self, count: int, name: str | None = None) -> Facts:
        """Show the log the first rounds of the job, one after the other; the facts of the last."""
        for number in range(1, count + 1):
            self._observe(facts_of(number), name)
        return facts_of(count)

    def show(self, shots: Sequence[Snapshot], name: str | None = None) -> Facts:
        """Show the log one round of a job, of which this is the history; the facts."""
        return self._observe(judge().facts(shots), name)

    def _observe(self, facts: Facts, name: str | None) -> Facts:
        self.log.observe(name or job(), facts, facts.case.history, facts.case.history[-1].at_s)
        return facts

    def report(self, name: str | None = None) -> str:
        """Show a stall until it is reported; the ID of its incident."""
        facts = self.see(4, name)
        record = self.log.verdict(name or job(), judge().verdict(facts))
        assert record is not None
        return record.id
