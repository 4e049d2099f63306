"""Evaluation of every playbook over the facts. Missing evidence is "unknown", never "no".

A playbook that fails, or exceeds its CPU time, affects no other playbook.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from hangdoc.analysis.facts import Facts, RankFacts, where
from hangdoc.rules.conditions import OBSERVED
from hangdoc.rules.library import Library, Playbook
from hangdoc.rules.scope import PlaybookScope, View
from hangdoc.rules.time_limit import TooSlow, allowance, cpu_s
from hangdoc.verdict import CONFIDENCES, Considered, Culprit, Finding, Link, Proof

MAX_LINES = 8  # per line of evidence with `each`
FAILED = "its rule failed"
GRAVEST_FIRST = ("failed", "stalled", "diverging", "slow", "healthy", "unknown")  # of equally certain findings


def evaluate(
    library: Library, facts: Facts, slow: MutableMapping[str, str] | None = None
) -> tuple[tuple[Finding, ...], tuple[Considered, ...]]:
    """Findings, best first, and the outcome of every other playbook. Never raises.

    Findings are sorted by confidence, by status and by id. A finding that another finding explains is dropped, so those
    that are left are all of one layer.

    `slow`: playbooks that once took too long, by id, with the reason; they are not evaluated again.
    """
    slow = {} if slow is None else slow
    view = View(facts)
    fired: list[Finding] = []
    considered: list[Considered] = []
    for playbook in library.playbooks:
        if playbook.id in slow:
            outcome: Finding | Considered = Considered(playbook.id, "unknown", slow[playbook.id])
        else:
            outcome = _judge(playbook, view, slow)
        if isinstance(outcome, Considered):
            considered.append(outcome)
        else:
            fired.append(outcome)
    fired.sort(key=lambda f: (-CONFIDENCES.index(f.confidence), GRAVEST_FIRST.index(f.status), f.playbook))
    explained = _explained(library, [finding.playbook for finding in fired])
    considered.extend(Considered(id, "no", f"explained by {cause}") for id, cause in explained.items())
    findings = tuple(finding for finding in fired if finding.playbook not in explained)
    return findings, tuple(sorted(considered, key=lambda c: c.playbook))


def _explained(library: Library, fired: Sequence[str]) -> dict[str, str]:
    """Playbooks that another one explains, by id, with the best of those that do and that nothing explains.

    `fired`: best first. An explained one still explains others.

    Causes explain violated contracts and symptoms, and those explain symptoms; `explains` adds to that, and also turns
    it round. There is no circle: `library` refuses it.
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


def _judge(playbook: Playbook, view: View, slow: MutableMapping[str, str]) -> Finding | Considered:
    ranks = len(view.facts.ranks)
    lacking = view.coverage.lacking(playbook.envelope.needs)
    unseen = lacking.text
    if lacking.places and len(lacking.places) == ranks:
        return Considered(playbook.id, "unknown", unseen)
    try:
        with allowance(cpu_s(ranks)):
            scope = PlaybookScope(playbook, view)
            when = playbook.conditions[("when",)]
            outcome = when.truth(scope.job, scope)
            if outcome:
                return _finding(playbook, scope, [why for why in (unseen, *view.facts.job.aftermath.doubts) if why])
            if outcome is None:
                unseen = unseen or scope.missing(when)
    except TooSlow:
        slow[playbook.id] = f"{FAILED}: it took more than {cpu_s(ranks):.1f} s of CPU time on {ranks} ranks"
        return Considered(playbook.id, "unknown", slow[playbook.id])
    except Exception as error:  # unforeseen facts: the other rules must go on
        return Considered(playbook.id, "unknown", f"{FAILED}: {_error_text(error)}")
    if lacking.places or outcome is None:
        return Considered(playbook.id, "unknown", unseen)
    return Considered(playbook.id, "no", "its condition does not hold")


def _finding(playbook: Playbook, scope: PlaybookScope, doubts: Sequence[str]) -> Finding:
    envelope = playbook.envelope
    raised = _reasons(playbook, scope, "raise")
    lowered = _reasons(playbook, scope, "lower")
    level = CONFIDENCES.index(envelope.confidence.base) + len(raised) - len(lowered)
    # Doubts count after clipping: no number of good reasons makes up for missing evidence.
    level = min(max(level, 0), len(CONFIDENCES) - 1) - len(doubts)
    texts = _Texts(playbook, scope)
    summary, evidence, actions = texts.one(("summary",)), tuple(texts.evidence()), tuple(texts.actions())
    return Finding(
        playbook=playbook.id,
        cls=envelope.cls,
        confidence=CONFIDENCES[max(level, 0)],
        title=envelope.title,
        summary=summary or envelope.title,
        culprits=_culprits(playbook, scope),
        links=_links(scope[envelope.blame_links]) if envelope.blame_links else (),
        evidence=evidence,
        actions=actions,
        status=envelope.status,
        reasons=(*raised, *lowered, *doubts, *texts.failures),
    )


def _reasons(playbook: Playbook, scope: PlaybookScope, direction: str) -> list[str]:
    confidence = playbook.envelope.confidence
    steps = confidence.raise_ if direction == "raise" else confidence.lower
    conditions = (playbook.conditions[("confidence", direction, i, "if")] for i in range(len(steps)))
    return [step.because for step, condition in zip(steps, conditions, strict=True) if scope.holds(condition)]


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
            # A line about the job as a whole also holds where no rank was seen, as in a pasted message.
            of_job = line.ranks == OBSERVED and line.if_ is not None
            if not (ranks or of_job) or not self._applies(("evidence", i, "if")):
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
    found = tuple(one for one in found if _is_named(one))
    known = {one.rank for one in found if one.rank is not None}
    return (*found, *(one for one in blamed if one.rank is None or one.rank not in known))


def _culprit(rank: RankFacts) -> Culprit:
    site = where(rank) or rank.exit.site or rank.dumps.site
    return Culprit(_number(rank.rank), rank.pid if rank.pid > 0 else None, rank.host, site)


def _is_named(culprit: Culprit) -> bool:
    """False for a process of which nothing is known: the stand-in for an unknown host is no host name."""
    return culprit.rank is not None or culprit.pid is not None or " " not in (culprit.host or " ")


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
