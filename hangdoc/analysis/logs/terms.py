"""Analysis `terms`: the class of causes that a pasted text speaks of, by its words.

Rules read messages and figures. A text may hold none that they know, and still be about data that comes late, or about
a network. The weights of two thousand words, in `term_weights.tsv`, tell the classes apart. They are learned from the
labelled texts of tests/data/pasted by a multinomial logistic regression (tests/tools/learn_terms.py), and judged there
on texts of other authors. They name no rank, and prove nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.thresholds import CLASS_LEADS, LEAST_TERMS, LIKELY, THINKABLE
from hangdoc.evidence.logs import Terms

WEIGHTS = Path(__file__).with_name("term_weights.tsv")
RECORD = "terms"
NO_TROUBLE = "none"  # the class of texts without trouble, and of those from which nobody could tell it
BIAS = "(bias)"  # the row of what holds whatever the words are
MAX_SHOWN = 5  # words
_WORD = re.compile(r"[a-z_]{3,31}")


@dataclass(frozen=True, slots=True)
class TermsJob:
    """None: no text that somebody pasted, or too few words that tell the classes apart."""

    likely: str | None = None  # the class of most such texts; None as well: no class leads
    share: float | None = None  # its probability
    words: str | None = None  # the words that say most for it: "`dataloader`, `fetch`"
    shares: tuple[tuple[str, float], ...] = ()  # of each class, the likeliest first, NO_TROUBLE included
    says_most: tuple[tuple[str, str], ...] = ()  # the same words, of each class of causes that is worth a thought


class TermsDetector(Detector[object, TermsJob]):
    job_facts = TermsJob

    def derive(self, case: Case) -> tuple[dict[Key, object], TermsJob]:
        records = [shot.records.get(RECORD) for shot in case.history]
        known = {word for one in records if isinstance(one, Terms) for word in one.words}
        return {}, judge(known) if known else TermsJob()


def judge(known: Iterable[str]) -> TermsJob:
    """What the words of a text say, of which those without weights count nothing."""
    weights = term_weights()
    found = sorted(word for word in known if word in weights and word != BIAS)
    if not found:
        return TermsJob()
    scale = 1 / math.sqrt(len(found))
    logits = {cls: bias + scale * sum(weights[word][cls] for word in found) for cls, bias in weights[BIAS].items()}
    most = max(logits.values())
    raw = {cls: math.exp(logit - most) for cls, logit in logits.items()}
    shares = {cls: one / sum(raw.values()) for cls, one in raw.items()}
    ranked = tuple(sorted(shares.items(), key=lambda one: -one[1]))
    (best, share), (_, next_share), *_ = ranked
    words = {cls: _says_most(cls, found) for cls, one in ranked if one >= THINKABLE and cls != NO_TROUBLE}
    leads = share >= LIKELY and share >= CLASS_LEADS * next_share
    if best == NO_TROUBLE or not leads or len(found) < LEAST_TERMS:
        return TermsJob(shares=ranked, says_most=tuple(words.items()))
    return TermsJob(best, share, words[best], ranked, tuple(words.items()))


def _says_most(cls: str, found: Iterable[str]) -> str:
    """The words that say most for a class, against the mean of all classes."""
    weights = term_weights()

    def says(word: str) -> float:
        of_classes = weights[word]
        return of_classes[cls] - sum(of_classes.values()) / len(of_classes)

    best = sorted((word for word in found if says(word) > 0), key=lambda word: (-says(word), word))
    return ", ".join(f"`{word}`" for word in best[:MAX_SHOWN])


def terms_of(text: str) -> frozenset[str]:
    """The words of a text in lower case, and the parts of those with underscores."""
    whole = set(_WORD.findall(text.lower()))
    return frozenset(whole | {part for word in whole for part in word.split("_") if len(part) > 2})


def known_terms(text: str) -> tuple[str, ...]:
    """The words of a text that have weights."""
    return tuple(sorted(terms_of(text) & term_weights().keys()))


@cache
def term_weights() -> Mapping[str, Mapping[str, float]]:
    """Word -> class -> weight. Read once, when a text is judged by its words."""
    lines = (line.split("\t") for line in WEIGHTS.read_text().splitlines() if not line.startswith("#"))
    _, *classes = next(lines)
    return {word: dict(zip(classes, map(float, values), strict=True)) for word, *values in lines}


ANALYSIS = TermsDetector()
