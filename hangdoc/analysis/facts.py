"""Facts available to rules, composed from the groups that the analyses declare.

A selection over one rank reads `rank`, `pid`, `host`, `alive`, `seen` and every group by name (`stack.phase`); it reads
the job's groups as `job.GROUP.field`. An expression over the job reads the job's groups and the playbook's selections.
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
    """The types of the facts; rules are checked against them."""

    rank: type
    job: type
    analyses: tuple[Analysis, ...]

    @property
    def seen_by(self) -> Mapping[str, frozenset[str]]:
        """By group of facts the probes of which one must have seen a rank; groups that need none are left out."""
        return {a.name: frozenset(probes) for a in self.analyses if (probes := getattr(a, "seen_by", ()))}


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of one diagnosis, over which all playbooks are evaluated."""

    ranks: tuple[Any, ...]  # instances of Schema.rank, sorted by rank number
    job: Any  # instance of Schema.job
    case: Case
    seen_by: Mapping[str, frozenset[str]] = field(default_factory=dict)  # as in the schema


@dataclass(slots=True)
class Pending:
    """A group of facts that no rule has read yet."""

    analysis: Analysis
    case: Case
    _facts: Mapping[Key, Any] | None = field(default=None, repr=False)

    def of(self, key: Key) -> Any:
        if self._facts is None:
            kind = self.analysis.rank_facts
            self._facts = self.case.facts(kind) if kind else {}
        return self._facts[key]


def schema(analyses: tuple[Analysis, ...] | None = None) -> Schema:
    """The types of the facts, composed from the analyses (default: all of them)."""
    found = load() if analyses is None else analyses
    job = make_dataclass(
        "JobFacts",
        [(a.name, a.job_facts) for a in found if a.job_facts is not None],
        frozen=True,
    )
    rank: type = make_dataclass(
        "RankFacts",
        [
            ("rank", int),  # -1: unknown
            ("pid", int),
            ("host", str),
            ("alive", bool | None),
            ("seen", tuple[str, ...]),  # probes with a record of this rank
            ("job", job),
            *((a.name, a.rank_facts) for a in found if a.rank_facts is not None),
        ],
        unsafe_hash=True,  # not frozen: see `fast_dataclass`
        slots=True,
    )
    later = {a.name: _lazy_field(getattr(rank, a.name)) for a in found if on_demand(a)}
    return Schema(type("RankFacts", (rank,), {"__slots__": (), "ON_DEMAND": frozenset(later), **later}), job, found)


def on_demand(analysis: Analysis) -> bool:
    """True if its facts are derived when a rule first reads them."""
    return getattr(analysis, "on_demand", False)


def _lazy_field(slot: Any) -> property:
    """A field that derives its value, if `Pending`, when first read."""

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
    by_rank = rounds(history)
    kinds = {kind: a for a in types.analyses for kind in (a.rank_facts, a.job_facts) if kind is not None}
    case = Case(history, _newest(by_rank), kinds, _rounds=by_rank)
    for analysis in types.analyses:
        if on_demand(analysis):
            continue
        if analysis.rank_facts is not None:
            case.facts(analysis.rank_facts)
        if analysis.job_facts is not None:
            case.job(analysis.job_facts)
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
    return Facts(tuple(sorted(ranks, key=attrgetter("rank", "host", "pid"))), job, case, types.seen_by)


class _SortedNames(dict[tuple[str, ...], tuple[str, ...]]):
    """Sorted probe names; ranks with the same records share one tuple."""

    def __missing__(self, names: tuple[str, ...]) -> tuple[str, ...]:
        ordered = tuple(sorted(names))
        self[names] = shared = ordered if ordered == names else self[ordered]
        return shared


def _without_superseded(history: Sequence[Snapshot]) -> Sequence[Snapshot]:
    """Drop a host's evidence of ranks that another host, closer to them, has since reported."""
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
    """One group of facts, for every rank in the order of the case."""
    if on_demand(analysis):
        return [Pending(analysis, case)] * len(case.ranks)
    facts = case.rank_facts[analysis.name]
    # Most analyses keep the order of the ranks: then no look-up is needed.
    return list(facts.values()) if list(facts) == list(case.ranks) else [facts[key] for key in case.ranks]


def _newest(by_rank: Mapping[Key, Sequence[tuple[Snapshot, RankEvidence]]]) -> dict[Key, RankEvidence]:
    """The newest evidence of each rank, with records carried over that a later, cheaper round did not renew."""
    newest: dict[Key, RankEvidence] = {}
    for key, seen in by_rank.items():
        records: dict[str, Any] = {}
        exit_text = end = None
        for _, rank in seen:
            records.update(rank.records)
            exit_text, end = rank.exit or exit_text, rank.end or end
        last = seen[-1][1]
        if len(last.records) == len(records) and exit_text is last.exit and end is last.end:  # nothing to carry over
            newest[key] = last
        else:
            newest[key] = RankEvidence(last.target, last.alive, records, exit_text, end)
    # Sorted by rank, not by which host reported first: ties between sides go to the first one.
    return dict(sorted(newest.items(), key=lambda item: (_number(item[1]), item[0])))


def _number(evidence: RankEvidence) -> tuple[bool, int]:
    rank = evidence.target.rank
    return rank is None, rank or 0
