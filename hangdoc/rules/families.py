"""What speaks for and against each class of causes, where no playbook names a culprit: knowledge in `families/`.

A family has the schema of a playbook. Its lines of evidence speak for the class or against it; the line count, with the
base confidence, ranks the families. Where no line applies to any, the words of a pasted text rank them. Its first
action that applies is what would decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hangdoc.analysis.facts import Facts, schema
from hangdoc.analysis.logs.terms import TermsJob
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
    found = [(playbook, list(_lines(playbook, view))) for playbook in library().playbooks if playbook.id != UNDERSTOOD]
    if not any(lines for _, lines in found):
        return _by_words(facts.job.terms, view)
    scored: list[tuple[int, str, Family]] = []
    for playbook, lines in found:
        speaks_for = tuple(text for probe, text in lines if probe == FOR)
        against = tuple(text for probe, text in lines if probe == AGAINST)
        envelope = playbook.envelope
        score = CONFIDENCES.index(envelope.confidence.base) + len(speaks_for) - len(against)
        family = Family(envelope.cls, envelope.title, speaks_for, against, _decides(playbook, view))
        if lines:
            scored.append((-score, playbook.id, family))
    return tuple(family for _, _, family in sorted(scored, key=lambda one: one[:2])[:MAX_FAMILIES])


def _by_words(terms: TermsJob, view: View) -> tuple[Family, ...]:
    """The same where no line of evidence applies: by the words of the text, if they make a class likely."""
    if terms.likely is None:
        return ()
    known = {playbook.envelope.cls: playbook for playbook in library().playbooks if playbook.id != UNDERSTOOD}
    return tuple(
        Family(cls, playbook.envelope.title, (f"the wording of the text: {words}",), (), _decides(playbook, view))
        for cls, words in terms.says_most
        if (playbook := known.get(cls))
    )[:MAX_FAMILIES]


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
