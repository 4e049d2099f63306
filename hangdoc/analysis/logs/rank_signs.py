"""Analysis `rank_signs`: the rank that a pasted text is about, by how it is mentioned.

Where no rule names a rank, a reader still sees one: the text names it next to `behind` or `saving`, it alone lacks the
line that the others have, its number is lower than theirs. Such signs are weighed as `terms` weighs words: the weights
in `rank_sign_weights.tsv` are learned from the labelled texts of tests/data/pasted by a conditional logistic
regression, in which the ranks of a text compete with each other and with nobody (tests/tools/learn_signs.py). They
prove nothing.
"""

from __future__ import annotations

import math
import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.logs import terms
from hangdoc.analysis.thresholds import BEYOND_OTHERS, POINTED_AT, WEIGHED_CLASS, WORDS_WEIGH
from hangdoc.evidence import limits
from hangdoc.evidence.logs import RankSigns, Terms

WEIGHTS = Path(__file__).with_name("rank_sign_weights.tsv")
ABSENT = "absent"  # the sign of a rank that a text does not mention
NOBODY = "nobody"  # the sign that competes with those of the ranks
MAX_RANKS = 64  # mentioned; in a longer list, no rank is the odd one by its words
MAX_LINES = 5_000
MAX_MENTIONS = 5_000
MAX_ABSENT = 8
MAX_NUMBERS = 24  # of a line
MAX_SHOWN = 3  # signs
BEFORE, AFTER = 60, 90  # characters around a mention
WORDS_BEFORE, WORDS_AFTER = 4, 6
OWN_WORDS = ("no words", "one word", "two or three words", "some words", "many words", "very many words")
OWN_WORDS_FROM = (1, 2, 4, 8, 16)
# Signs as a reader sees them; any other says it by its name.
IN_WORDS = {
    "before": "`{}` in front of it",
    "after": "`{}` behind it",
    "alone": "`{}` in its lines alone",
    "in its lines": "`{}` in its lines",
    "lacks": "`{}` in the lines of all others",
    "higher": "the highest figure",
    "lower": "the lowest figure",
}
OF_WORDS = ("before: ", "after: ", "alone: ", "in its lines: ", "lacks: ")

_RANK = re.compile(
    r"(?P<named>(?:(?:global|world)[ _]?)?(?:rank|rk|ord(?:inal)?)s?[ _=:#\[(-]{0,3}|\[rank|[\[(<]r[ _=:-]?"
    r"|(?<![\w.-])r[=:]?|\[default|procid[ =:]{1,2})(?P<rank>\d{1,6})(?![\w.]?\d|/\d)"
    r"|(?:(?:worker|proc|process|gpu|device|cuda)[ _:=#-]{0,2}|#|\(|(?:^|(?<=\s))(?=\d{1,4}: \S))"
    r"(?P<index>\d{1,4})(?![\w.])",
    re.IGNORECASE,
)
_SIZE = re.compile(
    r"world[_ ]?size[^\d\n]{0,6}(\d{1,6})|\bof (\d{1,6}) ranks|nranks[ =:]{1,3}(\d{1,6})|\b(\d{1,6}) ranks",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,15}(?:\.\d{1,15})?(?:e[+-]?\d{1,3})?")
_WORD = re.compile(r"[a-z_]{3,24}")
_CONTINUES = re.compile(r"[ \t]|Thread|#\d|Traceback|\w{1,60}Error")


@dataclass(slots=True)
class _Told:
    """What a text tells of a rank."""

    before: set[str] = field(default_factory=set)  # words before its mentions
    after: set[str] = field(default_factory=set)
    mentions: int = 0
    named: bool = False  # as a rank, not only as a number that may be one
    first: int = -1  # line of its first mention
    lines: list[tuple[int, str]] = field(default_factory=list)  # about it alone, with their numbers


@dataclass(frozen=True, slots=True)
class RankSignsJob:
    """Empty or None: no rank, or several that are as likely."""

    suspects: tuple[Suspect, ...] = ()  # one rank
    share: float | None = None  # its probability among the ranks of the text, and nobody
    says: str | None = None  # the signs that say most for it
    unmentioned: bool = False  # the text tells of its peers only


class RankSignsDetector(Detector[object, RankSignsJob]):
    job_facts = RankSignsJob

    def derive(self, case: Case) -> tuple[dict[Key, object], RankSignsJob]:
        records = (shot.records.get(terms.RECORD) for shot in case.history)
        found = [one for one in records if isinstance(one, Terms) and one.ranks]
        return {}, judge(found[0]) if len(found) == 1 else RankSignsJob()


def judge(told: Terms) -> RankSignsJob:
    """The rank that the signs of a text point at, if they do."""
    shares = dict(terms.judge(told.words).shares)
    return pointed_at({one.rank: one.signs for one in told.ranks}, shares, sign_weights())


