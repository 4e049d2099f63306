"""A record that a post-mortem reader found in a file, and its process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """A process, as far as a source identifies it; None: not stated."""

    rank: int | None = None  # global rank
    host: str | None = None
    pid: int | None = None
    run: int = 0  # number of restarts of the job before


@dataclass(frozen=True, slots=True)
class Piece:
    """A record of one process, as a probe would record it; several of one process and probe are successive looks.

    `probe`: name of a probe, or `logs`, or `end` (the record is an `End`: how the process ended). A `process` without
    rank and PID stands for its host, or for the whole job.
    """

    process: ProcessRef
    probe: str
    record: Any
    at: float | None = None  # Unix time (s) by the clock of its host
    world_size: int | None = None
    job: str | None = None
    launcher: str | None = None
