"""Evaluation of every playbook over the facts. Missing evidence is "unknown", never "no".

A playbook that fails, or exceeds its CPU time, affects no other playbook.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from hangdoc.analysis.facts import Facts
from hangdoc.formatting import name_ranks
from hangdoc.rules.conditions import Condition, Counted, Joined, Members, Not, Path, Quantified, Selected, every
from hangdoc.rules.loader import LAYERS, Library, Playbook
from hangdoc.rules.time_limit import TooSlow, allowance
from hangdoc.verdict import CONFIDENCES, Considered, Culprit, Finding, Link, Proof

if TYPE_CHECKING:
    from hangdoc.rules.conditions import Kind

MAX_LINES = 8  # per line of evidence with `each`
CPU_S = 1.0  # per playbook; a built-in one takes milliseconds
CPU_S_PER_RANK = 0.2e-3  # in addition; all built-in ones together take less
FAILED = "its rule failed"
BY_STATUS = ("failed", "stalled", "diverging", "slow", "healthy", "unknown")  # of findings that are equally certain
MAX_SHARED = 64  # distinct objects of a fact group that counts as shared

Lacking = tuple[Mapping[int, Sequence[str]], str]  # missing probes by index of the rank; the same as text


def evaluate(
    library: Library, facts: Facts, slow: MutableMapping[str, str] | None = None
) -> tuple[tuple[Finding, ...], tuple[Considered, ...]]:
    """Findings, best first, and the outcome of every other playbook. Never raises.

    Findings are sorted by confidence, by layer, by status and by id. A finding that another finding explains is
    dropped.

    `slow`: playbooks that once took too long, by id, with the reason; they are not evaluated again.
    """
    slow = {} if slow is None else slow
    view = View(facts)
    fired: list[Finding] = []
    considered: list[Considered] = []
    for playbook in library.playbooks:
        outcome = (
            Considered(playbook.id, "unknown", slow[playbook.id])
            if playbook.id in slow
            else _judge(playbook, view, slow)
        )
        if isinstance(outcome, Considered):
            considered.append(outcome)
        else:
            fired.append(outcome)
    layers = {playbook.id: LAYERS.index(playbook.envelope.layer) for playbook in library.playbooks}
    fired.sort(
        key=lambda f: (
            -CONFIDENCES.index(f.confidence), layers[f.playbook], BY_STATUS.index(f.status), f.playbook,
        )
    )  # fmt: skip
    explained = _explained(library, [finding.playbook for finding in fired])
    considered.extend(Considered(id, "no", f"explained by {cause}") for id, cause in explained.items())
    findings = tuple(finding for finding in fired if finding.playbook not in explained)
    return findings, tuple(sorted(considered, key=lambda c: c.playbook))


def _explained(library: Library, fired: Sequence[str]) -> dict[str, str]:
    """Playbooks that another one explains, by id, with the best of those that do and that nothing explains.

    `fired`: best first. An explained one still explains others.

    Causes explain violated contracts and symptoms, and those explain symptoms; `explains` adds to that, and also turns
    it round. There is no circle: see `loader.load`.
    """
    edges = {id: {other for other in fired if library.explains(id, other)} for id in fired}
    explained = set().union(*edges.values())
    dropped: dict[str, str] = {}
    for root in (id for id in fired if id not in explained):
        left = [root]
        while left:
            for id in sorted(edges[left.pop()] - dropped.keys()):
                dropped[id] = root
                left.append(id)
    return dropped


class PlaybookScope(Mapping[str, Any]):
    """What one playbook is evaluated over: the job's facts and its selections, by name; selections are lazy."""

    def __init__(self, playbook: Playbook, view: View, lacking: Collection[int]) -> None:
        from hangdoc.rules.expressions import OBSERVED, UNOBSERVED

        ranks = view.facts.ranks
        self._playbook, self._view = playbook, view
        self._known = [i for i in range(len(ranks)) if i not in lacking] if lacking else range(len(ranks))
        self._ranks = tuple(ranks[i] for i in self._known) if lacking else ranks
        self._made: dict[str, Any] = {
            "job": view.facts.job,
            OBSERVED: self._ranks,
            UNOBSERVED: tuple(ranks[i] for i in lacking),
        }
        self._members: dict[int, Members] = {}
        self._selections = {**playbook.selections.links, **playbook.selections.ranks}
        self._names = dict.fromkeys((*self._made, *self._selections))
        self.job = {"job": view.facts.job}

    def members(self, condition: Condition, kind: Kind) -> Members:
        while isinstance(condition, Selected):
            condition = condition.condition
        if id(condition) not in self._members:
            indices = self._known if kind == "ranks" else range(len(self._view.links))
            self._members[id(condition)] = self._view.select(condition, kind, indices, self)
        return self._members[id(condition)]

    def everything(self, kind: Kind) -> Sequence[Any]:
        return self._ranks if kind == "ranks" else self._view.links

    def unseen(self, thing: Any, reads: Iterable[Path]) -> bool:
        return self._view.unseen(thing, reads)

    def holds(self, condition: Condition) -> bool:
        """True if the condition over the job is certain."""
        return condition.truth(self.job, self) is True

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            kind: Kind = "ranks" if name in self._playbook.selections.ranks else "links"
            self._made[name] = self.members(self._selections[name], kind).certain
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _judge(playbook: Playbook, view: View, slow: MutableMapping[str, str]) -> Finding | Considered:
    lacking, unseen = view.lacking(tuple(playbook.envelope.needs))
    if lacking and len(lacking) == len(view.facts.ranks):
        return Considered(playbook.id, "unknown", unseen)
    cpu_s = CPU_S + CPU_S_PER_RANK * len(view.facts.ranks)
    try:
        with allowance(cpu_s):
            scope = PlaybookScope(playbook, view, lacking)
            outcome = playbook.conditions[("when",)].truth(scope.job, scope)
            if outcome is None:
                unseen = unseen or view.unknown_because(playbook.conditions[("when",)], scope)
            if outcome:
                return _finding(playbook, scope, [why for why in (unseen, _doubt(view.facts)) if why])
    except TooSlow:
        slow[playbook.id] = f"{FAILED}: it took more than {cpu_s:.1f} s of CPU time on {len(view.facts.ranks)} ranks"
        return Considered(playbook.id, "unknown", slow[playbook.id])
    except Exception as error:  # unforeseen facts: the other rules must go on
        return Considered(playbook.id, "unknown", f"{FAILED}: {_error_text(error)}")
    if lacking or outcome is None:
        return Considered(playbook.id, "unknown", unseen)
    return Considered(playbook.id, "no", "its condition does not hold")


