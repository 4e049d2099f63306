"""The facts a rule may speak of, composed of the groups that the analyses declare.

A rule over one rank reads `rank`, `pid`, `host`, `alive`, `seen` and every group by name (`stack.phase`); the job's
groups are reached as `job.GROUP.field`. A rule over the job reads the job's groups and the playbook's selections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from typing import Any

from hangdoc.analysis import Analysis, Case, Key, load
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
    rank = make_dataclass(
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
    ranks = [
        types.rank(
            rank=-1 if evidence.target.rank is None else evidence.target.rank,
            pid=evidence.target.pid,
            host=evidence.target.host,
            alive=evidence.alive,
            seen=tuple(sorted(evidence.records)),
            job=job,
            **{name: facts[key] for name, facts in case.rank_facts.items()},
        )
        for key, evidence in case.ranks.items()
    ]
    # What the analyses worked out on their way is not kept: of thousands of ranks it is as much as the facts.
    case = Case(case.history, case.ranks, case.rank_facts, case.job_facts)
    return Facts(tuple(sorted(ranks, key=lambda r: (r.rank, r.host, r.pid))), job, case)


def _newest(history: Sequence[Snapshot]) -> dict[Key, RankEvidence]:
    """The newest evidence of each rank; records a later, cheaper round did not renew are carried over."""
    newest: dict[Key, RankEvidence] = {}
    for shot in history:
        for rank in shot.ranks:
            key = (rank.target.host, rank.target.pid)
            before = newest.get(key)
            records = {**(before.records if before else {}), **rank.records}
            newest[key] = RankEvidence(
                rank.target,
                rank.alive,
                records,
                rank.exit or (before.exit if before else None),
                rank.end or (before.end if before else None),
            )
    # By rank, whichever host was heard first: of two sides that are alike in all else the first is told of.
    return dict(sorted(newest.items(), key=lambda item: (_number(item[1]), item[0])))


def _number(evidence: RankEvidence) -> tuple[bool, int]:
    rank = evidence.target.rank
    return rank is None, rank or 0
