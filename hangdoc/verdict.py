"""A verdict: hangdoc's diagnosis of a job. The JSON contract `hangdoc.verdict/1` mirrors these records.

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
    """One line of the rank table."""

    rank: int | None
    pid: int | None  # None: the process has ended
    host: str
    phase: str
    op: str | None = None
    site: str | None = None  # "train (train.py:24)"


@dataclass(frozen=True, slots=True)
class Job:
    """The job that a verdict is about."""

    id: str
    world_size: int | None
    launcher: str | None
    hosts: tuple[str, ...]
    ranks: tuple[RankLine, ...]


@dataclass(frozen=True, slots=True)
class Culprit:
    """A rank or host that is responsible for a finding."""

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
    """One line of evidence, and the ranks that it is about."""

    probe: str
    ranks: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A playbook that applies to the job."""

    playbook: str
    cls: str  # JSON: "class"
    confidence: str
    title: str
    summary: str
    culprits: tuple[Culprit, ...] = ()
    links: tuple[Link, ...] = ()
    evidence: tuple[Proof, ...] = ()
    actions: tuple[str, ...] = ()
    status: str = "stalled"  # status of a job with this finding; not in the JSON
    reasons: tuple[str, ...] = ()  # reasons that raised or lowered the confidence; not in the JSON


@dataclass(frozen=True, slots=True)
class Considered:
    """Outcome of a playbook that is not a finding: `no`, or `unknown` if evidence is missing."""

    playbook: str
    outcome: str  # no | unknown
    why: str


@dataclass(frozen=True, slots=True)
class Family:
    """A class of causes that may explain a job without a known culprit, with what speaks for and against it."""

    cls: str  # JSON: "class"
    title: str
    speaks_for: tuple[str, ...] = ()  # JSON: "for"
    against: tuple[str, ...] = ()
    decides: str = ""  # the command or file that would decide


@dataclass(frozen=True, slots=True)
class Verdict:
    """The status of a job, and its findings in order of importance."""

    status: str
    stalled_for_s: float | None
    job: Job
    findings: tuple[Finding, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    note: str = ""  # one sentence about the job, such as its step time; the reason if the status is unknown
    considered: tuple[Considered, ...] = ()
    differences: tuple[str, ...] = ()  # settings that differ between ranks, if no playbook explains the job
    understood: tuple[str, ...] = ()  # what the evidence shows, if no playbook names a culprit
    families: tuple[Family, ...] = ()  # the most likely classes of causes then, best first
