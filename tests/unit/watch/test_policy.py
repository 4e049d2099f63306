"""When an inspection is worth it, on a recorded job with a slow link."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import playbooks
from hangdoc.analysis.facts import derive, schema
from hangdoc.evidence import RankEvidence, Snapshot
from hangdoc.recording.recorder import read
from hangdoc.watch.policy import needs_inspection


def without_interfaces(rank: RankEvidence, blind: int | None) -> RankEvidence:
    if rank.target.rank != blind:
        return rank
    return replace(rank, records={name: record for name, record in rank.records.items() if name != "nics"})


@pytest.mark.parametrize("blind", [None, 0, 1])
def test_inspects_a_slow_link_if_one_end_has_not_read_its_interfaces(blind: int | None) -> None:
    (recording,) = read(playbooks.ROOT / "slow-link" / "capture.jsonl.zst")
    shots: list[Snapshot] = [
        replace(shot, ranks=tuple(without_interfaces(rank, blind) for rank in shot.ranks))
        for shot in recording.snapshots
    ]
    assert needs_inspection(derive(shots, schema())) is (blind is not None)
