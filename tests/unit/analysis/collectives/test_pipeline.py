"""Stages of a pipeline that split a batch into different numbers of microbatches."""

from __future__ import annotations

import pytest

from hangdoc.analysis.facts import Facts, derive, schema
from hangdoc.evidence import ProcessGroup, ProcessGroups, RankEvidence, Snapshot, Target
from hangdoc.evidence.transfers import PipelineSchedule, Transfers


def facts(*microbatches: int | None, groups: tuple[tuple[int, ...], ...] = ()) -> Facts:
    """A rank for each number; None: without a pipeline."""
    ranks = []
    for rank, number in enumerate(microbatches):
        own = next((ProcessGroup(9, "1", group) for group in groups if rank in group), None)
        record = Transfers()
        if number is not None:
            schedule = PipelineSchedule(
                "Schedule1F1B", (rank,), len(microbatches), number, own.address if own else None
            )
            record = Transfers(pipelines=(schedule,))
        records = {"transfers": record, "groups": ProcessGroups((own,) if own else ())}
        ranks.append(RankEvidence(Target(100 + rank, 1, "here", rank), True, records))
    return derive([Snapshot("here", 0.0, "t", tuple(ranks))], schema())


@pytest.mark.parametrize(
    ("found", "differs", "usual"),
    [
        (facts(8, 8, 8), [False] * 3, [8, 8, 8]),
        (facts(8, 4, 8), [True] * 3, [8, 8, 8]),
        (facts(8, 4), [True] * 2, [None, None]),  # nobody can tell which one is wrong
        (facts(8, None, 8), [False, None, False], [8, None, 8]),
        (facts(8, 8, 4, 4, groups=((0, 1), (2, 3))), [False] * 4, [8, 8, 4, 4]),  # two pipelines
    ],
)
def test_microbatches(found: Facts, differs: list[bool | None], usual: list[int | None]) -> None:
    assert [rank.pipeline.differs for rank in found.ranks] == differs
    assert [rank.pipeline.usual for rank in found.ranks] == usual
    assert found.job.pipeline.differs is any(differs)


def test_the_stages_of_a_rank_are_named() -> None:
    record = Transfers(pipelines=(PipelineSchedule("ScheduleInterleaved1F1B", (1, 4), 6, 8),))
    rank = RankEvidence(Target(100, 1, "here", 0), True, {"transfers": record})
    found = derive([Snapshot("here", 0.0, "t", (rank,))], schema()).ranks[0].pipeline
    assert (found.stage, found.schedule, found.microbatches) == ("stages 1, 4 of 6", "ScheduleInterleaved1F1B", 8)
