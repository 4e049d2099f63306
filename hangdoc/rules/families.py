"""What speaks for and against each class of causes, where no playbook names a culprit: knowledge in `families/`.

A family has the schema of a playbook. Its lines of evidence speak for the class or against it; the line count, with the
base confidence, ranks the families. Its first action that applies is what would decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hangdoc.analysis.facts import Facts, schema
from hangdoc.rules.conditions import OBSERVED
from hangdoc.rules.library import Library, Playbook
from hangdoc.rules.scope import PlaybookScope, View
from hangdoc.rules.time_limit import TooSlow, allowance, cpu_s
from hangdoc.verdict import CONFIDENCES, Family

ROOT = Path(__file__).parent / "families"
UNDERSTOOD = "understood"  # the file whose lines say what the evidence shows
FOR, AGAINST = "for", "against"  # `probe` of a line of evidence
MAX_FAMILIES = 2
MAX_LINES = 8
SHARE_COUNTS = 8  # lines of evidence that count as much as certainty by the words of a text


@cache
def library() -> Library:
    """The families that ship with hangdoc. Loaded when first needed: most verdicts need none."""
    from hangdoc.rules.loader import load

    return load((ROOT,), schema(), probes=())


def understood(facts: Facts) -> tuple[str, ...]:
    """What the evidence shows, whatever the cause: one sentence each. Never raises."""
    found = (one for one in library().playbooks if one.id == UNDERSTOOD)
    view = View(facts)
    return tuple(text for family in found for _, text in _lines(family, view))[:MAX_LINES]


def likely_families(facts: Facts) -> tuple[Family, ...]:
    """The most likely classes of causes, best first. Never raises."""
    view = View(facts)
    shares, says_most = dict(facts.job.terms.shares), dict(facts.job.terms.says_most)
    scored: list[tuple[float, str, Family]] = []
    for playbook in library().playbooks:
        if playbook.id == UNDERSTOOD:
            continue
        lines = list(_lines(playbook, view))
        speaks_for = tuple(text for probe, text in lines if probe == FOR)
        against = tuple(text for probe, text in lines if probe == AGAINST)
        envelope = playbook.envelope
        score = CONFIDENCES.index(envelope.confidence.base) + len(speaks_for) - len(against)
        share = shares.get(envelope.cls, 0.0)
        if words := says_most.get(envelope.cls):
            speaks_for = (*speaks_for, f"the words of the text: {words}")
        family = Family(envelope.cls, envelope.title, speaks_for, against, _decides(playbook, view))
        if speaks_for or against:
            scored.append((-score - SHARE_COUNTS * share, playbook.id, family))
    return tuple(family for _, _, family in sorted(scored, key=lambda one: one[:2])[:MAX_FAMILIES])


def _lines(family: Playbook, view: View) -> Iterator[tuple[str, str]]:
    """The probe and the text of each line that applies."""
    try:
        with allowance(cpu_s(len(view.facts.ranks))):
            scope = PlaybookScope(family, view)
            found = []
            for i, line in enumerate(family.envelope.evidence):
                condition = family.conditions.get(("evidence", i, "if"))
                if condition is not None and not scope.holds(condition):
                    continue
                if line.ranks != OBSERVED and not scope[line.ranks]:
                    continue
                if text := family.templates[("evidence", i, "text")].render(scope):
                    found.append((line.probe, text))
    except (TooSlow, Exception):  # unforeseen facts: a verdict without this family is better than none
        return
    yield from found


def _decides(family: Playbook, view: View) -> str:
    """The first action that applies."""
    try:
        with allowance(cpu_s(len(view.facts.ranks))):
            scope = PlaybookScope(family, view)
            for i, _ in enumerate(family.envelope.actions):
                condition = family.conditions.get(("actions", i, "if"))
                if condition is None or scope.holds(condition):
                    return family.templates[("actions", i)].render(scope)
    except (TooSlow, Exception):
        pass
    return ""
