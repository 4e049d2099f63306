"""That a job is gone, and what is left of a rank of it (record `aftermath`, made where pieces are assembled)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Aftermath:
    """Its evidence was not taken by us, at an instant of our choosing: nobody watched it for long enough."""

    left: tuple[str, ...]  # kinds of record that were found of it: stacks, logs, recorder, ...
