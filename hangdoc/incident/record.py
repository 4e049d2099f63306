"""An incident of a job, as `incident.json` in its folder holds it: onset, verdicts that become firmer, outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hangdoc.evidence.record import Record

SCHEMA = "hangdoc.incident/1"
OUTCOMES = ("recovered", "killed_by_launcher", "killed", "failed", "ended", "lost")
MAX_VERDICTS = 16  # kept of one incident: the first, and the newest
MAX_PROCESSES = 16  # of the ranks of a job, to know it again


class Outcome(Record, frozen=True):
    """What became of the job after the diagnosis; never a new failure."""

    kind: str  # see OUTCOMES; lost: hangdoc ended first, or lost sight of the job
    text: str  # one sentence
    at: str  # ISO-8601


class IncidentRecord(Record, frozen=True, omit_defaults=False):
    """One incident of one job. Times are ISO-8601 with their zone."""

    id: str  # sortable: 20261124T031512Z-node17-3f9a
    job: str
    label: str  # name for people: the script or the name of the Slurm job
    user: str | None
    slurm_job: str | None
    world_size: int | None
    hosts: tuple[str, ...]
    onset: str  # when progress ended
    opened: str  # when hangdoc first suspected it
    updated: str
    ended: str | None  # None: it goes on
    status: str  # of the newest verdict: stalled | failed | slow | diverging | unknown (none yet)
    verdicts: tuple[Mapping[str, Any], ...] = ()  # contract JSON, oldest first, only changes, at most MAX_VERDICTS
    outcome: Outcome | None = None  # None: it goes on
    step: str = ""  # the Slurm step whose tasks keep it together, see `step_of`; "": one watch keeps it
    recurrence: str = ""  # "third stall on node17's eth1 in 6 days"
    processes: tuple[tuple[str, int, int], ...] = ()  # host, PID and start time (clock ticks) of ranks at the onset
