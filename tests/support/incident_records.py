"""Records of incidents, and their changes, built by hand."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from hangdoc.incident.log import Change
from hangdoc.incident.record import IncidentRecord, Outcome
from hangdoc.recording.verdict_json import to_json
from hangdoc.verdict import Job, RankLine, Verdict
from tests.support import verdicts


def suspected(number: int = 0, **given: Any) -> IncidentRecord:
    """An open incident whose cause is not known."""
    lines = tuple(RankLine(rank, 100 + rank, "node-a", "collective", "all_reduce") for rank in range(3))
    verdict = Verdict("stalled", 12.0, Job("7f3a", 3, "torchrun", ("node-a",), lines), note="The ranks differ nowhere.")
    record = IncidentRecord(
        id=f"20241124T0315{number % 60:02d}Z-node-a-{number:04x}",
        job="7f3a",
        label="train.py",
        user="ann",
        slurm_job="4711",
        world_size=3,
        hosts=("node-a",),
        onset="2024-11-24T03:15:00.000+00:00",
        opened="2024-11-24T03:15:04.000+00:00",
        updated="2024-11-24T03:15:12.000+00:00",
        ended=None,
        status="stalled",
        verdicts=(to_json(verdict),),
    )
    return replace(record, **given)


def known(incident: IncidentRecord) -> IncidentRecord:
    """The incident once its cause is known."""
    return replace(incident, verdicts=(*incident.verdicts, to_json(verdicts.uneven())))


def ended(incident: IncidentRecord) -> IncidentRecord:
    """The incident once its job went on."""
    at = "2024-11-24T03:17:00.000+00:00"
    return replace(incident, ended=at, outcome=Outcome("recovered", "The job went on after 2 min.", at))


def life(number: int = 0) -> tuple[Change, Change, Change]:
    """An incident from its first alert to its last."""
    first = suspected(number)
    second = known(first)
    return Change("opened", first), Change("updated", second), Change("closed", ended(second))
