"""Culprits without an observed process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Suspect:
    """A culprit no process was observed for: a rank that never started, a foreign process, a host not watched.

    A rule names a tuple of these under `culprits`. None: unknown; `host` is a host name or an address.
    """

    rank: int | None
    pid: int | None = None
    host: str | None = None
