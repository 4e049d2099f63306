"""The false-alarm matrix: every recorded incident against every rule; only its own playbook may win.

And whichever of its ranks dies as well, it is judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hangdoc.demo import reproducer
from hangdoc.evidence import RankEvidence, Snapshot
from hangdoc.recording.recorder import read
from tests.support.judge import judge, reported
from tests.support.paths import PLAYBOOKS

CAPTURES = sorted(PLAYBOOKS.glob("*/capture.jsonl.zst"))


@pytest.mark.parametrize("id", reproducer.ids())
def test_every_reproducer_has_a_small_capture(id: str) -> None:
    capture = PLAYBOOKS / id / "capture.jsonl.zst"
    assert capture.exists(), f"python -m tests.tools.capture {id}"
    assert capture.stat().st_size < 100_000


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.parent.name)
def test_only_its_own_playbook_fires(capture: Path) -> None:
    job = reproducer.broken(capture.parent.name)
    verdicts = reported(capture).verdicts
    assert job.meets(verdicts), verdicts
    assert [finding.playbook for verdict in verdicts for finding in verdict.findings] == [job.playbook]


def deaths(newest: Snapshot) -> Iterator[tuple[RankEvidence, Snapshot]]:
    """Each of its ranks, dead; what was seen of it a moment before is still there, or nothing is."""
    for at, rank in enumerate(newest.ranks):
        for records in (rank.records, {}):
            dead = replace(rank, alive=False, records=records)
            yield dead, replace(newest, ranks=(*newest.ranks[:at], dead, *newest.ranks[at + 1 :]))


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.parent.name)
def test_whichever_rank_dies_it_is_judged(capture: Path) -> None:
    *before, newest = read(capture)[0].snapshots
    for dead, last in deaths(newest):
        facts = judge().facts((*before, last))
        gone = {(rank.host, rank.pid) for rank in facts.ranks if rank.alive is False}
        assert (dead.target.host, dead.target.pid) in gone
        assert judge().verdict(facts).status != "healthy"
