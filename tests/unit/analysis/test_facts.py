"""Facts are asked for by type, derived when first asked, once for all ranks; rules see those of every analysis."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any

import pytest

from hangdoc.analysis import Analysis, Case, Detector, FactsCircle, Key, load
from hangdoc.analysis.compute.precision import PrecisionFacts
from hangdoc.analysis.facts import JobFacts, RankFacts, groups, where
from hangdoc.analysis.job.blocking import ADVANCING, BLOCKING
from hangdoc.analysis.ranks.process import ProcessFacts
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import RankEvidence, Target
from hangdoc.recording.recorder import read
from tests.support.judge import judge
from tests.support.paths import ROOT


@dataclass(frozen=True, slots=True)
class Pid:
    number: int


@dataclass(frozen=True, slots=True)
class Total:
    number: int


@dataclass(frozen=True, slots=True)
class Doubled:
    number: int


@dataclass(slots=True)
class Counting(Analysis[Pid, Total]):
    """An analysis that counts how often it ran."""

    rank_facts = Pid
    job_facts = Total
    runs: list[int] = field(default_factory=list)

    def derive(self, case: Case) -> tuple[dict[Key, Pid], Total]:
        self.runs.append(1)
        return {key: Pid(key[1]) for key in case.ranks}, Total(sum(pid for _, pid in case.ranks))


class Doubling(Analysis[Doubled, None]):
    rank_facts = Doubled

    def derive(self, case: Case) -> tuple[dict[Key, Doubled], None]:
        return {key: Doubled(2 * pid.number) for key, pid in case.facts(Pid).items()}, None


class AsksTotal(Analysis[Pid, None]):
    rank_facts = Pid

    def derive(self, case: Case) -> tuple[dict[Key, Pid], None]:
        return dict.fromkeys(case.ranks, Pid(case.job(Total).number)), None


class AsksDoubled(Analysis[None, Total]):
    job_facts = Total

    def derive(self, case: Case) -> tuple[dict[Key, None], Total]:
        return {}, Total(sum(doubled.number for doubled in case.facts(Doubled).values()))


EVIDENCE = {("a", 100 + n): RankEvidence(Target(100 + n, 1, "a", n), True, {}) for n in range(3)}


def known(*analyses: Analysis[Any, Any]) -> Case:
    kinds = {kind: one for one in analyses for kind in (one.rank_facts, one.job_facts) if kind is not None}
    return Case([], EVIDENCE, kinds)


def test_facts_are_derived_when_first_asked_for_and_once() -> None:
    counting = Counting()
    case = known(counting, Doubling())
    assert counting.runs == []
    assert not case.has(Pid)
    assert [one.number for one in case.facts(Doubled).values()] == [200, 202, 204]
    assert case.has(Pid)
    assert case.has(Total)
    assert case.job(Total).number == 303
    assert case.facts(Pid)["a", 101] == Pid(101)
    assert counting.runs == [1]


def test_facts_that_are_given_are_not_derived() -> None:
    counting = Counting()
    case = known(counting, Doubling())
    case.give(Pid, dict.fromkeys(EVIDENCE, Pid(4)))
    assert {one.number for one in case.facts(Doubled).values()} == {8}
    assert counting.runs == []
    assert case.job(Total) == Total(303)
    assert case.facts(Pid)["a", 100] == Pid(4), "deriving the facts of the job leaves those of ranks as given"
    case.give_job(Total(9))
    assert case.job(Total) == Total(9)


def test_a_circle_raises_with_its_path() -> None:
    circle = (AsksTotal(), AsksDoubled(), Doubling())
    with pytest.raises(FactsCircle, match=r"^Pid -> Total -> Doubled -> Pid$"):
        known(*circle).facts(Pid)
    with pytest.raises(FactsCircle, match=r"^Total -> Doubled -> Pid -> Total$"):
        known(*circle).job(Total)


def test_after_a_circle_the_case_can_be_asked_again() -> None:
    case = known(AsksTotal(), AsksDoubled(), Doubling())
    with pytest.raises(FactsCircle):
        case.facts(Pid)
    case.give_job(Total(5))
    assert case.facts(Pid)["a", 100] == Pid(5)


def test_a_case_derives_what_is_asked_for_with_all_that_this_needs() -> None:
    case = Case([], EVIDENCE)
    for kind in groups(JobFacts).values():
        case.job(kind)
    for kind in groups(RankFacts).values():
        found: Mapping[Key, object] = case.facts(kind)
        assert found.keys() == EVIDENCE.keys()
        assert {type(facts) for facts in found.values()} == {kind}


def test_rules_see_the_facts_of_every_analysis() -> None:
    assert {*groups(RankFacts).values()} == {one.rank_facts for one in load().values() if one.rank_facts is not None}
    assert {*groups(JobFacts).values()} == {one.job_facts for one in load().values() if one.job_facts is not None}
    assert {f.name for f in fields(JobFacts)} == groups(JobFacts).keys()
    assert {f.name for f in fields(RankFacts)} - groups(RankFacts).keys() == {
        "rank",
        "pid",
        "host",
        "alive",
        "seen",
        "job",
    }


@pytest.mark.parametrize(("name", "listed"), [("stuck", BLOCKING), ("advancing", ADVANCING)])
def test_every_kind_of_facts_that_may_block_a_rank_or_advance_it_is_listed(name: str, listed: tuple[type, ...]) -> None:
    declared = {group: kind for group, kind in groups(RankFacts).items() if name in {f.name for f in fields(kind)}}
    assert declared.pop("aftermath", None) is None or name == "stuck"  # presumed from the listed ones
    assert {*declared.values()} == {*listed}


def test_an_analysis_that_decides_is_called_a_detector() -> None:
    decisions = {"stuck", "late", "blamed_for", "culprits"}
    for kind, analysis in load().items():
        decides = not decisions.isdisjoint(one.name for one in fields(kind))
        assert not decides or isinstance(analysis, Detector), kind.__name__


def test_a_stall_verdict_does_not_derive_facts_of_slow_jobs() -> None:
    (found,) = read(ROOT / "playbooks/uneven-batches/capture.jsonl.zst")
    facts = judge().facts(found.snapshots)
    assert judge().verdict(facts).status == "stalled"
    missing = {name for name, kind in groups(RankFacts).items() if not facts.case.has(kind)}
    assert missing >= {"precision", "gradient_sync", "membership", "channels", "batch", "data_paths"}


def test_facts_that_only_rules_read_are_derived_when_one_reads_them() -> None:
    (found,) = read(ROOT / "playbooks/uneven-batches/capture.jsonl.zst")
    facts = judge().facts(found.snapshots)
    assert {*facts.deferred} == {
        "process",
        "exception",
        "rpc",
        "laps",
        "service",
        "precision",
        "gradient_sync",
        "membership",
        "reducer",
        "channels",
        "batch",
        "data_paths",
        "fabric",
        "saves",
    }
    assert facts.case.has(StackFacts)
    assert not facts.case.has(ProcessFacts)
    process: Mapping[Key, ProcessFacts] = {(rank.host, rank.pid): rank.process for rank in facts.ranks}
    assert process == facts.case.facts(ProcessFacts)
    assert facts.ranks[0].process is facts.ranks[0].process
    assert not facts.case.has(PrecisionFacts)
    assert not hasattr(facts.ranks[0], "unheard_of")


def test_facts_are_freed_without_the_garbage_collector() -> None:
    """With many ranks collections are rare: a reference cycle would keep old facts alive for long."""
    (found,) = read(ROOT / "playbooks/uneven-batches/capture.jsonl.zst")
    gc.collect()
    gc.disable()
    try:
        facts = judge().facts(found.snapshots)
        assert facts.job.network.links
        assert facts.ranks[0].process
        del facts
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not any(isinstance(left, Case) for left in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize(
    ("inner", "shown"),
    [
        ("reduce (hooks.py:18)", "reduce (hooks.py:18), called at main (train.py:8)"),
        (None, "main (train.py:8)"),
    ],
)
def test_where_a_rank_is(inner: str | None, shown: str) -> None:
    stack = SimpleNamespace(site="main (train.py:8)")
    rank: Any = SimpleNamespace(stack=stack, divergence=SimpleNamespace(inner=inner))
    assert where(rank) == shown