def pointed_at(
    ranks: Mapping[int, Collection[str]], shares: Mapping[str, float], weights: Mapping[str, float]
) -> RankSignsJob:
    """The rank that the signs point at; `shares`: the probability of each class of causes."""
    if not ranks:
        return RankSignsJob()

    def score(signs: Mapping[str, float]) -> float:
        return sum(weights.get(sign, 0.0) * value for sign, value in signs.items())

    scores = {rank: score(weighed(signs, shares, weights)) for rank, signs in ranks.items()}
    against = score(signs_of_nobody(len(ranks), shares))
    best = max(scores, key=lambda rank: scores[rank])
    most = max(against, scores[best])
    share = math.exp(scores[best] - most) / sum(math.exp(one - most) for one in (against, *scores.values()))
    if share < POINTED_AT:
        return RankSignsJob()
    return RankSignsJob((Suspect(best),), share, _says_most(ranks[best], weights), ABSENT in ranks[best])


def weighed(signs: Collection[str], shares: Mapping[str, float], known: Collection[str]) -> dict[str, float]:
    """Sign -> how much it counts. Words count together; other signs also by the classes of causes of the text."""
    words = [sign for sign in signs if sign.startswith(OF_WORDS) and sign in known]
    found = dict.fromkeys(words, WORDS_WEIGH / math.sqrt(len(words)) if words else 0.0)
    for sign in signs:
        if not sign.startswith(OF_WORDS):
            found[sign] = 1.0
            found |= {f"{sign} in {cls}": share for cls, share in shares.items() if share > WEIGHED_CLASS}
    return found


def signs_of_nobody(ranks: int, shares: Mapping[str, float]) -> dict[str, float]:
    """Sign -> how much it counts that no rank of so many is at fault."""
    return {NOBODY: 1.0, f"{NOBODY} of many": math.log1p(ranks)} | {
        f"{NOBODY} in {cls}": share for cls, share in shares.items()
    }


def _says_most(signs: Collection[str], weights: Mapping[str, float]) -> str | None:
    best = sorted((sign for sign in signs if weights.get(sign, 0.0) > 0), key=lambda sign: (-weights[sign], sign))
    return ", ".join(dict.fromkeys(map(_in_words, best[:MAX_SHOWN]))) or None


def _in_words(sign: str) -> str:
    kind, _, word = sign.partition(": ")
    return IN_WORDS.get(kind, sign).format(word)


def known_signs(text: str) -> tuple[RankSigns, ...]:
    """The ranks of a text, with those of their signs that have weights."""
    known = sign_weights()
    return tuple(
        RankSigns(rank, tuple(sorted(signs & known.keys()))) for rank, signs in sorted(signs_of_ranks(text).items())
    )


def signs_of_ranks(text: str) -> dict[int, set[str]]:
    """The signs of every rank that a text mentions, or that is missing among those."""
    lines = text.split("\n")[:MAX_LINES]
    told = _told(lines)
    if any(one.named for one in told.values()):
        told = {rank: one for rank, one in told.items() if one.named}
    if not 0 < len(told) <= MAX_RANKS:
        return {}
    signs = {rank: _mention_signs(rank, told) for rank in told}
    for rank, found in _line_signs(told):
        signs[rank] |= found
    for rank, found in _figure_signs(told):
        signs[rank] |= found
    return signs | _absent_signs(told, text)


def _told(lines: Sequence[str]) -> dict[int, _Told]:
    told: defaultdict[int, _Told] = defaultdict(_Told)
    about: int | None = None  # the rank that the lines are about
    mentions = 0
    for number, line in enumerate(lines):
        ranks: set[int] = set()
        for match in _RANK.finditer(line):
            rank = int(match["rank"] or match["index"])
            mentions += 1
            if rank >= limits.MAX_RANKS or mentions > MAX_MENTIONS:
                continue
            ranks.add(rank)
            one = told[rank]
            one.first = number if one.first < 0 else one.first
            one.mentions += 1
            one.named |= match["named"] is not None
            one.before.update(_words(line[max(0, match.start() - BEFORE) : match.start()])[-WORDS_BEFORE:])
            one.after.update(_words(line[match.end() : match.end() + AFTER])[:WORDS_AFTER])
        if ranks or not line.strip():
            about = next(iter(ranks)) if len(ranks) == 1 else None
        if about is not None and (ranks or _CONTINUES.match(line)):
            told[about].lines.append((number, line))
    return dict(told)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _mention_signs(rank: int, told: Mapping[int, _Told]) -> set[str]:
    """Where and how often a rank is mentioned, against the others, and next to which words."""
    one, others = told[rank], [other for at, other in told.items() if at != rank]
    lines, of_others = len(one.lines), [len(other.lines) for other in others]
    last, first = (one.lines[-1][0] if one.lines else -1), one.first
    held = {
        "rank zero": rank == 0,
        "the only rank": not others,
        "the last rank": bool(others) and rank == max(told),
        "fewest lines": bool(others) and lines < min(of_others),
        "most lines": bool(others) and lines > max(of_others),
        "no line of its own": bool(others) and not lines,
        "others have as many lines": len(others) > 1 and len(set(of_others)) == 1 and lines != of_others[0],
        "most mentioned": bool(others) and one.mentions > max(other.mentions for other in others),
        "in half of the mentions": bool(others) and one.mentions > sum(other.mentions for other in others),
        "spoke last": last >= max((other.lines[-1][0] for other in others if other.lines), default=-1),
        "mentioned first": first <= min((other.first for other in others), default=first),
    }
    held["fewest lines, others as many"] = held["fewest lines"] and held["others have as many lines"]
    held["most lines, others as many"] = held["most lines"] and held["others have as many lines"]
    return {
        *(sign for sign, holds in held.items() if holds),
        *(f"before: {word}" for word in one.before),
        *(f"after: {word}" for word in one.after),
    }


