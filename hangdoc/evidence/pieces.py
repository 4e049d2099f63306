"""What post-mortem readers return: a record from a file, and the process that it describes."""

from __future__ import annotations

from typing import Any

from hangdoc.evidence.record import Record

CONTAINER_PID = 1  # of the main process of a container, in its own namespace


class ProcessRef(Record, frozen=True):
    """What a source states about the process of a piece; None: not stated."""

    rank: int | None = None  # global rank
    host: str | None = None
    pid: int | None = None
    run: int = 0  # restarts of the job so far
    local: int | None = None  # its number among the ranks of its host, if the rank is not stated
    node: int | None = None  # the number of its host in the job, if the rank is not stated


class Piece(Record, frozen=True):
    """A record of one process, as a probe would return it. Pieces of one process and probe are successive samples.

    `probe` names the probe of the record, or is `logs`, or `end` with an `End` as record. A `process` without rank and
    PID stands for its host, and without a host for the whole job.
    """

    process: ProcessRef
    probe: str
    record: Any
    at: float | None = None  # Unix time (s) on the clock of its host
    world_size: int | None = None
    job: str | None = None
    launcher: str | None = None
