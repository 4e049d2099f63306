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
from hangdoc.postmortem.readers._glued_lines import MAX_TEXT, beginning, only_prefixes
from hangdoc.postmortem.readers._logs.catalogue import anchors, patterns_by_anchor

MAX_JOINED = 12  # lines in one
SHORTEST_CUT = 40  # characters of a line that was cut by a chat
NARROWEST, WIDEST = 28, 300  # characters of a line that may have been wrapped
NARROWEST_TERMINAL, _MOSTLY = 60, 0.4  # columns; share of full lines in a block that was wrapped for certain
_TERMINALS = (80, 100, 120, 132, 160)  # columns
_CHATS = (100, 120)  # columns; a narrower text may have been broken anywhere
LEAST_CUTS, LEAST_WORD_CUTS = 2, 3  # for a width to be certain
MAX_CUTS = 4  # of most lines that a terminal wrapped: more of one length are rows of a table
LONGEST_WORD, NEAR_WIDTH = 12, 10  # characters of a common word; left of the width by the longest line
_WIDTHS = (72, 76, 78, 79, 80, 100, 120, 132)  # at which programs wrap

_SHOWS = re.compile(
    r"(?:[A-Za-z][\w.-]{0,80}(?:: | +\| )|\[[^\]\n]{1,80}\]:? ?|\d{1,6}: "
    r"|\([\w.]{1,60} pid=\d{1,9}[^()\n]{0,40}\) ?){0,2}(?:"
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
    r"|\((?:[\w.]{1,60} pid=\d|raylet\b|autoscaler\b|scheduler\b)"
    r"|[A-Z][a-z]{2} \d{1,2} \d\d:|\[\s*\d+\.\d{6}\]|\[pod/|\w[\w.-]*:\d+:\d+ \["
    r"|(?:srun|slurmstepd|mpirun|mpiexec): )"
)
_RULER = re.compile(r"\W{4}|#")
_INSIDE = re.compile(r"[A-Za-z]{2}|\d\d| \w")  # a word that was cut in two, or a blank that filled a line
_HYPHEN = re.compile(r"[A-Za-z]-$")  # behind which programs cut, too
_IN_PATH = re.compile(r"(?:^|[\s\[(\"'])/[\w.+/-]{1,200}/[\w.+-]{1,60}-$")  # a path cut behind a hyphen
_TYPED = re.compile(r"[\w.@~:/\[\]-]{0,60} ?[$#] [a-z]")  # a prompt and a command

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


def with_cut_lines_joined(lines: Sequence[TextLine]) -> list[TextLine]:
    """The lines, with those joined that were cut at one width, if it is certain that all longer ones were."""
    if sum(len(line.text) for line in lines) > MAX_TEXT:
        return list(lines)
    join = _cut_by_terminal(lines) or _cut_by_chat(lines)
    if join is None:
        return list(lines)
    found: list[TextLine] = []
    for blank, group in groupby(lines, lambda line: not line.text.strip()):
        block = list(group)
        found += block if blank else _joined(block, join)
    return found


Between = Callable[[str, str], str | None]  # what was between two lines; None: they are two


def _cut_by_terminal(lines: Sequence[TextLine]) -> Between | None:
    """Most cuts are inside of a word, and shorter ends follow; rows of a table are followed by rows as long."""
    width = max((len(line.text) for line in lines), default=0)
    if width not in _TERMINALS:
        return None
    join = _unless_begun(lines, _at_width(width))
    cuts = [(a.text, b.text) for a, b in pairwise(lines) if len(a.text) == width and b.text.strip()]
    ends = [b for _, b in cuts if len(b) < width]
    around = [f"{a[-1]}{b[0]}" for a, b in cuts if join(a, b) is not None]
    inside = [one for one in around if re.fullmatch(r"[ \w]\w", one)]
    near = sum(width - LONGEST_WORD <= len(line.text) < width for line in lines)
    joined = min(MAX_CUTS * len(ends), 2 * len(around), 4 * len(inside)) >= len(cuts)  # and few full lines stand alone
    certain = joined and len(cuts) >= max(LEAST_CUTS, near)
    return join if certain and any(map(_INSIDE.fullmatch, inside)) else None


def _cut_by_chat(lines: Sequence[TextLine]) -> Between | None:
    """No line is longer but for words that could not be cut, and the next word of those that end early did not fit."""
    longest = max((len(line.text) for line in lines if " " in line.text.strip()), default=0)
    width = next((one for one in _CHATS if one - NEAR_WIDTH < longest <= one), None)
    if width is None:
        return None
    join = _unless_begun(lines, _at_word(width, width // 2))
    cuts = [b.text for a, b in pairwise(lines) if b.text.strip() and join(a.text, b.text) is not None]
    ends = [b for b in cuts if len(b) < width - LONGEST_WORD]
    return join if len(cuts) >= LEAST_WORD_CUTS and 2 * len(ends) >= len(cuts) else None


def _unless_begun(lines: Sequence[TextLine], join: Between) -> Between:
    """Without joining lines that are indented, or begin as those do that continue no other."""
    whole = [b.text for a, b in pairwise([TextLine(0, ""), *lines]) if join(a.text, b.text) is None]
    begun = {form for text in whole if (form := beginning(text))}

    def between(a: str, b: str) -> str | None:
        form = beginning(b)
        apart = b.startswith(("  ", "\t")) or _RULER.match(b) or (form and (form in begun or form == beginning(a)))
        return None if apart or _RULER.match(a) else join(a, b)

    return between


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
        ways.append(_joined(block, _at_width(longest)))
        widths = (longest, *(one for one in _WIDTHS if longest < one <= longest + 14))
        ways += [_joined(block, _at_word(width)) for width in widths]
    best = max(ways, key=total)
    full = sum(len(line.text) == longest for line in block)
    if best is block and longest >= NARROWEST_TERMINAL and (full >= _MOSTLY * len(block) or longest in _WIDTHS):
        best = max(ways[:2], key=lambda way: total(way, certain=True))
    continued = _continued(best, score)
    ways = [best, _greedy(best, score), continued, _greedy(continued, score)]
    if best is not block:  # which may have put blanks into words
        ways.append(_greedy(block, score))
    return max(ways, key=lambda way: total(way, certain=True))


def _at_width(width: int) -> Between:
    """Joins where a line fills the width."""
    glues = {width: "", width - 1: " "}  # one less is a line whose last blank was lost
    return lambda a, b: None if _FRESH.match(b) or _TYPED.match(b) else glues.get(len(a))


def _at_word(width: int, least: int = NARROWEST) -> Between:
    """Joins where the next word would not have fitted; shorter lines than `least` were not cut."""

    def between(a: str, b: str) -> str | None:
        word = b.split(None, 1)[0] if b.strip() else ""
        short = len(a) < least and not ("/" in word and _IN_PATH.search(a))
        if len(a) + 1 + len(word) <= width or short or _FRESH.match(b) or _TYPED.match(b):
            return None
        return "" if _HYPHEN.search(a) else " "

    return between


def _joined(block: list[TextLine], between: Between) -> list[TextLine]:
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
