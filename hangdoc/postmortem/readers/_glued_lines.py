"""Takes apart lines that were written into one: two processes wrote to one pipe, or a bar has no line feed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise

from hangdoc.postmortem.readers._cleaning import DATE, MAX_LINE, TextLine

MAX_MESSAGES = 64  # in one line
MAX_TEXT = 256 << 10  # characters of a text whose lines are compared
MAX_BEGINNINGS = 128  # of lines, of different forms
_BARS = ("|", "\u2502", "\u2503")
_BRACKETED = re.compile(r"\[[\w,. -]{1,40}\](?:<std(?:out|err)>)?:")
_WORDS = re.compile(
    r"(?=[^A-Za-z\n]{0,30}[A-Za-z])"
    r"(?:\S{1,60}[ \t]{1,20}\S{1,60}(?:(?<=\d) {1,20}[A-Za-z%]{1,10}(?!\w))?|\S{0,60}\d\S{0,60}$)"
)
# What stands at the beginning of a line, wherever it is met: a prompt, a row of a loop over PIDs, a bar, the heading of
# a stack, a frame.
_STACK = (
    r"Thread (?:0x[0-9a-f]{4,16} \((?:most|LWP)|\d{1,9} \((?:idle|active))|Process \d{1,9}: |Python v\d\."
    r"|Current thread 0x|Traceback \(most recent"
)
_FRAME = (
    r'File "[^"\n]{1,300}", line \d'
    r"|[\w.<>~:*&]{1,120} \((?:[\w./<>+-]{1,300}:\d{1,6}|lib[\w+-]{1,60}\.so[\w.]{0,20})\)"
)
_BEGINS = re.compile(
    r"(?<=\S)(?=\[[a-z_][\w.-]{0,31}@[\w.-]{1,63}[ :][^\]\s]{0,80}\][$#] |\(gdb\) [a-z]"
    r"|#\d{1,3} {1,3}0x[0-9a-f]{6,16} in )"
    r"|(?<=[\w.)])(?=\$ [a-z][\w.-]{1,30} --?[a-zA-Z])"
    r"|(?<=[^\s\d])(?=\d{3,9} RANK=\d)"
    r"|(?:(?<=[.!?)\]])|(?<=[.!?)\]] )|(?<=[.!?)\]] {2})|(?<=[.!?)\]] {3}))(?=\d{1,3}%\|)"
    rf"|(?<=[\w.)])(?=(?:{_STACK}))"
    r"|(?<=[)\]])(?=(?:[a-z_]\w{0,30}\.){0,4}[A-Z]\w{1,40}(?:Error|Exception): )"
    rf'|(?:(?<=\d\))|(?<=\w")|(?<=t\):)|(?<=[\w>)]))(?= {{2,12}}(?:{_FRAME}))'
)
# What a line ends in before a frame that was written behind it: another frame, or the heading of a stack.
_BEFORE_FRAME = re.compile(
    r'(?:\([\w./<>+-]{1,300}:\d{1,6}\)|\.so[\w.]{0,20}\)|\): "[^"\n]{1,100}"|\(most recent call (?:first|last)\):'
    r"|, in [\w<>.]{1,80}| {3}\S[^\n]{0,200}\))$"
)
_SOURCE = re.compile(r'File "[^"\n]{1,300}", line \d{1,7}, in [\w<>.]{1,80}(?= {3,12}\S)')  # with its code behind it
_ROW_ENDS = re.compile(  # `| 3 | 0.2 |` and `| 4 | 0.3 |` in one line
    r"(?<=[|\u2502\u2503\u2518\u2524])(?=[|\u2502\u2503\u250c\u2514\u251c\u2521])"
)

_PROGRESS = re.compile(
    r"(?:[^\n|]{0,200}?\d{1,3}%\|[^|\n]{0,400}\||[^\n|\[]{0,100}?\d{1,9}it) ?[^\[\n]{0,60}\[[^\]\n]{1,120}\]"
)
_AGAIN = re.compile(
    r"\[(?:rank|default)?\d{1,6}\]:\s?(?=\[?[EWIFC]\d{4} |\[[EWI] |Traceback |\[rank)"  # torchrun, torch
    r"|\[rank\d{1,6}\]:\s?(?=[A-Z\[ ])"
    r"|\[?[EWIF]\d{4} \d\d:\d\d:\d\d\.\d{3,9} (?=[\w/.-]{1,200}[ :])"  # glog
    rf"|\[?{DATE}\]?[ ,](?=\S)"
)
_DATED = re.compile(rf"\[?{DATE}")
_STATED = re.compile(  # what may stand in front of a message without being one: prefixes of its line
    r"(?:\[[^\]\n]{0,200}\][:,]?|\([^)\n]{0,120}\)|<[^>\n]{0,40}>:?|[\w./@-]{1,120}[:|]|\d[\d:.,TZ+-]*"
    r"|[\w.-]{1,80}\s+\||"
    r"(?:stdout|stderr)(?: [FP])?|DEBUG|INFO|WARNING|WARN|ERROR|[A-Z][a-z]{2} \d{1,2}|[EWIF]\d{4}|[\w./-]{1,60}"
    r"|[|>*\[(-])\s*"
)


def with_glued_lines_apart(lines: Sequence[TextLine]) -> list[TextLine]:
    """The lines, with those that were written into one line on lines of their own."""
    return [
        line if text is line.text else replace(line, text=text)
        for line in _by_beginnings(lines)
        for text in _messages(line.text)
    ]


def _by_beginnings(lines: Sequence[TextLine]) -> Sequence[TextLine]:
    """Cut where a line has in its middle what others begin with, without a blank in front of it.

    `rank 4  0.510rank 5  2.047`, among other lines that begin with `rank` and a number.
    """
    if sum(len(line.text) for line in lines) > MAX_TEXT:
        return lines
    longest = max((len(line.text) for line in lines), default=0)
    whole = [b for a, b in pairwise([TextLine(0, ""), *lines]) if len(a.text) < longest]  # others may be ends of lines
    seen = Counter(form for line in whole if (form := beginning(line.text)))
    forms = [form for form, count in seen.most_common(MAX_BEGINNINGS) if count > 1]
    patterns = [_BEGINS, *([re.compile("|".join(f"(?:{form})" for form in forms))] if forms else [])]
    rows = Counter(line.text.count(line.text[0]) for line in lines if line.text.startswith(_BARS))
    return [
        line if text is line.text else replace(line, text=text)
        for line in lines
        for text in (_cut(line.text, patterns, rows) if 8 <= len(line.text) <= MAX_LINE else [line.text])
    ]


def beginning(text: str) -> str | None:
    """A pattern for the first words of lines that begin alike, whatever their numbers. None: they say too little."""
    begin = len(text) - len(text.lstrip(" "))
    head = _BRACKETED.match(text, begin) or _WORDS.match(text, begin)
    if head is None or len(head[0]) < 4 or not re.search(r"[A-Za-z]{2}|[A-Za-z][-\d]|^\[\d", head[0]):
        return None
    form = re.sub(r"0x[0-9a-f]+|[0-9]+", lambda found: "\0" if found[0].isdigit() else "\1", head[0])
    form = re.escape(form).replace("\0", "[0-9]{1,20}").replace("\1", "0x[0-9a-f]{1,16}")
    return f"(?<=\\S) {{{begin}}}{form}" if begin > 1 else rf"(?:(?<=[^\s\"'(\[{{</\\=@_|:,+-])|(?<= -)){form}"


def _cut(text: str, patterns: Sequence[re.Pattern[str]], rows: Mapping[int, int]) -> Sequence[str]:
    """`rows`: how many rows of tables have so many bars."""
    starts = {found.start() for again in patterns for found in islice(again.finditer(text, 1), MAX_MESSAGES)}
    starts |= {found.end() for found in islice(_SOURCE.finditer(text), MAX_MESSAGES)}
    if text.startswith(_BARS):
        starts |= {found.start() for found in _ROW_ENDS.finditer(text) if rows[text.count(text[0], 0, found.start())]}
    cuts = [0]
    for at in sorted(starts):
        head = text[cuts[-1] : at].strip()
        apart = _BEFORE_FRAME.search(head[-400:]) if text[at] == " " else " " in head or head in _BARS
        if apart and not (text[at - 1] in "0123456789." and text[at].isdigit()):
            cuts.append(at)
    return [text[a:b] for a, b in pairwise([*cuts, len(text)])] if len(cuts) > 1 else [text]


def _messages(text: str) -> Iterable[str]:
    if not 24 <= len(text) <= MAX_LINE:
        return (text,)
    if "%|" in text and (bar := _PROGRESS.match(text)) and len(text) - bar.end() >= 8:
        return (text[: bar.end()], *_messages(text[bar.end() :].lstrip()))
    cuts: list[int] = []
    for match in islice(_AGAIN.finditer(text, 12), MAX_MESSAGES):
        begin = cuts[-1] if cuts else 0
        at = match.start()
        if at - begin >= 12 and (_is_second_date(text, begin, at) or not only_prefixes(text, begin, at)):
            cuts.append(at)
    if not cuts:
        return (text,)
    return [text[a:b].rstrip() for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def _is_second_date(text: str, begin: int, at: int) -> bool:
    """True if a line with a date ends in a letter or digit, and the next date follows: `size: 82026-04-16 ...`."""
    return text[at - 1].isalnum() and _DATED.match(text, begin) is not None and _DATED.match(text, at) is not None


def only_prefixes(text: str, begin: int, end: int, most_words: int = 2) -> bool:
    """True if nothing but prefixes lies between: then the line is one message. A message has several words."""
    at, words = begin, 0
    while at < end:
        if text.startswith("Traceback (most recent", at):
            return False
        match = _STATED.match(text, at, end)
        if match is None or match.end() == at or words > 10:
            return False
        words += bool(re.fullmatch(r"[a-zA-Z][a-z]+\s*", match[0]))
        at = match.end()
    return words <= most_words