def _doubt(facts: Facts) -> str:
    """Reason why all evidence of the job deserves less confidence; empty if there is none."""
    return str(getattr(getattr(facts.job, "aftermath", None), "doubt", ""))


def _finding(playbook: Playbook, scope: PlaybookScope, doubts: Sequence[str]) -> Finding:
    envelope = playbook.envelope
    raised = _reasons(playbook, scope, "raise")
    lowered = _reasons(playbook, scope, "lower")
    level = CONFIDENCES.index(envelope.confidence.base) + len(raised) - len(lowered)
    # Doubts count after clipping: no number of good reasons makes up for missing evidence.
    level = min(max(level, 0), len(CONFIDENCES) - 1) - len(doubts)
    texts = _Texts(playbook, scope)
    finding = Finding(
        playbook=playbook.id,
        cls=envelope.cls,
        confidence=CONFIDENCES[max(level, 0)],
        title=envelope.title,
        summary=texts.one(("summary",)) or envelope.title,
        culprits=_culprits(playbook, scope),
        links=_links(scope[envelope.blame_links]) if envelope.blame_links else (),
        evidence=tuple(texts.evidence()),
        actions=tuple(texts.actions()),
        status=envelope.status,
    )
    reasons = (*raised, *lowered, *doubts, *texts.failures)
    return replace(finding, reasons=reasons)


def _reasons(playbook: Playbook, scope: PlaybookScope, direction: str) -> list[str]:
    confidence = playbook.envelope.confidence
    steps = confidence.raise_ if direction == "raise" else confidence.lower
    at = (("confidence", direction, i, "if") for i in range(len(steps)))
    return [step.because for step, where in zip(steps, at, strict=True) if scope.holds(playbook.conditions[where])]


