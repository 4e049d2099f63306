"""Analysis `pipeline`: the schedule of pipeline stages that each rank runs, and whether the stages agree on it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.ranks.transfers import transfers_of
from hangdoc.evidence import ProcessGroups
from hangdoc.evidence.transfers import PipelineSchedule


@dataclass(frozen=True, slots=True)
class PipelineFacts:
    """The pipeline of one rank; None: it runs none, or it was not seen."""

    stage: str | None = None  # "stage 1 of 4", of an interleaved schedule "stages 1, 5 of 8"; the first is stage 0
    schedule: str | None = None  # class: "Schedule1F1B"
    microbatches: int | None = None  # into which this rank splits a batch
    usual: int | None = None  # on which more than half of the pipeline's ranks agree
    differs: bool | None = None  # the ranks of its pipeline do not all agree


@dataclass(frozen=True, slots=True)
class PipelineJob:
    """The pipelines of all ranks."""

    differs: bool  # the ranks of a pipeline do not all split a batch into the same number of microbatches


class PipelineAnalysis(Analysis[PipelineFacts, PipelineJob]):
    rank_facts = PipelineFacts
    job_facts = PipelineJob

    def derive(self, case: Case) -> tuple[dict[Key, PipelineFacts], PipelineJob]:
        schedules = {key: found[0] for key in case.ranks if (found := transfers_of(case, key).pipelines)}
        counts: dict[Hashable, Counter[int]] = defaultdict(Counter)  # by the pipeline's process group
        groups = {key: _group(case, key, schedule) for key, schedule in schedules.items()}
        for key, schedule in schedules.items():
            counts[groups[key]][schedule.microbatches] += 1
        facts = {key: _facts(schedule, counts[groups[key]]) for key, schedule in schedules.items()}
        job = PipelineJob(differs=any(own.differs for own in facts.values()))
        return {key: facts.get(key, NO_PIPELINE) for key in case.ranks}, job


NO_PIPELINE = PipelineFacts()


def _group(case: Case, key: Key, schedule: PipelineSchedule) -> Hashable:
    """The members of the process group of a pipeline; None: all ranks."""
    record = case.record(key, "groups")
    groups = record.groups if isinstance(record, ProcessGroups) else ()
    return next((group.ranks for group in groups if group.address == schedule.group and not group.default), None)


def _facts(schedule: PipelineSchedule, counts: Counter[int]) -> PipelineFacts:
    [(most, ranks)] = counts.most_common(1)
    numbers = ", ".join(map(str, schedule.stages))
    return PipelineFacts(
        stage=f"stage{'s' if len(schedule.stages) > 1 else ''} {numbers} of {schedule.of}",
        schedule=schedule.name,
        microbatches=schedule.microbatches,
        usual=most if 2 * ranks > counts.total() else None,
        differs=len(counts) > 1,
    )


ANALYSIS = PipelineAnalysis()
