"""Someone a rule may blame of whom no process is seen: a rank that never came, a stranger, a host out of sight."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Suspect:
    """As much as is known of it; `host` may be a mere address."""

    rank: int | None
    pid: int | None = None
    host: str | None = None