class _Texts:
    """Renders the templates of one finding; a template that fails loses its line, not the finding."""

    def __init__(self, playbook: Playbook, scope: PlaybookScope) -> None:
        self.playbook, self.scope = playbook, scope
        self.failures: list[str] = []

    def one(self, at: tuple[str | int, ...], **more: Any) -> str:
        try:
            return self.playbook.templates[at].render({**self.scope, **more})
        except TooSlow:
            raise
        except Exception as error:  # unforeseen values
            self.failures.append(f"{'.'.join(map(str, at))} left out: {_error_text(error)}")
            return ""

    def actions(self) -> Iterable[str]:
        for i in range(len(self.playbook.envelope.actions)):
            if self._applies(("actions", i, "if")) and (text := self.one(("actions", i))):
                yield text

    def _applies(self, at: tuple[str | int, ...]) -> bool:
        condition = self.playbook.conditions.get(at)
        return condition is None or self.scope.holds(condition)

    def evidence(self) -> Iterable[Proof]:
        for i, line in enumerate(self.playbook.envelope.evidence):
            ranks = self.scope[line.ranks]
            if not ranks or not self._applies(("evidence", i, "if")):
                continue
            each = self.playbook.listings.get(("evidence", i, "each"))
            rounds = [{}] if each is None else [{"item": item} for item in each.value(self.scope)]
            for more in rounds[:MAX_LINES]:
                if text := self.one(("evidence", i, "text"), **more):
                    yield Proof(line.probe, tuple(r.rank for r in ranks if r.rank >= 0), text)


def _culprits(playbook: Playbook, scope: Mapping[str, Any]) -> tuple[Culprit, ...]:
    """The selected ranks, and culprits from `blame`: processes that hangdoc did not see, or that are no ranks."""
    found = tuple(map(_culprit, scope[playbook.envelope.culprits])) if playbook.envelope.culprits else ()
    blame = playbook.listings.get(("blame",))
    blamed = [Culprit(one.rank, one.pid, one.host) for one in (blame.value(scope) or () if blame else ())]
    known = {one.rank for one in found if one.rank is not None}
    return (*found, *(one for one in blamed if one.rank is None or one.rank not in known))


def _culprit(rank: Any) -> Culprit:
    sites = (getattr(getattr(rank, group, None), "site", None) for group in ("stack", "exit", "dumps"))
    site = next((site for site in sites if site), None)
    return Culprit(_number(rank.rank), rank.pid if rank.pid > 0 else None, rank.host, site)


def _links(links: Iterable[Any]) -> tuple[Link, ...]:
    """Each connection once, even if both its ends were seen."""
    found: dict[frozenset[str], Link] = {}
    for link in links:
        found_link = Link(_number(link.from_rank), _number(link.to_rank), link.local, link.remote, link.interface)
        found.setdefault(frozenset((link.local, link.remote)), found_link)
    return tuple(found.values())


def _named(ranks: Iterable[Any]) -> str:
    """`ranks 0-3`; by PID if no number is known."""
    found = list(ranks)
    numbers = sorted(one.rank for one in found if one.rank >= 0)
    return name_ranks(numbers) if numbers else f"pid {', '.join(str(one.pid) for one in found)}"


def _number(rank: int | None) -> int | None:
    return None if rank is None or rank < 0 else rank


def _error_text(error: Exception) -> str:
    return " ".join(str(getattr(error, "message", None) or error or type(error).__name__).split())[:200]


# --- facts as columns: an expression is evaluated once for all ranks that share their facts --------


