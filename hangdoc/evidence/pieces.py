"""A record read from a file, and the process it is about (post-mortem readers)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """As much as a source says of the process that a piece is about; None: it does not say."""

    rank: int | None = None  # global rank
    host: str | None = None
    pid: int | None = None
    run: int = 0  # how often the job had been restarted


@dataclass(frozen=True, slots=True)
class Piece:
    """A record of one process, such as a probe would have made; several of one process and probe are successive looks.

    `probe` is the name of the probe whose record it is, or `logs`, or `end` with an `End` as record: how the process
    ended. `who` with neither rank nor PID speaks of the host, else of the job as a whole.
    """

    process: ProcessRef
    probe: str
    record: Any
    at: float | None = None  # Unix time (s) by the clock of its host
    world_size: int | None = None
    job: str | None = None
    launcher: str | None = None
