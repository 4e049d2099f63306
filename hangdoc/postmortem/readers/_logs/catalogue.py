"""The catalogue of messages in patterns.yaml: which lines of a log are evidence, and of what."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hangdoc.postmortem.readers._logs.scan import Anchors

FILE = Path(__file__).parent / "patterns.yaml"
HARMLESS = "harmless"  # kind of messages that healthy jobs print; nothing searches for them
NOTICE = "notice"  # kind of messages that no rule reads
# Kinds of which a log of a large job holds many lines, each of them evidence of another rank.
EVERY_RANK = frozenset(
    {
        "collective_timeout", "work_status", "dump_signal", "dump_observed", "failed_stack", "watchdog_stuck",
        "gloo_timeout", "barrier_timeout", "connection_closed", "connect_failed", "ib_error", "nccl_interface",
        "nccl_bootstrap", "nccl_rank", "ray_worker", "failed", "failure", "told_to_end", "would_not_end", "slurm_task",
        "exception", "fatal_error", "mismatch", "unreachable", "start", "restart",
        "announced", "nccl_version",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LinePattern:
    """One form of a message. patterns.yaml explains the fields."""

    kind: str
    anchor: str
    expression: str  # `match`
    since: str
    proves: str
    not_proves: str
    playbooks: Sequence[str]
    source: str
    examples: Sequence[str]
    checked: str | None = None
    also: Sequence[str] = ()

    @property
    def match(self) -> re.Pattern[str]:
        """The expression, compiled when it is first used."""
        return _compiled(self.expression)


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression, re.DOTALL)


@cache
def catalogue() -> tuple[LinePattern, ...]:
    """All entries, in file order."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return tuple(_pattern(entry) for entry in yaml.load(FILE.read_text(encoding="utf-8"), loader))


def _pattern(entry: Mapping[str, Any]) -> LinePattern:
    example = entry["example"]
    return LinePattern(
        kind=entry["kind"],
        anchor=entry["anchor"],
        expression=entry["match"] if "match" in entry else re.escape(entry["anchor"]),
        since=entry["since"],
        proves=entry["proves"],
        not_proves=entry["not"],
        playbooks=tuple(entry.get("playbook", ())),
        source=entry["source"],
        examples=(example,) if isinstance(example, str) else tuple(example),
        checked=entry.get("checked"),
        also=tuple(entry.get("also", ())),
    )


@cache
def line_patterns() -> tuple[LinePattern, ...]:
    """The entries that are searched for, in file order."""
    return tuple(pattern for pattern in catalogue() if pattern.kind != HARMLESS)


@cache
def patterns_by_anchor() -> Mapping[str, Sequence[LinePattern]]:
    """The entries that are searched for, by anchor, in file order."""
    found: dict[str, list[LinePattern]] = {}
    for pattern in line_patterns():
        found.setdefault(pattern.anchor, []).append(pattern)
    return found


@cache
def anchors() -> Anchors:
    """The anchors of all entries that are searched for."""
    return Anchors(tuple(patterns_by_anchor()))