class View:
    """The facts of a job, with the columns that expressions read."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.links: Sequence[Any] = facts.job.network.links if hasattr(facts.job, "network") else ()
        self._columns: dict[tuple[int, Path], list[Any]] = {}
        self._lacking: dict[tuple[str, ...], Lacking] = {}

    @cached_property
    def _of_host(self) -> Mapping[str, set[str]]:
        """The probes with a record of each host."""
        found: dict[str, set[str]] = {}
        for shot in self.facts.case.history:
            found.setdefault(shot.host, set()).update(shot.records)
        return found

    @cached_property
    def seen(self) -> Mapping[frozenset[str], list[int]]:
        """Indices of the ranks by the set of probes that saw them or their host.

        Ranks whose process has ended are left out: there is nothing left to see.
        """
        found: dict[frozenset[str], list[int]] = {}
        for i, rank in enumerate(self.facts.ranks):
            if rank.alive is not False:
                found.setdefault(frozenset(rank.seen).union(self._of_host.get(rank.host, ())), []).append(i)
        return found

    def lacking(self, needs: tuple[str, ...]) -> Lacking:
        """The ranks that some needed probe has not seen; the text is empty if there are none."""
        if needs not in self._lacking:
            missed = {seen: [probe for probe in needs if seen.isdisjoint(probe.split("|"))] for seen in self.seen}
            ranks = sorted((i, missed[seen]) for seen, some in self.seen.items() if missed[seen] for i in some)
            self._lacking[needs] = dict(ranks), self._lacking_text(dict(ranks)) if ranks else ""
        return self._lacking[needs]

    def _lacking_text(self, lacking: Mapping[int, Sequence[str]]) -> str:
        probes = dict.fromkeys(need.removesuffix("|aftermath") for missed in lacking.values() for need in missed)
        who = _named([self.facts.ranks[i] for i in lacking])
        return f"{' and '.join(probes).replace('|', ' or ')} of {who} not seen"

    def select(self, condition: Condition, kind: Kind, indices: Sequence[int], scope: PlaybookScope) -> Members:
        """The ranks or links of these indices by the condition's truth."""
        things: Sequence[Any] = self.facts.ranks if kind == "ranks" else self.links
        certain, unknown = self._indices(condition, kind, indices, scope)
        return Members(tuple([things[i] for i in sorted(certain)]), tuple([things[i] for i in sorted(unknown)]))

    def _indices(
        self, condition: Condition, kind: Kind, indices: Collection[int], scope: PlaybookScope
    ) -> tuple[Collection[int], Collection[int]]:
        """The indices where the condition is true, and where it is unknown.

        What ranks share is decided once for all that share it, and what differs only where it can still decide.
        """
        if kind == "ranks" and self._kinds.decide(condition):
            return self._kinds.indices(condition, indices, scope)
        if isinstance(condition, Selected):
            return self._indices(condition.condition, kind, indices, scope)
        if isinstance(condition, Not):
            certain, unknown = self._indices(condition.condition, kind, indices, scope)
            return set(indices).difference(certain, unknown), unknown
        if not isinstance(condition, Joined):
            return self._by_row(condition, kind, indices, scope)
        left, found, doubtful = set(indices), set[int](), set[int]()
        for part in sorted(condition.conditions, key=self._costs):
            certain, unknown = self._indices(part, kind, left, scope)
            doubtful.update(unknown)
            if condition.word == "or":
                found.update(certain)
                left.difference_update(certain)
            else:
                left.intersection_update({*certain, *unknown})
        if condition.word == "or":
            return found, doubtful - found
        return left - doubtful, left & doubtful

    def _costs(self, condition: Condition) -> bool:
        return not self._kinds.decide(condition)

    def _by_row(
        self, condition: Condition, kind: Kind, indices: Collection[int], scope: PlaybookScope
    ) -> tuple[Collection[int], Collection[int]]:
        """The same for a term, evaluated once for all ranks or links with the same values."""
        things: Sequence[Any] = self.facts.ranks if kind == "ranks" else self.links
        columns = [self._column(things, path) for path in condition.reads if path[0] != "job"]
        columns += [list(map(id, self.gaps))] if kind == "ranks" and self._gaps else []  # they decide what is unknown
        places = list(indices)
        rows = list(zip(*[[column[i] for i in places] for column in columns], strict=True)) or [()] * len(places)
        one_of = dict(zip(rows, places, strict=True))
        truths = {row: condition.truth(things[i], scope) for row, i in one_of.items()}
        return _by_truth(places, [truths[row] for row in rows])

    def unseen(self, thing: Any, reads: Iterable[Path]) -> bool:
        """True if evidence behind one of these fields was not seen of the rank."""
        gaps = self._gaps.get(id(thing), frozenset())
        return bool(gaps) and any(path[0] in gaps for path in reads)

    @cached_property
    def gaps(self) -> Sequence[frozenset[str]]:
        """Of each rank the fact groups that no probe has seen; equal ones are one object.

        Of a rank that has ended there is nothing left to see.
        """
        known: dict[tuple[Any, ...], frozenset[str]] = {}
        every: dict[frozenset[str], frozenset[str]] = {}
        found = []
        for rank in self.facts.ranks:
            at = (rank.seen, rank.host, rank.alive is False)
            if at not in known:
                probes = self._of_host.get(rank.host, set()).union(rank.seen)
                needed = {} if rank.alive is False else self.facts.seen_by
                gaps = frozenset(group for group, by in needed.items() if by.isdisjoint(probes))
                known[at] = every.setdefault(gaps, gaps)
            found.append(known[at])
        return found

    @cached_property
    def _gaps(self) -> Mapping[int, frozenset[str]]:
        """The gaps of the ranks that have any, by the identity of the rank."""
        return {id(rank): gaps for rank, gaps in zip(self.facts.ranks, self.gaps, strict=True) if gaps}

    def unknown_because(self, condition: Condition, scope: PlaybookScope) -> str:
        """The evidence that would decide a condition over the job: `io of ranks 0-3 not seen`."""
        found: dict[str, dict[int, Any]] = {}
        for one in every(condition):
            inner = [(one.condition, one.kind)] if isinstance(one, Quantified) else []
            inner += [(counted, kind) for _, kind, counted in one.counts] if isinstance(one, Counted) else []
            for asked in (asked for asked, kind in inner if kind == "ranks"):
                groups = {path[0] for path in asked.reads}
                for rank in scope.members(asked, "ranks").unknown:
                    for group in groups & self._gaps.get(id(rank), frozenset()):
                        found.setdefault(self._probes_of(group), {})[id(rank)] = rank
        return "; ".join(f"{probes} of {_named(ranks.values())} not seen" for probes, ranks in sorted(found.items()))

    def lacking_evidence(self, condition: Condition, ranks: Sequence[Any]) -> list[str]:
        """The probes (`cpu or stacks`) that have not seen one of the ranks, and that the condition depends on."""
        groups = {path[0] for path in condition.reads}
        lacking = {group for rank in ranks for group in groups & self._gaps.get(id(rank), frozenset())}
        return sorted(set(map(self._probes_of, lacking)))

    def _probes_of(self, group: str) -> str:
        """The probes that see a fact group; what a job left behind is no probe."""
        return " or ".join(sorted(self.facts.seen_by[group] - {"aftermath"}))

    @cached_property
    def _kinds(self) -> Kinds:
        return Kinds.of(self.facts.ranks, self.gaps, self.facts.deferred)

    def _column(self, things: Sequence[Any], path: Path) -> list[Any]:
        at = (id(things), path)
        if at not in self._columns:
            column = getattr(things, "column", None)  # lazily built facts
            values: list[Any] = column(path[0]) if column else list(map(attrgetter(path[0]), things))
            for name in path[1:]:
                values = [None if value is None else getattr(value, name) for value in values]
            self._columns[at] = values
        return self._columns[at]


