"""The facts a rule may speak of, composed of the groups that the analyses declare.

A rule over one rank reads `rank`, `pid`, `host`, `alive`, `seen` and every group by name (`stack.phase`); the job's
groups are reached as `job.GROUP.field`. A rule over the job reads the job's groups and the playbook's selections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from typing import Any

from hangdoc.analysis import Analysis, Case, Key, load, rounds
from hangdoc.evidence import RankEvidence, Snapshot


@dataclass(frozen=True, slots=True)
class Schema:
    """The dataclasses rules are typed against."""

    rank: type
    job: type
    analyses: tuple[Analysis, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """What all the playbooks are evaluated over."""

    ranks: tuple[Any, ...]  # of Schema.rank, by rank number
    job: Any  # of Schema.job
    case: Case


def schema(analyses: tuple[Analysis, ...] | None = None) -> Schema:
    """Compose the types of the facts from the analyses."""
    found = load() if analyses is None else analyses
    job = make_dataclass(
        "JobFacts",
        [(a.name, a.job_facts) for a in found if a.job_facts is not None],
        frozen=True,
    )
    rank: type = make_dataclass(
        "RankFacts",
        [
            ("rank", int),  # -1: not known
            ("pid", int),
            ("host", str),
            ("alive", bool | None),
            ("seen", tuple[str, ...]),  # probes whose record is there
            ("job", job),
            *((a.name, a.rank_facts) for a in found if a.rank_facts is not None),
        ],
        frozen=True,
        slots=True,
    )
    return Schema(rank, job, found)


def derive(history: Sequence[Snapshot], types: Schema) -> Facts:
    """Run every analysis over the evidence, in order."""
    case = Case(history, _newest(history))
    for analysis in types.analyses:
        by_rank, of_job = analysis.derive(case)
        if analysis.rank_facts is not None:
            case.rank_facts[analysis.name] = by_rank
        if analysis.job_facts is not None:
            case.job_facts[analysis.name] = of_job
    job = types.job(**case.job_facts)
    groups = [case.rank_facts[a.name] for a in types.analyses if a.rank_facts is not None]  # as the type has them
    seen: dict[tuple[str, ...], tuple[str, ...]] = {}  # one object for all ranks of which the same was seen
    ranks = [
        types.rank(
            -1 if evidence.target.rank is None else evidence.target.rank,
            evidence.target.pid,
            evidence.target.host,
            evidence.alive,
            seen.setdefault(probes := tuple(sorted(evidence.records)), probes),
            job,
            *[facts[key] for facts in groups],
        )
        for key, evidence in case.ranks.items()
    ]
    # What the analyses worked out on their way is not kept: of thousands of ranks it is as much as the facts.
    case = Case(case.history, case.ranks, case.rank_facts, case.job_facts)
    return Facts(tuple(sorted(ranks, key=lambda r: (r.rank, r.host, r.pid))), job, case)


def _newest(history: Sequence[Snapshot]) -> dict[Key, RankEvidence]:
    """The newest evidence of each rank; records a later, cheaper round did not renew are carried over."""
    newest: dict[Key, RankEvidence] = {}
    for key, seen in rounds(history).items():
        records: dict[str, Any] = {}
        for _, rank in seen:
            records.update(rank.records)
        last = seen[-1][1]
        how = next((rank.exit for _, rank in reversed(seen) if rank.exit), None)
        end = next((rank.end for _, rank in reversed(seen) if rank.end), None)
        newest[key] = RankEvidence(last.target, last.alive, records, how, end)
    # By rank, whichever host was heard first: of two sides that are alike in all else the first is told of.
    return dict(sorted(newest.items(), key=lambda item: (_number(item[1]), item[0])))


def _number(evidence: RankEvidence) -> tuple[bool, int]:
    rank = evidence.target.rank
    return rank is None, rank or 0
