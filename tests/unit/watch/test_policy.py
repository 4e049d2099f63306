"""When an inspection is worth it, on a recorded job with a slow link; and when `--once` may answer early."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

import playbooks
from hangdoc.analysis.facts import derive, schema
from hangdoc.analysis.thresholds import PACE_LOOKS
from hangdoc.evidence import RankEvidence, Snapshot
from hangdoc.recording.recorder import read
from hangdoc.verdict import Finding, Job, Verdict
from hangdoc.watch.policy import (
    ONCE_BUSY_S,
    ONCE_DOUBT_S,
    ONCE_LIMIT_S,
    ONCE_S,
    ONCE_SOON_S,
    CloserLook,
    Examination,
    Once,
    is_balanced,
    needs_inspection,
)


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


def rank(
    computes: float,
    waits: float,
    apart: bool | None = False,
    late: bool | None = False,
    undecided: bool = False,
    server: str | None = None,
    steps: int = 0,
    drift: int = 0,
) -> Any:
    progress = SimpleNamespace(compute_share=computes, wait_share=waits)
    pace = SimpleNamespace(late=late, late_share=1.0 - waits, each_step=False, steps=steps)
    return SimpleNamespace(
        progress=progress,
        replicas=SimpleNamespace(apart=apart, drift=drift),
        pace=pace,
        batch=SimpleNamespace(undecided=undecided),
        service=SimpleNamespace(name=server),
        alive=True,
    )


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
    assert accepts(status, doubts, [rank(0.9, 0.1)], PACE_LOOKS, elapsed_s) is accepted


UNEQUAL = [rank(0.9, 0.1, late=None), rank(0.3, 0.7, late=None)]
EQUAL = [rank(0.9, 0.1, late=None), rank(0.8, 0.2, late=None)]
LONG_STEPS = [rank(0.9, 0.1, steps=2), rank(0.0, 1.0)]
DRIFTING = [rank(0.9, 0.1, apart=None, drift=9), rank(0.9, 0.1, apart=None, drift=9)]
SERVED = [rank(0.0, 0.0, server="10.0.0.7:443"), rank(0.0, 1.0)]  # a step takes longer than the first look


@pytest.mark.parametrize(
    ("status", "ranks", "looks", "moving", "elapsed_s", "accepted"),
    [
        ("healthy", UNEQUAL, PACE_LOOKS, True, ONCE_LIMIT_S, False),  # a look takes seconds: too few to compare
        ("healthy", UNEQUAL, PACE_LOOKS, False, ONCE_LIMIT_S, True),  # no steps: one prepares the data for all
        ("healthy", UNEQUAL, PACE_LOOKS + 1, True, ONCE_LIMIT_S, True),  # no number of looks will tell
        ("healthy", UNEQUAL, PACE_LOOKS, True, ONCE_BUSY_S, True),
        ("healthy", EQUAL, PACE_LOOKS, True, ONCE_SOON_S, True),
        ("healthy", [rank(0.9, 0.1, late=None)], PACE_LOOKS, True, ONCE_SOON_S, True),  # it keeps nobody waiting
        ("stalled", UNEQUAL, PACE_LOOKS, True, ONCE_LIMIT_S, True),
        ("healthy", LONG_STEPS, PACE_LOOKS + 1, True, ONCE_LIMIT_S, False),
        ("healthy", DRIFTING, PACE_LOOKS + 1, True, ONCE_LIMIT_S, False),
        ("healthy", SERVED, PACE_LOOKS + 1, True, ONCE_LIMIT_S, False),
        ("healthy", SERVED, PACE_LOOKS + 1, False, ONCE_LIMIT_S, False),
        ("healthy", SERVED, PACE_LOOKS + 1, True, ONCE_BUSY_S, True),
    ],
)
def test_no_job_is_healthy_whose_ranks_were_not_compared(
    status: str, ranks: list[Any], looks: float, moving: bool, elapsed_s: float, accepted: bool
) -> None:
    assert accepts(status, "", ranks, looks, elapsed_s, moving) is accepted


@pytest.mark.parametrize(
    ("status", "elapsed_s", "accepted"),
    [
        ("healthy", ONCE_BUSY_S, False),
        ("unknown", ONCE_BUSY_S, False),
        ("unknown", ONCE_DOUBT_S, True),
        ("slow", ONCE_S, True),  # it has a cause
    ],
)
def test_a_difference_in_too_few_looks_is_looked_at_again(status: str, elapsed_s: float, accepted: bool) -> None:
    ranks = [rank(0.9, 0.1, undecided=True), rank(0.9, 0.1)]
    assert accepts(status, "", ranks, PACE_LOOKS, elapsed_s) is accepted


@pytest.mark.parametrize(
    ("confidence", "lacking", "missing", "elapsed_s", "accepted"),
    [
        ("low", 1, (2,), ONCE_SOON_S, False),  # a supervisor may be starting the rank again
        ("low", 1, (2,), ONCE_S, True),
        ("low", 0, (2,), ONCE_SOON_S, True),
        ("low", None, (2,), ONCE_SOON_S, False),  # below torchrun, no rank counts those that have arrived
        ("low", None, (2,), ONCE_S, True),
        ("low", None, (), ONCE_SOON_S, True),
        ("medium", 1, (2,), ONCE_SOON_S, True),
    ],
)
def test_a_missing_rank_is_looked_for_again(
    confidence: str, lacking: int | None, missing: tuple[int, ...], elapsed_s: float, accepted: bool
) -> None:
    once = Once("job", lambda line: None, examination=Examination())
    finding = Finding("missing-worker", "startup", confidence, "", "")
    verdict = Verdict("stalled", 29.0, Job("job", 3, None, ("node-a",), ()), (finding,))
    facts = facts_of([rank(0.0, 1.0)], 9, False, lacking, missing)
    assert once.accepts(SimpleNamespace(), verdict, facts, elapsed_s) is accepted  # type: ignore[arg-type]
    assert once.lacking is (lacking != 0 and bool(missing) and confidence == "low")


@pytest.mark.parametrize(
    ("read", "rounds"),
    [
        ([(True, "S")], 1),
        ([(False, "S"), (True, "S")], 2),  # a native dump may fail
        ([(False, "S"), (False, "S"), (True, "S")], 2),  # ... but not for long
        ([(False, "D"), (True, "S")], 1),  # it cannot be paused
        ([(False, "t"), (True, "S")], 1),
        ([(None, "S"), (True, "S")], 1),  # its stacks may not be read
    ],
)
def test_a_rank_without_native_frames_is_examined_once_more(read: list[tuple[bool | None, str]], rounds: int) -> None:
    examination, looks = Examination(), 0
    while isinstance(examination.decide(examined(*read[max(0, looks - 1)])), CloserLook):
        looks += 1
    assert looks == rounds


def examined(native: bool | None, state: str) -> Any:
    rank = SimpleNamespace(
        host="node-a",
        pid=7,
        seen=frozenset() if native is None else frozenset({"stacks"}),
        stack=SimpleNamespace(native=bool(native)),
        process=SimpleNamespace(state=state),
        stall=SimpleNamespace(still=True),
        divergence=SimpleNamespace(side="a"),
        gil=SimpleNamespace(stuck=False),
    )
    return SimpleNamespace(ranks=[rank])


def accepts(status: str, doubts: str, ranks: list[Any], looks: float, elapsed_s: float, moving: bool = True) -> bool:
    judge: Any = SimpleNamespace(not_ruled_out=lambda considered: doubts)
    verdict = Verdict(status, None, Job("job", 1, None, ("node-a",), ()))
    return Once("job", lambda line: None).accepts(judge, verdict, facts_of(ranks, looks, moving), elapsed_s)


def facts_of(
    ranks: list[Any], looks: float, moving: bool, lacking: int | None = None, missing: tuple[int, ...] = ()
) -> Any:
    job = SimpleNamespace(
        progress=SimpleNamespace(looks=looks),
        network=SimpleNamespace(moving=moving),
        startup=SimpleNamespace(lacking=lacking, waiting=len(missing)),
        world=SimpleNamespace(missing=missing),
    )
    return SimpleNamespace(ranks=ranks, job=job)