@dataclass(frozen=True, slots=True)
class Kinds:
    """Ranks grouped by the fact groups that many of them share."""

    ranks: Sequence[Any]
    shared: frozenset[str]  # names of these fact groups
    kinds: Sequence[int]  # kind of each rank
    one_of: Mapping[int, Any]  # a rank of each kind

    @classmethod
    def of(cls, ranks: Sequence[Any], gaps: Sequence[frozenset[str]], deferred: Collection[str]) -> Kinds:
        """The kinds of the ranks of `Facts`; `gaps`: the fact groups that were not seen of each."""
        names = [name for name in ranks[0].__dataclass_fields__ if name not in deferred] if ranks else []
        first = ranks[: 4 * MAX_SHARED]
        maybe = [name for name in names if len({id(getattr(rank, name)) for rank in first}) <= MAX_SHARED]
        few = {name: list(map(id, map(attrgetter(name), ranks))) for name in maybe}
        shared = {name: ids for name, ids in few.items() if len(set(ids)) <= MAX_SHARED}
        numbers: dict[tuple[int, ...], int] = {}
        rows = zip(map(id, gaps), *shared.values(), strict=True)
        kinds = [numbers.setdefault(row, len(numbers)) for row in rows]
        return cls(ranks, frozenset(shared), kinds, dict(zip(kinds, ranks, strict=True)))

    def decide(self, condition: Condition) -> bool:
        """True if ranks of one kind agree on everything that the condition reads."""
        return all(path[0] in self.shared for path in condition.reads)

    def indices(
        self, condition: Condition, indices: Collection[int], scope: PlaybookScope
    ) -> tuple[Collection[int], Collection[int]]:
        """The indices where the condition is true, and where it is unknown."""
        places = list(indices)
        kinds = [self.kinds[i] for i in places] if len(places) < len(self.ranks) else self.kinds
        truths = {kind: condition.truth(self.one_of[kind], scope) for kind in set(kinds)}
        if not any(truth is not False for truth in truths.values()):
            return (), ()
        return _by_truth(range(len(places)) if kinds is self.kinds else places, [truths[kind] for kind in kinds])


def _by_truth(places: Sequence[int], truths: Sequence[bool | None]) -> tuple[list[int], list[int]]:
    certain = [place for place, truth in zip(places, truths, strict=True) if truth]
    return certain, [place for place, truth in zip(places, truths, strict=True) if truth is None]
