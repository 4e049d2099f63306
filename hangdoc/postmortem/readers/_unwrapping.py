"""Joins lines that a terminal, mail or chat wrapped.

A width alone proves nothing: rows of tables have one too. So each way to join the lines of a block is tried, and the
way in which most is recognised wins: messages of the catalogue, stack frames, headings of dumps. On a tie the text
stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from hangdoc.postmortem.readers._cleaning import MAX_LINE, TextLine
from hangdoc.postmortem.readers._glued_lines import only_prefixes
from hangdoc.postmortem.readers._logs.catalogue import anchors, patterns_by_anchor

MAX_TEXT = 256 * 2**10  # characters of a text in which wrapped lines are joined
MAX_JOINED = 12  # lines in one
SHORTEST_CUT = 40  # characters of a line that was cut by a chat
NARROWEST, WIDEST = 28, 300  # characters of a line that may have been wrapped
NARROWEST_TERMINAL, _MOSTLY = 60, 0.4  # columns; share of full lines in a block that was wrapped for certain
_WIDTHS = (72, 76, 78, 79, 80, 100, 120, 132)  # at which programs wrap

_SHOWS = re.compile(
    r"(?:[A-Za-z][\w.-]{0,80}(?:: | +\| )|\[[^\]\n]{1,80}\]:? ?|\d{1,6}: ){0,2}(?:"
    r"\s*[\w.<>~]{1,200} \((?:[\w./<>+-]{1,300}|<frozen [\w.]{1,60}>):\d{1,9}\)"  # py-spy
    r'|\s*(?:\((?:Python|C)\) |#\d{1,4} )?File "[^"\n]{1,500}", line \d{1,9},? in [\w<>.]{1,200}'
    r"|.{0,60}#\d{1,4}\s{1,4}(?:0x[0-9a-f]{1,16} in )?[^\n]{1,400}? (?:\([^\n]{0,400}\) )?(?:at"
    r"|from) /?[\w./+-]{1,400}(?::\d{1,6})?"
    r"|.{0,60}Thread (?:0x[0-9a-fA-F]{1,16}|\d{1,18}) \((?:idle|active)(?:\+gil)?\)(?:: \"[^\"\n]{1,100}\")?"
    r"|.{0,60}\(most recent call (?:first|last)\):?"
    r"|.{0,60}Process \d{1,9}: \S[^\n]{0,400}"
    r"|Thread \d{1,6} \((?:Thread 0x[0-9a-f]{1,16} \()?LWP \d{1,9}\)[^\n]{0,80}:?"
    r"|(?:\[pid +\d{1,9}\] )?(?:\d\d:\d\d:\d\d[.\d]{0,10} )?[a-z_0-9]{2,24}\([^\n]{1,600}"  # strace
    r"(?:\) += (?:-?\d{1,20}|\?)[^\n]{0,100}|<unfinished \.\.\.>|<detached \.\.\.>)"
    r"|(?:ESTAB|tcp6?) {1,8}\d{1,10} {1,8}\d{1,10} {1,12}\S{1,60}:\d{1,5} {1,12}\S{1,60}:\d{1,5}"  # ss
    r"(?: [^\n]{0,300})?"
    r"(?:timer:\(\w{2,9},[\w.]{1,20},\d{1,4}\)| \w{2,10} \([\d.]{1,12}/\d{1,6}/\d{1,6}\))"
    r"|\s*(?:cubic|bbr|reno|dctcp) [^\n]{1,800}\blast(?:ack|rcv):\d{1,12}"
    r"|(?:Device:?|read:|write:) {2,60}[^\n]{1,300}(?:%util|avg exe \(ms\)[^\n]{0,80})"  # iostat, nfsiostat
    r")"
)
_FRESH = re.compile(  # a line that continues no other
    r"\s*(?:\[(?:rank|default)?\d{1,6}\]|\d{4}[-/]\d\d[-/]\d\d[T ]|\[\d{4}-|\d\d:\d\d:\d\d|[EWIF]\d{4} |\[[EWIFC]\d{4} "
    r"|#\d{1,4} |File \"|\((?:Python|C)\) File|Thread |Process \d|Python v\d|Traceback \(|Current thread|[+|]|-{4}|={4}"
    r"|\([\w.]{1,60} pid=\d|[A-Z][a-z]{2} \d{1,2} \d\d:|\[\s*\d+\.\d{6}\]|\[pod/|\w[\w.-]*:\d+:\d+ \["
    r"|(?:srun|slurmstepd|mpirun|mpiexec): )"
)
_FRAME_PART = re.compile(r"\s{4,}\S")

_MESSAGE, _PREFIXED = 3.0, 0.5  # scores

Score = Callable[[str], float]


def unwrapped(lines: Sequence[TextLine]) -> list[TextLine]:
    """The lines, with those joined that were one before."""
    if sum(len(line.text) for line in lines) > MAX_TEXT:
        return list(lines)
    score = _score()
    found: list[TextLine] = []
    for blank, group in groupby(lines, lambda line: not line.text.strip()):
        block = list(group)
        found += block if blank or len(block) < 2 or len(block) > 2000 else _best(block, score)
    return found


def _best(block: list[TextLine], score: Score) -> list[TextLine]:
    longest = max(len(line.text) for line in block)
    if longest < NARROWEST:
        return block

    def total(way: list[TextLine], certain: bool = False) -> float:
        found = sum(score(line.text) for line in way)
        if certain:  # then a message also counts for the prefix that it gets
            found += sum(_PREFIXED for line in way if score(line.text) >= _MESSAGE and _FRESH.match(line.text))
        return found

    ways = [block]
    if longest <= WIDEST:
        ways.append(_hard(block, longest))
        widths = (longest, *(one for one in _WIDTHS if longest < one <= longest + 14))
        ways += [_soft(block, width) for width in widths]
    best = max(ways, key=total)
    full = sum(len(line.text) == longest for line in block)
    if best is block and longest >= NARROWEST_TERMINAL and (full >= _MOSTLY * len(block) or longest in _WIDTHS):
        best = max(ways[:2], key=lambda way: total(way, certain=True))
    continued = _continued(best, score)
    ways = [best, _greedy(best, score), continued, _greedy(continued, score)]
    if best is not block:  # which may have put blanks into words
        ways.append(_greedy(block, score))
    return max(ways, key=lambda way: total(way, certain=True))


def _hard(block: list[TextLine], width: int) -> list[TextLine]:
    """Joined where a line fills the width; one less is a line whose last blank was lost."""
    glues = {width: "", width - 1: " "}
    return _joined(block, lambda a, b: glues.get(len(a)) if not _FRESH.match(b) else None)


def _soft(block: list[TextLine], width: int) -> list[TextLine]:
    """Joined where the next word would not have fitted."""

    def between(a: str, b: str) -> str | None:
        word = b.split(None, 1)[0] if b.strip() else ""
        full = len(a) + 1 + len(word) > width and len(a) >= NARROWEST
        return " " if full and not _FRESH.match(b) else None

    return _joined(block, between)


def _joined(block: list[TextLine], between: Callable[[str, str], str | None]) -> list[TextLine]:
    """`between`: what was between two lines; None: they are two."""
    found = [block[0]]
    count = 1
    for last, line in pairwise(block):
        glue = between(last.text, line.text) if count < MAX_JOINED else None
        if glue is None:
            found.append(line)
            count = 1
        else:
            text = line.text.lstrip() if glue else line.text
            found[-1] = replace(found[-1], text=f"{found[-1].text}{glue}{text}")
            count += 1
    return found


def _greedy(block: list[TextLine], score: Score) -> list[TextLine]:
    """Joined wherever two lines make more sense as one."""
    found = [block[0]]
    count = 1
    for line in block[1:]:
        last = found[-1].text
        if count < MAX_JOINED and len(last) >= 12 and not _FRESH.match(line.text):
            apart = score(last) + score(line.text)
            rest = line.text.lstrip()
            ways = [f"{last}{rest}", f"{last} {rest}"]
            best = max(ways, key=score)
            if score(best) > apart:
                found[-1] = replace(found[-1], text=best)
                count += 1
                continue
        found.append(line)
        count = 1
    return found


def _continued(block: list[TextLine], score: Score) -> list[TextLine]:
    """Joined where a line with a prefix certainly goes on: it ends in a bracket, the next begins in a word, or nothing
    but the prefix is there."""
    found = [block[0]]
    count = 1
    for line in block[1:]:
        last = found[-1].text
        if count < MAX_JOINED and len(last) >= SHORTEST_CUT and _FRESH.match(last) and _goes_on(last, line.text):
            spaced = f"{last} {line.text.lstrip()}"
            ways = (
                (spaced, f"{last}{line.text}")
                if last[-1] in "]:,)." or line.text[0] == " "
                else (f"{last}{line.text}", spaced)
            )
            found[-1] = replace(found[-1], text=max(ways, key=score))
            count += 1
        else:
            found.append(line)
            count = 1
    return found


def _goes_on(text: str, rest: str) -> bool:
    if not rest or rest[:2].isspace() or rest[0] == "\t" or _FRESH.match(rest) or len(text) > MAX_LINE:
        return False
    if rest[0] == " ":  # nobody indents by one
        return True
    if rest[0].islower() or rest[0] in ":,.)]>" or only_prefixes(text, 0, len(text), most_words=0):
        return True
    return any(text.rfind(opening) > text.rfind(closing) for opening, closing in ("[]", "()", "<>"))


def _score() -> Score:
    """How much a line shows: a frame or a heading 2, a message 3 and more for each field in it, its beginning 1."""
    literals, patterns = anchors(), patterns_by_anchor()
    kept: dict[str, float] = {}

    def messages(text: str) -> Iterator[float]:
        for anchor in literals.within(text):
            for pattern in patterns[anchor]:
                match = pattern.match.search(text)
                yield _MESSAGE + 0.3 * sum(value is not None for value in match.groups()) if match else 1

    def score(text: str) -> float:
        if text not in kept:
            shown = 2.0 if len(text) < 1200 and _SHOWS.fullmatch(text) else 0.0
            kept[text] = shown + max(messages(text), default=0.0)
        return kept[text]

    return score
