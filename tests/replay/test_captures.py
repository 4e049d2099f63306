"""The false-alarm matrix: every recorded incident against every rule; only its own playbook may win.

And whichever of its ranks dies as well, it is judged. The names of the playbooks decide nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from hangdoc.demo import reproducer
from hangdoc.diagnose import Judge
from hangdoc.evidence import RankEvidence, Snapshot
from hangdoc.recording.recorder import read
from hangdoc.rules.loader import load
from hangdoc.verdict import Considered, Verdict
from tests.support.judge import judge, reported
from tests.support.paths import PLAYBOOKS

CAPTURES = sorted(PLAYBOOKS.glob("*/capture.jsonl.zst"))
IDS = sorted(folder.parent.name for folder in PLAYBOOKS.glob("*/playbook.yaml"))
RENAMED = dict(zip(IDS, reversed(IDS), strict=True))  # of every two playbooks the other one now comes first


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


# --- names ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """The judge of the shipped playbooks under their new names."""
    copy = tmp_path_factory.mktemp("renamed")
    for id, new in RENAMED.items():
        written = yaml.safe_load((PLAYBOOKS / id / "playbook.yaml").read_text())
        written["id"] = new
        written["explains"] = [RENAMED[other] for other in written.get("explains", ())]
        written["look_alikes"] = {RENAMED[other]: tell for other, tell in written.get("look_alikes", {}).items()}
        (copy / new).mkdir()
        (copy / new / "playbook.yaml").write_text(json.dumps(written))  # which is YAML
    library = load([copy], judge().schema)
    assert library.problems == ()
    return Judge(library, judge().schema)


def decided(verdict: Verdict, names: Mapping[str, str]) -> dict[str, Any]:
    """What a verdict decides, with the playbooks under these names."""
    return {
        "status": verdict.status,
        "findings": [(names[f.playbook], f.confidence, f.culprits, f.links) for f in verdict.findings],
        "considered": sorted((names[c.playbook], c.outcome, _explained_by(c, names)) for c in verdict.considered),
    }


def _explained_by(considered: Considered, names: Mapping[str, str]) -> str:
    words, _, id = considered.why.rpartition(" ")
    return names[id] if words == "explained by" else ""


def parts(shots: Sequence[Snapshot]) -> Iterator[Sequence[Snapshot]]:
    """The whole recording, and less of it: weaker evidence leaves more findings side by side."""
    yield shots
    yield shots[: len(shots) // 2]
    yield shots[-1:]
    for probe in sorted({probe for shot in shots for rank in shot.ranks for probe in rank.records}):
        yield [
            replace(shot, ranks=tuple(replace(rank, records=_without(rank.records, probe)) for rank in shot.ranks))
            for shot in shots
        ]


def _without(records: Mapping[str, object], probe: str) -> dict[str, object]:
    return {name: record for name, record in records.items() if name != probe}


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.parent.name)
def test_renaming_the_playbooks_changes_no_verdict(capture: Path, renamed: Judge) -> None:
    back = {new: id for id, new in RENAMED.items()}
    for shots in parts(read(capture)[0].snapshots):
        facts = judge().facts(shots)
        expected = decided(judge().verdict(facts), {id: id for id in IDS})
        assert decided(renamed.verdict(facts), back) == expected
