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
from hangdoc.rules.loader import Library, Playbook
from hangdoc.rules.time_limit import TooSlow, allowance
from hangdoc.verdict import CONFIDENCES, Considered, Culprit, Finding, Link, Proof

if TYPE_CHECKING:
    from hangdoc.rules.expressions import Expression, Path

MAX_LINES = 8  # per line of evidence with `each`
CPU_S = 1.0  # per playbook; a built-in one takes milliseconds
CPU_S_PER_RANK = 0.2e-3  # in addition; all built-in ones together take less
FAILED = "its rule failed"
MAX_SHARED = 64  # distinct objects of a fact group that counts as shared

Lacking = tuple[Mapping[int, Sequence[str]], str]  # missing probes by index of the rank; the same as text


def evaluate(
    library: Library, facts: Facts, slow: MutableMapping[str, str] | None = None
) -> tuple[tuple[Finding, ...], tuple[Considered, ...]]:
    """Findings, best first, and the outcome of every other playbook. Never raises.

    Findings are sorted by confidence, by the number of reasons that raised it, and by id. A finding that another
    finding explains (`over`) is dropped.

    `slow`: playbooks that once took too long, by id, with the reason; they are not evaluated again.
    """
    slow = {} if slow is None else slow
    view = View(facts)
    fired: dict[str, tuple[Finding, int]] = {}
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
            fired[playbook.id] = outcome
    for id, cause in _explained(library, fired).items():
        del fired[id]
        considered.append(Considered(id, "no", f"explained by {cause}"))
    ranked = sorted(fired.values(), key=lambda f: (-CONFIDENCES.index(f[0].confidence), -f[1], f[0].playbook))
    return tuple(finding for finding, _ in ranked), tuple(sorted(considered, key=lambda c: c.playbook))


def _explained(library: Library, fired: Collection[str]) -> dict[str, str]:
    """Fired playbooks by id with the playbook that explains them; an explained one still explains others."""
    over = {p.id: set(p.envelope.over) for p in library.playbooks if p.id in fired}
    dropped: dict[str, str] = {}
    for cause, explained in sorted(over.items()):
        root = cause
        while root in dropped:
            root = dropped[root]
        for id in sorted(explained & set(over) - {root}):  # one of a cycle must stay
            dropped.setdefault(id, cause)
    return dropped


class _Scope(Mapping[str, Any]):
    """The job's fact groups and a playbook's selections by name; selections are evaluated lazily."""

    def __init__(self, playbook: Playbook, view: View, lacking: Collection[int]) -> None:
        from hangdoc.rules.expressions import ALL, UNKNOWN

        ranks, job = view.facts.ranks, view.facts.job
        self._playbook, self._view = playbook, view
        self._known = [i for i in range(len(ranks)) if i not in lacking] if lacking else range(len(ranks))
        self._made = {name: getattr(job, name) for name in type(job).__dataclass_fields__}
        self._made[ALL] = tuple(ranks[i] for i in self._known) if lacking else ranks
        self._made[UNKNOWN] = tuple(ranks[i] for i in lacking)
        self._names = dict.fromkeys((*self._made, *playbook.envelope.ranks, *playbook.envelope.links))

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._selected(name)
        return self._made[name]

    def _selected(self, name: str) -> tuple[Any, ...]:
        expressions, view = self._playbook.expressions, self._view
        if name in self._playbook.envelope.ranks:
            return view.select(expressions[("ranks", name)], view.facts.ranks, self._known)
        if name in self._playbook.envelope.links:
            return view.select(expressions[("links", name)], view.links, range(len(view.links)))
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _judge(playbook: Playbook, view: View, slow: MutableMapping[str, str]) -> tuple[Finding, int] | Considered:
    lacking, unseen = view.lacking(tuple(playbook.envelope.needs))
    if lacking and len(lacking) == len(view.facts.ranks):
        return Considered(playbook.id, "unknown", unseen)
    cpu_s = CPU_S + CPU_S_PER_RANK * len(view.facts.ranks)
    try:
        with allowance(cpu_s):
            scope = _Scope(playbook, view, lacking)
            if playbook.expressions[("when",)].holds(scope):
                return _finding(playbook, scope, [why for why in (unseen, _doubt(view.facts)) if why])
    except TooSlow:
        slow[playbook.id] = f"{FAILED}: it took more than {cpu_s:.1f} s of CPU time on {len(view.facts.ranks)} ranks"
        return Considered(playbook.id, "unknown", slow[playbook.id])
    except Exception as error:  # unforeseen facts: the other rules must go on
        return Considered(playbook.id, "unknown", f"{FAILED}: {_error_text(error)}")
    if lacking:
        return Considered(playbook.id, "unknown", unseen)
    return Considered(playbook.id, "no", "its condition does not hold")


def _doubt(facts: Facts) -> str:
    """Reason why all evidence of the job deserves less confidence; empty if there is none."""
    return str(getattr(getattr(facts.job, "aftermath", None), "doubt", ""))


def _finding(playbook: Playbook, scope: Mapping[str, Any], doubts: Sequence[str]) -> tuple[Finding, int]:
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
        actions=tuple(text for i in range(len(envelope.actions)) if (text := texts.one(("actions", i)))),
        status=envelope.status,
    )
    reasons = (*raised, *lowered, *doubts, *texts.failures)
    return replace(finding, reasons=reasons), len(raised)


