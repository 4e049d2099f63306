"""When an inspection is worth it, on a recorded job with a slow link; and when `--once` may answer early."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

import playbooks
from hangdoc.analysis.facts import derive, schema
from hangdoc.evidence import RankEvidence, Snapshot
from hangdoc.recording.recorder import read
from hangdoc.verdict import Job, Verdict
from hangdoc.watch.policy import ONCE_LIMIT_S, ONCE_S, ONCE_SOON_S, Once, is_balanced, needs_inspection


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


def rank(computes: float, waits: float, apart: bool | None = False) -> Any:
    progress = SimpleNamespace(compute_share=computes, wait_share=waits)
    return SimpleNamespace(progress=progress, replicas=SimpleNamespace(apart=apart), alive=True)


@pytest.mark.parametrize(
    ("ranks", "balanced"),
    [
        ([rank(0.9, 0.1), rank(0.8, 0.2)], True),
        ([rank(0.3, 0.6), rank(0.4, 0.6)], True),  # short steps
        ([rank(1.0, 0.0), rank(0.6, 0.4)], False),  # one waits for the other
        ([rank(0.5, 0.1), rank(0.5, 0.1)], False),  # both wait for something else, such as their input
        ([rank(0.9, 0.1, None), rank(0.9, 0.1)], False),  # their models may differ
    ],
)
def test_ranks_that_are_balanced(ranks: list[Any], balanced: bool) -> None:
    assert is_balanced(SimpleNamespace(ranks=ranks)) is balanced  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "doubts", "elapsed_s", "accepted"),
    [
        ("healthy", "", ONCE_SOON_S, True),
        ("healthy", "replicas-differ", ONCE_SOON_S, False),
        ("slow", "", ONCE_SOON_S, False),  # a few looks may mislead
        ("slow", "", ONCE_S, True),
        ("healthy", "replicas-differ", ONCE_S, True),
        ("unknown", "", ONCE_S, False),  # a stall that a slow examination has outlasted may be seen again
        ("unknown", "", ONCE_LIMIT_S, True),
    ],
)
def test_only_a_healthy_verdict_without_doubts_is_given_early(
    status: str, doubts: str, elapsed_s: float, accepted: bool
) -> None:
    judge: Any = SimpleNamespace(not_ruled_out=lambda considered: doubts)
    facts: Any = SimpleNamespace(ranks=[rank(0.9, 0.1)])
    verdict = Verdict(status, None, Job("job", 1, None, ("node-a",), ()))
    assert Once("job", lambda line: None).accepts(judge, verdict, facts, elapsed_s) is accepted
