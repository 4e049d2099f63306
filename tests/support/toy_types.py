"""Types of facts for the tests of the rule engine, composed from a few groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import make_dataclass
from typing import Protocol

from hangdoc.analysis.facts import Schema


class NamedGroup(Protocol):
    """A group of facts, as rules see it."""

    name: str
    rank_facts: type | None
    job_facts: type | None
    seen_by: tuple[str, ...]


def schema(groups: Sequence[NamedGroup]) -> Schema:
    """The types of the facts of these groups, as `hangdoc.analysis.facts` has them of all analyses."""
    job = make_dataclass("JobFacts", [(g.name, g.job_facts) for g in groups if g.job_facts is not None], frozen=True)
    rank = make_dataclass(
        "RankFacts",
        [
            ("rank", int),
            ("pid", int),
            ("host", str),
            ("alive", bool | None),
            ("seen", tuple[str, ...]),
            ("job", job),
            *((g.name, g.rank_facts) for g in groups if g.rank_facts is not None),
        ],
        unsafe_hash=True,
        slots=True,
    )
    return Schema(rank, job, {g.name: frozenset(g.seen_by) for g in groups if g.seen_by})
