"""The false-alarm matrix of jobs that have ended: tests/data/postmortem against every rule; only the right one wins."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import playbooks
from hangdoc.demo import reproducer
from hangdoc.postmortem.report import Unrecognised
from tests.support.judge import reported
from tests.support.paths import DATA, RECORDINGS

LEFT = DATA / "postmortem"
KEPT: dict[str, dict[str, Any]] = yaml.safe_load((LEFT / "kept.yaml").read_text(encoding="utf-8"))
CASES: dict[str, dict[str, Any]] = yaml.safe_load((LEFT / "cases.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_the_logs_tell(name: str, tmp_path: Path) -> None:
    for file, text in CASES[name]["files"].items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text, encoding="utf-8")
    expected = CASES[name]["expect"]
    if expected.get("unrecognised"):
        with pytest.raises(Unrecognised):
            reported(tmp_path)
        return
    (verdict,) = reported(tmp_path).verdicts
    assert [family.cls for family in verdict.families] == expected.get(
        "families", [one.cls for one in verdict.families]
    )
    if "playbook" not in expected:
        assert verdict.findings == ()
        assert verdict.status == expected.get("status", "unknown")
        assert re.search(expected.get("note", ""), verdict.note)
        assert bool(verdict.families) is ("families" in expected)
        return
    assert [finding.playbook for finding in verdict.findings] == [expected["playbook"]]
    (found,) = verdict.findings
    assert sorted(one.rank for one in found.culprits if one.rank is not None) == expected["culprits"]
    assert [one.host for one in found.culprits if one.rank is None] == expected.get("hosts", [])
    assert verdict.status == expected.get("status", "stalled")
    assert found.confidence == expected.get("confidence", found.confidence)
    assert re.search(expected.get("action", ""), " ".join(found.actions))
    assert found.confidence != "high" or "Traceback" in str(CASES[name]["files"])  # logs alone tell less than stacks
    assert not [why for why in found.reasons if "left out" in why]
    assert expected.get("evidence", "") in " ".join(line.text for line in found.evidence)


@pytest.mark.parametrize("name", KEPT)
def test_logs_dumps_and_stacks_tell(name: str) -> None:
    expected = KEPT[name]
    (verdict,) = reported(LEFT / "kept" / name).verdicts
    found = verdict.findings[0]
    assert (found.playbook, verdict.status) == (expected["playbook"], expected.get("status", "stalled"))
    assert sorted(one.rank for one in found.culprits if one.rank is not None) == expected["culprits"]
    assert not [why for why in found.reasons if "left out" in why]


def test_every_playbook_without_a_reproducer_has_a_case() -> None:
    recorded = json.loads((RECORDINGS / "truth.json").read_text()).values()
    proved = {case["expect"].get("playbook") for case in CASES.values()} | {truth["playbook"] for truth in recorded}
    assert {folder.name for folder in playbooks.folders()} - set(reproducer.ids()) - proved == set()
