"""Sends and receives that a rank has started, and its pipeline schedule (record of probe `transfers`)."""

from __future__ import annotations

from hangdoc.evidence.record import Record


class Transfer(Record, frozen=True):
    """A send or receive that a rank has started, and whose counterpart its peer has not yet started."""

    sends: bool
    peer: int | None  # global rank; None: it receives from any rank
    tag: int
    group: int  # address of its process group in this rank, as in ProcessGroup
    # Variables of the innermost frames that hold its Work: "req", "reqs[0]", "handles[left]".
    names: tuple[str, ...] = ()


class PipelineSchedule(Record, frozen=True):
    """The schedule of pipeline stages that a rank runs."""

    name: str  # its class: Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B, ...
    stages: tuple[int, ...]  # numbers of the stages on this rank, from 0
    of: int  # stages of the pipeline
    microbatches: int  # into which it splits each batch
    group: int | None = None  # address of the process group of its stages; None: the default group, or unknown


class Transfers(Record, frozen=True):
    """The pending sends and receives of one rank, in gloo groups, and its pipeline."""

    groups: tuple[int, ...] = ()  # addresses of the groups whose pending transfers were read
    pending: tuple[Transfer, ...] = ()
    pipelines: tuple[PipelineSchedule, ...] = ()  # innermost first
