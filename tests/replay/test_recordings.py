"""Jobs in many styles (plain loops, Accelerate, Lightning, FSDP, spawn), recorded once, judged again with the rules.

None of their scripts was known when the rules were written. `truth.json` says what was wrong with each.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.judge import reported
from tests.support.paths import RECORDINGS

TRUTH: dict[str, dict[str, Any]] = json.loads((RECORDINGS / "truth.json").read_text())


@pytest.mark.parametrize("name", TRUTH)
def test_judged_as_what_it_was(name: str) -> None:
    truth = TRUTH[name]
    (verdict,) = reported(RECORDINGS / f"{name}.jsonl.zst").verdicts
    best = verdict.findings[0] if verdict.findings else None
    assert verdict.status == truth["status"]
    assert (best.playbook if best else None) == truth["playbook"]
    blamed = [culprit.rank for culprit in (best.culprits if best else ())]
    assert sorted(rank for rank in blamed if rank is not None) == truth["culprits"]


@pytest.mark.parametrize("name", ["mined_in_each_step", "sidecar_evaluates"])
def test_no_step_time_is_told_where_no_counter_shows_one(name: str) -> None:
    """Their loops count steps in an attribute of an object; other counters are of parts of a step."""
    (verdict,) = reported(RECORDINGS / f"{name}.jsonl.zst").verdicts
    assert "a step" not in (verdict.note or "")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("mined_in_each_step", "candidates (place_retrieval.py:97): `distance = haversine("),
        ("fsdp_own_hooks", "add (fsdp_charlm.py:74): `mix = torch.linalg.eigvals("),
    ],
)
def test_a_straggler_is_told_with_the_line_that_takes_its_time(name: str, line: str) -> None:
    (verdict,) = reported(RECORDINGS / f"{name}.jsonl.zst").verdicts
    (proof,) = [proof for proof in verdict.findings[0].evidence if "of its own time" in proof.text]
    assert line in proof.text
