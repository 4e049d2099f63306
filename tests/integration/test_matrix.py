"""The false-alarm matrix: every recorded incident against every rule; only its own playbook may win."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc import demo
from hangdoc.report import report
from jobs import PLAYBOOKS

CAPTURES = sorted(PLAYBOOKS.glob("*/capture.jsonl.zst"))


@pytest.mark.parametrize("id", demo.ids())
def test_every_reproducer_has_a_small_capture(id: str) -> None:
    capture = PLAYBOOKS / id / "capture.jsonl.zst"
    assert capture.exists(), f"python tests/capture.py {id}"
    assert capture.stat().st_size < 100_000


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.parent.name)
def test_only_its_own_playbook_fires(capture: Path) -> None:
    job = demo.broken(capture.parent.name)
    verdicts = report([capture]).verdicts
    assert job.meets(verdicts), verdicts
    assert [finding.playbook for verdict in verdicts for finding in verdict.findings] == [job.playbook]
