"""When it is worth a closer look, told of a recorded job with a slow link."""

from __future__ import annotations

from dataclasses import replace

import pytest

import playbooks
from hangdoc.analysis.facts import derive, schema
from hangdoc.evidence import RankEvidence, Snapshot
from hangdoc.recording.recorder import read
from hangdoc.watch.session import unclear


def without_interfaces(rank: RankEvidence, blind: int | None) -> RankEvidence:
    if rank.target.rank != blind:
        return rank
    return replace(rank, records={name: record for name, record in rank.records.items() if name != "nics"})


@pytest.mark.parametrize("blind", [None, 0, 1])
def test_a_slow_link_whose_other_end_was_not_looked_at(blind: int | None) -> None:
    (recording,) = read(playbooks.ROOT / "slow-link" / "capture.jsonl.zst")
    shots: list[Snapshot] = [
        replace(shot, ranks=tuple(without_interfaces(rank, blind) for rank in shot.ranks))
        for shot in recording.snapshots
    ]
    assert unclear(derive(shots, schema())) is (blind is not None)
