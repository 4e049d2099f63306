"""A verdict: what hangdoc says of a job. The JSON contract `hangdoc.verdict/1` mirrors these records.

Renderers receive a `Verdict` and decide nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from hangdoc.evidence import Unseen

SCHEMA = "hangdoc.verdict/1"

STATUSES = ("stalled", "slow", "failed", "diverging", "healthy", "unknown")
CLASSES = (
    "collective_wait",
    "slow_compute",
    "network",
    "input_stall",
    "host_fault",
    "startup",
    "silent_divergence",
)
CONFIDENCES = ("low", "medium", "high")

# Exit codes of `watch --once` and `report` (contract).
EXIT = {"healthy": 0, "slow": 1, "diverging": 1, "stalled": 2, "failed": 2, "unknown": 3}


@dataclass(frozen=True, slots=True)
class RankLine:
    """One rank as the verdict shows it."""

    rank: int | None
    pid: int | None  # None: the process is gone
    host: str
    phase: str
    op: str | None = None
    site: str | None = None  # "train (train.py:24)"


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    world_size: int | None
    launcher: str | None
    hosts: tuple[str, ...]
    ranks: tuple[RankLine, ...]


@dataclass(frozen=True, slots=True)
class Culprit:
    rank: int | None
    pid: int | None
    host: str | None
    site: str | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A connection between two ranks; addresses as `ip:port`."""

    from_rank: int | None
    to_rank: int | None
    local: str  # JSON: "from"
    remote: str  # JSON: "to"
    interface: str | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """One line of evidence, and the ranks it speaks of."""

    probe: str
    ranks: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    playbook: str
    cls: str  # JSON: "class"
    confidence: str
    title: str
    summary: str
    culprits: tuple[Culprit, ...] = ()
    links: tuple[Link, ...] = ()
    evidence: tuple[Proof, ...] = ()
    actions: tuple[str, ...] = ()
    status: str = "stalled"  # what the finding makes of the job; not in the JSON
    reasons: tuple[str, ...] = ()  # what raised or lowered the confidence; not in the JSON


@dataclass(frozen=True, slots=True)
class Considered:
    """What became of a playbook that is not a finding: `no`, or `unknown` for want of evidence."""

    playbook: str
    outcome: str
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    status: str
    stalled_for_s: float | None
    job: Job
    findings: tuple[Finding, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    note: str = ""  # one sentence: what the job is doing, where nothing is wrong or nothing can be told
    considered: tuple[Considered, ...] = ()
