"""Facts on demand: derived when a rule first reads them, once for all ranks."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any

import pytest

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.facts import Pending, derive, on_demand, schema
from hangdoc.evidence import RankEvidence, Snapshot, Target
from hangdoc.recording.recorder import read
from tests.support.judge import judge
from tests.support.paths import ROOT


@dataclass(frozen=True, slots=True)
class Counted:
    number: int


@dataclass(slots=True)
class Counting:
    """An analysis that counts how often it ran."""

    on_demand: bool
    name: str = "counted"
    order: int = 1
    rank_facts: type | None = Counted
    job_facts: type | None = None
    runs: list[int] = field(default_factory=list)

    def derive(self, case: Case) -> tuple[dict[Key, Any], None]:
        self.runs.append(1)
        return {key: Counted(key[1]) for key in case.ranks}, None


def shot() -> Snapshot:
    ranks = tuple(RankEvidence(Target(100 + n, 1, "a", n), True, {}) for n in range(3))
    return Snapshot("a", 1.0, "", ranks)


@pytest.mark.parametrize("later", [False, True])
def test_facts_are_derived_once_and_on_demand_if_so_declared(later: bool) -> None:
    analysis = Counting(later)
    assert isinstance(analysis, Analysis)
    facts = derive([shot()], schema((analysis,)))
    assert len(analysis.runs) == (0 if later else 1)
    assert [rank.counted.number for rank in facts.ranks] == [100, 101, 102]
    assert [rank.counted.number for rank in facts.ranks] == [100, 101, 102]
    assert len(analysis.runs) == 1


def test_a_stall_verdict_does_not_derive_facts_of_slow_jobs() -> None:
    (found,) = read(ROOT / "playbooks/uneven-batches/capture.jsonl.zst")
    facts = judge().facts(found.snapshots)
    assert judge().verdict(facts).status == "stalled"
    base = judge().schema.rank.__mro__[1]
    pending = {
        analysis.name
        for analysis in judge().schema.analyses
        if on_demand(analysis) and isinstance(getattr(base, analysis.name).__get__(facts.ranks[0]), Pending)
    }
    assert pending >= {"compute", "sync", "batch", "skew"}


def test_facts_are_freed_without_the_garbage_collector() -> None:
    """With many ranks collections are rare: a reference cycle would keep old facts alive for long."""
    (found,) = read(ROOT / "playbooks/uneven-batches/capture.jsonl.zst")
    gc.collect()
    gc.disable()
    try:
        facts = judge().facts(found.snapshots)
        assert facts.job.network.links
        del facts
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not any(isinstance(left, Case) for left in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