def _line_signs(told: Mapping[int, _Told]) -> Iterator[tuple[int, set[str]]]:
    """The words that only one rank has in its lines, or that all others have, and a last line unlike those of all."""
    words = {rank: {word for _, line in one.lines for word in _words(line)} for rank, one in told.items()}
    having = Counter(word for of_rank in words.values() for word in of_rank)
    lasts = {rank: _shape(one.lines[-1][1]) if one.lines else "" for rank, one in told.items()}
    alike = Counter(lasts.values())
    for rank in told:
        if len(told) == 1:
            yield rank, {f"in its lines: {word}" for word in words[rank]}
            continue
        alone = {word for word in words[rank] if having[word] == 1}
        signs = {f"alone: {word}" for word in alone} | {f"{OWN_WORDS[bisect(OWN_WORDS_FROM, len(alone))]} of its own"}
        if len(told) > 2:
            lacking = {word for word, count in having.items() if count == len(told) - 1 and word not in words[rank]}
            if lacking:
                signs |= {"lacks a word of all others", *(f"lacks: {word}" for word in lacking)}
            if alike[lasts[rank]] == 1 and max(alike.values()) == len(told) - 1:
                signs.add("another last line")
        yield rank, signs


def _figure_signs(told: Mapping[int, _Told]) -> Iterator[tuple[int, set[str]]]:
    """Figures in lines of one shape that are higher or lower for a rank than for all others."""
    shapes: defaultdict[str, dict[int, list[float]]] = defaultdict(dict)
    for rank, one in told.items():
        for _, line in one.lines:
            plain = _RANK.sub("@", line)
            shapes[_without_numbers(plain)][rank] = [float(text) for text in _NUMBER.findall(plain)[:MAX_NUMBERS]]
    for shape, rows in shapes.items():
        names = [(_words(part) or ["-"])[-1] for part in shape.split("#")]
        for at in range(min(map(len, rows.values())) if len(rows) > 2 else 0):
            ranked = sorted((row[at], rank) for rank, row in rows.items())
            for end, beyond in ((ranked, "lower"), (ranked[::-1], "higher")):
                (odd, rank), (near, _), *_, (far, _) = end
                spread = abs(near - far)
                large = max(abs(odd), abs(near)) * BEYOND_OTHERS
                if odd != near and (not spread or abs(odd - near) > max(large, 2 * spread)):
                    yield rank, {beyond, f"{beyond}: {names[at]}"}


def _shape(line: str) -> str:
    """A line without its rank and its numbers."""
    return _without_numbers(_RANK.sub("@", line))


def _without_numbers(text: str) -> str:
    return " ".join(_NUMBER.sub("#", text).split())


def _absent_signs(told: Mapping[int, _Told], text: str) -> dict[int, set[str]]:
    """Ranks that a text does not mention, among those that it does."""
    size = next((int(match[match.lastindex or 0]) for match in _SIZE.finditer(text)), 0)
    stated = max(told) < size <= limits.MAX_RANKS
    count = size if stated else max(told) + 1
    absent = [rank for rank in range(count) if rank not in told] if len(told) > 1 and count <= 2 * len(told) + 1 else []
    if len(absent) > MAX_ABSENT:
        return {}
    held = {ABSENT: True, "the only absent one": len(absent) == 1, "of a stated size": stated}
    signs = {sign for sign, holds in held.items() if holds}
    return {rank: signs | ({"absent rank zero"} if rank == 0 else set()) for rank in absent}


@cache
def sign_weights() -> Mapping[str, float]:
    """Sign -> weight. Read once, when a text is judged by its signs."""
    lines = (line.split("\t") for line in WEIGHTS.read_text().splitlines() if line and not line.startswith("#"))
    return {sign: float(weight) for sign, weight in lines}


ANALYSIS = RankSignsDetector()
