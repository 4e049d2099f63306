"""Judges: every playbook over the facts. Missing evidence is "unknown", never "no".

A playbook that fails, or takes longer than its allowance, costs itself only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

from hangdoc.analysis.facts import Facts
from hangdoc.rules.loader import Library, Playbook
from hangdoc.rules.selection import View
from hangdoc.rules.time_limit import TooSlow, allowance
from hangdoc.verdict import CONFIDENCES, Considered, Culprit, Finding, Link, Proof

MAX_LINES = 8  # that one line of evidence with `each` may become
CPU_S = 1.0  # that one playbook may take; one that comes with hangdoc takes milliseconds
CPU_S_PER_RANK = 0.2e-3  # besides: those that come with hangdoc take less than that all together
FAILED = "its rule failed"


def evaluate(
    library: Library, facts: Facts, slow: MutableMapping[str, str] | None = None
) -> tuple[tuple[Finding, ...], tuple[Considered, ...]]:
    """Findings, best first (ties stand beside each other), and what became of every other playbook. Never raises.

    `slow`: by id, the playbooks that once took too long, and why: they are not asked again.

    They are sorted by confidence, by the number of reasons that raised it, and by id. A finding that is only a
    consequence of another (`over`) is dropped.
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
    for id, cause in _consequences(library, fired).items():
        del fired[id]
        considered.append(Considered(id, "no", f"only a consequence of {cause}"))
    ranked = sorted(fired.values(), key=lambda f: (-CONFIDENCES.index(f[0].confidence), -f[1], f[0].playbook))
    return tuple(finding for finding, _ in ranked), tuple(sorted(considered, key=lambda c: c.playbook))


def _consequences(library: Library, fired: Collection[str]) -> dict[str, str]:
    """Which of the fired playbooks another one explains, and which; what is explained itself still explains others."""
    over = {p.id: set(p.envelope.over) for p in library.playbooks if p.id in fired}
    dropped: dict[str, str] = {}
    for cause, explained in sorted(over.items()):
        root = cause
        while root in dropped:
            root = dropped[root]
        for id in sorted(explained & set(over) - {root}):  # of a ring that explains itself one must stay
            dropped.setdefault(id, cause)
    return dropped


class _Scope(Mapping[str, Any]):
    """The job's groups and a playbook's selections, by name; a selection is made when it is first asked for."""

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
        slow[playbook.id] = f"{FAILED}: over {len(view.facts.ranks)} ranks it took more than {cpu_s:.1f} s of CPU time"
        return Considered(playbook.id, "unknown", slow[playbook.id])
    except Exception as error:  # whatever a rule runs into on facts nobody foresaw, the others must go on
        return Considered(playbook.id, "unknown", f"{FAILED}: {_told(error)}")
    if lacking:
        return Considered(playbook.id, "unknown", unseen)
    return Considered(playbook.id, "no", "its condition does not hold")


def _doubt(facts: Facts) -> str:
    """Why all evidence of the job is worth less than what was watched; empty where it is not."""
    return str(getattr(getattr(facts.job, "aftermath", None), "doubt", ""))


def _finding(playbook: Playbook, scope: Mapping[str, Any], doubts: Sequence[str]) -> tuple[Finding, int]:
    envelope = playbook.envelope
    raised = _reasons(playbook, scope, "raise")
    lowered = _reasons(playbook, scope, "lower")
    level = CONFIDENCES.index(envelope.confidence.base) + len(raised) - len(lowered)
    # What was not seen counts after the rest is clipped: no number of good reasons makes up for it.
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
    """Renders the templates of one finding; a line that cannot be rendered costs that line, not the finding."""

    def __init__(self, playbook: Playbook, scope: Mapping[str, Any]) -> None:
        self.playbook, self.scope = playbook, scope
        self.failures: list[str] = []

    def one(self, at: tuple[str | int, ...], **more: Any) -> str:
        try:
            return self.playbook.templates[at].render({**self.scope, **more})
        except TooSlow:
            raise
        except Exception as error:  # a template over values nobody foresaw
            self.failures.append(f"{'.'.join(map(str, at))} left out: {_told(error)}")
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
    """The ranks selected, and those besides that no process was seen of, or that are no ranks."""
    found = tuple(map(_culprit, scope[playbook.envelope.culprits])) if playbook.envelope.culprits else ()
    blame = playbook.expressions.get(("blame",))
    others = [Culprit(one.rank, one.pid, one.host) for one in (blame.value(scope) or () if blame else ())]
    known = {one.rank for one in found if one.rank is not None}
    return (*found, *(one for one in others if one.rank is None or one.rank not in known))


def _culprit(rank: Any) -> Culprit:
    sites = (getattr(getattr(rank, group, None), "site", None) for group in ("stack", "exit", "dumps"))
    site = next((site for site in sites if site), None)
    return Culprit(_number(rank.rank), rank.pid if rank.pid > 0 else None, rank.host, site)


def _links(links: Iterable[Any]) -> tuple[Link, ...]:
    """Each connection once, though both its ends were seen."""
    found: dict[frozenset[str], Link] = {}
    for link in links:
        told = Link(_number(link.from_rank), _number(link.to_rank), link.local, link.remote, link.interface)
        found.setdefault(frozenset((link.local, link.remote)), told)
    return tuple(found.values())


def _number(rank: int | None) -> int | None:
    return None if rank is None or rank < 0 else rank


def _told(error: Exception) -> str:
    return " ".join(str(getattr(error, "message", None) or error or type(error).__name__).split())[:200]
