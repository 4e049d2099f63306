"""Culprits that are not among the observed ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Suspect:
    """A culprit that was not observed as a rank: one that never started, a foreign process, an unwatched host.

    A rule names a tuple of these under `culprits`. None: unknown; `host` is a host name or an address.
    """

    rank: int | None
    pid: int | None = None
    host: str | None = None
