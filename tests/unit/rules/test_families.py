"""The families: knowledge about causes for jobs in which no playbook names a culprit."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc.analysis.facts import derive, schema
from hangdoc.postmortem.report import report
from hangdoc.rules.families import AGAINST, FOR, UNDERSTOOD, library, likely_families, understood
from hangdoc.verdict import CLASSES, Verdict
from tests.support.judge import judge

TIMEOUT = (
    "[rank{rank}]:[E902 11:40:01.000000001 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=7, NumelOut=7, Timeout(ms)=600000) ran for "
    "600029 milliseconds before timing out.\n"
)


def verdict(tmp_path: Path, text: str) -> Verdict:
    (tmp_path / "pasted.txt").write_text(text, encoding="utf-8")
    (found,) = report([tmp_path], judge=judge()).verdicts
    return found


def test_every_family_loads_and_each_class_has_at_most_one() -> None:
    assert library().problems == ()
    found = [one.envelope.cls for one in library().playbooks if one.id != UNDERSTOOD]
    assert len(found) == len(set(found))
    assert set(found) == set(CLASSES)


def test_every_line_speaks_for_or_against_and_something_always_decides() -> None:
    for family in library().playbooks:
        envelope = family.envelope
        if family.id != UNDERSTOOD:
            assert {line.probe for line in envelope.evidence} <= {FOR, AGAINST}
            assert envelope.actions[-1].if_ is None


def test_nothing_is_likely_without_evidence() -> None:
    facts = derive([], schema())
    assert likely_families(facts) == ()
    assert understood(facts) == ()


@pytest.mark.parametrize(
    ("number", "first", "speaks_for"),
    [(9310, "collective_wait", "completed many collectives before"), (1, "network", "one of the first collectives")],
)
def test_the_sequence_number_of_a_lone_line_decides(tmp_path: Path, number: int, first: str, speaks_for: str) -> None:
    found = verdict(tmp_path, TIMEOUT.format(rank=3, number=number))
    assert found.families[0].cls == first
    assert speaks_for in " ".join(found.families[0].speaks_for)
    assert "rank 3 waited in ALLREDUCE" in found.understood[0]
    assert all(family.decides for family in found.families)


def test_a_named_culprit_needs_no_families(tmp_path: Path) -> None:
    text = "".join(TIMEOUT.format(rank=rank, number=19) for rank in (1, 2, 3))
    assert verdict(tmp_path, text).families == ()


def test_versions_are_understood(tmp_path: Path) -> None:
    text = "NCCL version 2.21.5+cuda12.4\n" + TIMEOUT.format(rank=3, number=19)
    assert "nccl 2.21.5" in verdict(tmp_path, text).understood
