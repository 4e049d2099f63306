"""The facts a rule may speak of, composed of the groups that the analyses declare.

A rule over one rank reads `rank`, `pid`, `host`, `alive`, `seen` and every group by name (`stack.phase`); the job's
groups are reached as `job.GROUP.field`. A rule over the job reads the job's groups and the playbook's selections.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from operator import attrgetter
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


@dataclass(slots=True)
class Pending:
    """A group of facts that nobody has asked for yet."""

    analysis: Analysis
    case: Case
    _facts: Mapping[Key, Any] | None = field(default=None, repr=False)

    def of(self, key: Key) -> Any:
        if self._facts is None:
            self._facts, _ = self.analysis.derive(self.case)
        return self._facts[key]


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
        unsafe_hash=True,  # and not frozen, see `light`
        slots=True,
    )
    later = {a.name: _lazy_field(getattr(rank, a.name)) for a in found if on_demand(a)}
    return Schema(type("RankFacts", (rank,), {"__slots__": (), "ON_DEMAND": frozenset(later), **later}), job, found)


def on_demand(analysis: Analysis) -> bool:
    """Its facts are derived when they are first asked for."""
    return getattr(analysis, "on_demand", False)


def _lazy_field(slot: Any) -> property:
    """A field that is `Pending` until it is read."""

    def read(rank: Any) -> Any:
        value = slot.__get__(rank)
        if isinstance(value, Pending):
            value = value.of((rank.host, rank.pid))
            slot.__set__(rank, value)
        return value

    return property(read, slot.__set__)


def derive(history: Sequence[Snapshot], types: Schema) -> Facts:
    """Run every analysis over the evidence, in order."""
    history = _without_superseded(history)
    looked = rounds(history)
    case = Case(history, _newest(looked), _rounds=looked)
    for analysis in types.analyses:
        if on_demand(analysis):
            continue
        by_rank, of_job = analysis.derive(case)
        if analysis.rank_facts is not None:
            case.rank_facts[analysis.name] = by_rank
        if analysis.job_facts is not None:
            case.job_facts[analysis.name] = of_job
    job = types.job(**case.job_facts)
    seen = _SortedNames()
    groups = [_group(case, analysis) for analysis in types.analyses if analysis.rank_facts is not None]
    ranks = [
        types.rank(
            -1 if evidence.target.rank is None else evidence.target.rank,
            evidence.target.pid,
            evidence.target.host,
            evidence.alive,
            seen[tuple(evidence.records)],
            job,
            *of_groups,
        )
        for evidence, of_groups in zip(case.ranks.values(), zip(*groups, strict=True), strict=True)
    ]
    return Facts(tuple(sorted(ranks, key=attrgetter("rank", "host", "pid"))), job, case)


class _SortedNames(dict[tuple[str, ...], tuple[str, ...]]):
    """Names of probes in order; one object for all ranks of which the same was seen."""

    def __missing__(self, names: tuple[str, ...]) -> tuple[str, ...]:
        ordered = tuple(sorted(names))
        self[names] = told = ordered if ordered == names else self[ordered]
        return told


def _without_superseded(history: Sequence[Snapshot]) -> Sequence[Snapshot]:
    """Without what a host told of ranks before another host, which is nearer to them, came to answer for them."""
    if not any(shot.elsewhere for shot in history):
        return history
    left: dict[str, set[int]] = {}
    kept: list[Snapshot] = []
    for shot in reversed(history):
        pids = left.setdefault(shot.host, set())
        if shot.ranks or shot.records or shot.unseen:
            kept.append(_without(shot, pids))
        pids.update(shot.elsewhere)
    return kept[::-1]


def _without(shot: Snapshot, pids: Collection[int]) -> Snapshot:
    ranks = tuple(rank for rank in shot.ranks if rank.target.pid not in pids)
    if len(ranks) == len(shot.ranks):
        return shot
    return replace(shot, ranks=ranks, unseen=tuple(lack for lack in shot.unseen if lack.pid not in pids))


def _group(case: Case, analysis: Analysis) -> list[Any]:
    """One group of facts of every rank, as the type of the facts has it."""
    if on_demand(analysis):
        return [Pending(analysis, case)] * len(case.ranks)
    facts = case.rank_facts[analysis.name]
    # Most are in the order of the ranks: then none needs to be looked up.
    return list(facts.values()) if list(facts) == list(case.ranks) else [facts[key] for key in case.ranks]


def _newest(looked: Mapping[Key, Sequence[tuple[Snapshot, RankEvidence]]]) -> dict[Key, RankEvidence]:
    """The newest evidence of each rank; records a later, cheaper round did not renew are carried over."""
    newest: dict[Key, RankEvidence] = {}
    for key, seen in looked.items():
        records: dict[str, Any] = {}
        how = end = None
        for _, rank in seen:
            records.update(rank.records)
            how, end = rank.exit or how, rank.end or end
        last = seen[-1][1]
        if len(last.records) == len(records) and how is last.exit and end is last.end:  # nothing to carry over
            newest[key] = last
        else:
            newest[key] = RankEvidence(last.target, last.alive, records, how, end)
    # By rank, whichever host was heard first: of two sides that are alike in all else the first is told of.
    return dict(sorted(newest.items(), key=lambda item: (_number(item[1]), item[0])))


def _number(evidence: RankEvidence) -> tuple[bool, int]:
    rank = evidence.target.rank
    return rank is None, rank or 0