def _reasons(playbook: Playbook, scope: Mapping[str, Any], direction: str) -> list[str]:
    confidence = playbook.envelope.confidence
    steps = confidence.raise_ if direction == "raise" else confidence.lower
    at = (("confidence", direction, i, "if") for i in range(len(steps)))
    return [step.because for step, where in zip(steps, at, strict=True) if playbook.expressions[where].holds(scope)]


class _Texts:
    """Renders the templates of one finding; a template that fails loses its line, not the finding."""

    def __init__(self, playbook: Playbook, scope: Mapping[str, Any]) -> None:
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

    def evidence(self) -> Iterable[Proof]:
        for i, line in enumerate(self.playbook.envelope.evidence):
            ranks = self.scope[line.ranks]
            condition = self.playbook.expressions.get(("evidence", i, "if"))
            if not ranks or (condition is not None and not condition.holds(self.scope)):
                continue
            each = self.playbook.expressions.get(("evidence", i, "each"))
            rounds = [{}] if each is None else [{"item": item} for item in each.value(self.scope)]
            for more in rounds[:MAX_LINES]:
                if text := self.one(("evidence", i, "text"), **more):
                    yield Proof(line.probe, tuple(r.rank for r in ranks if r.rank >= 0), text)


def _culprits(playbook: Playbook, scope: Mapping[str, Any]) -> tuple[Culprit, ...]:
    """The selected ranks, and culprits from `blame`: processes that hangdoc did not see, or that are no ranks."""
    found = tuple(map(_culprit, scope[playbook.envelope.culprits])) if playbook.envelope.culprits else ()
    blame = playbook.expressions.get(("blame",))
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
    def seen(self) -> Mapping[frozenset[str], list[int]]:
        """Indices of the ranks by the set of probes that saw them or their host.

        Ranks whose process has ended are left out: there is nothing left to see.
        """
        of_host: dict[str, set[str]] = {}
        for shot in self.facts.case.history:
            of_host.setdefault(shot.host, set()).update(shot.records)
        found: dict[frozenset[str], list[int]] = {}
        for i, rank in enumerate(self.facts.ranks):
            if rank.alive is not False:
                found.setdefault(frozenset(rank.seen).union(of_host.get(rank.host, ())), []).append(i)
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
        ranks = [self.facts.ranks[i] for i in lacking]
        numbers = [r.rank for r in ranks if r.rank >= 0]
        who = name_ranks(numbers) if numbers else f"pid {', '.join(str(r.pid) for r in ranks)}"
        return f"{' and '.join(probes).replace('|', ' or ')} of {who} not seen"

    def select(self, expression: Expression, things: Sequence[Any], indices: Sequence[int]) -> tuple[Any, ...]:
        """The ranks or links for which the expression is true."""
        if things is self.facts.ranks and self._kinds.decide(expression):
            return self._kinds.select(expression, indices)
        columns = [self._column(things, path) for path in expression.reads if path[0] != "job"]
        if len(indices) < len(things):
            columns = [[column[i] for i in indices] for column in columns]
        rows = list(zip(*columns, strict=True)) if columns else [()] * len(indices)
        one_of = dict(zip(rows, indices, strict=True))
        chosen = {row for row, i in one_of.items() if expression.holds(things[i])}
        return tuple([things[i] for i, row in zip(indices, rows, strict=True) if row in chosen]) if chosen else ()

    @cached_property
    def _kinds(self) -> Kinds:
        return Kinds.of(self.facts.ranks)

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
    def of(cls, ranks: Sequence[Any]) -> Kinds:
        """The kinds of the ranks of `Facts`."""
        names = [name for name in ranks[0].__dataclass_fields__ if name not in ranks[0].ON_DEMAND] if ranks else []
        first = ranks[: 4 * MAX_SHARED]
        maybe = [name for name in names if len({id(getattr(rank, name)) for rank in first}) <= MAX_SHARED]
        few = {name: list(map(id, map(attrgetter(name), ranks))) for name in maybe}
        shared = {name: ids for name, ids in few.items() if len(set(ids)) <= MAX_SHARED}
        numbers: dict[tuple[int, ...], int] = {}
        kinds = [numbers.setdefault(row, len(numbers)) for row in zip(*shared.values(), strict=True)]
        return cls(ranks, frozenset(shared), kinds, dict(zip(kinds, ranks, strict=True)))

    def decide(self, expression: Expression) -> bool:
        """True if ranks of one kind agree on everything that the expression reads."""
        return all(path[0] in self.shared for path in expression.reads)

    def select(self, expression: Expression, indices: Sequence[int]) -> tuple[Any, ...]:
        """The ranks among `indices` for which the expression is true."""
        kinds = self.kinds if len(indices) == len(self.ranks) else [self.kinds[i] for i in indices]
        chosen = {kind for kind in set(kinds) if expression.holds(self.one_of[kind])}
        pairs = zip(indices, kinds, strict=True) if chosen else ()
        return tuple([self.ranks[i] for i, kind in pairs if kind in chosen])
