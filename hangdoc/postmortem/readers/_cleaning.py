"""Cleans pasted text: removes what terminals, mail, chats, tickets, grep and CI systems add around each line.

The text of a line is never changed inside, except for typographic characters and HTML entities. Each line keeps its
number in the file, because findings cite it.
"""

from __future__ import annotations

import codecs
import html
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from hangdoc.postmortem.readers._input_file import rank_in_name
from hangdoc.postmortem.readers._logs.prefixes import HOST_LABEL

MAX_LINE = 16 * 2**10  # characters; a longer line is left as it is
LEAST_LABELLED = 4  # lines, for a name in front of every one to be a label
MAX_FILES = 64  # whose names begin lines
LEAST_SAID = 3  # lines with the name of a person in front, for a text to be a chat
QUOTED_LINES = 3  # in a row with a bar in front: fewer may be the rest of a table

_TERMINAL = re.compile(r"\x1b(?:\[[0-9;:?]{0,60}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
_CARET_COLOUR = re.compile(r"(?:\^\[|\u241b|\\x1b|\\033|\\e)\[[0-9;]{0,20}m")  # colours as text: `^[[36m`
_ODD = str.maketrans(
    {
        **dict.fromkeys("\u00a0\u2007\u202f\u2009\u3000", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u200f\u202a\u202b\u202c\u202d\u202e", ""),
        **dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2018\u2019\u201a", "'"),
    }
)
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|nbsp|apos|#\d{1,6}|#x[0-9a-fA-F]{1,5});")
_FENCE = re.compile(r"\s{0,12}(?:`{3,}|~{3,})\s*[\w.+-]{0,20}\s*")
_QUOTE = re.compile(r"[ \t]{0,3}(?:>[ ]?(?=[>\s])){0,20}>(?!>) ?")
# A heading that looks like a quote: `>>> rank 5, tail`, `>>> n31`
_ARROWS = re.compile(
    r"\s{0,4}>{2,4} ((?:(?:on )?(?:global |local )?(?:rank|node|host|machine|worker|gpu|pod)s?[ _#:-]{0,2}\w"
    r"|[A-Za-z][\w.-]{0,60}\d{1,5}(?=[ ,:(]|$))[^=()\n]{0,60}(?:\([^()\n]{1,40}\))?:?)\s*"
)
_BULLET = re.compile(r"[ ]{0,6}[-*\u2022\u2023\u25e6][ ]+(?=[^\s\-*])")
_BOLD = re.compile(r"(?<![\w*])\*\*(?=[^\s*])([^*\n]{1,2000}?)(?<=[^\s*])\*\*(?![\w*])")
_STARRED = re.compile(r"(\s*)(\*\*|`{1,2}|\*|_)(?!\2)(.*?)\2([:.,]?)\s*")
_CELL = re.compile(r"^\s{0,3}<(?:pre|code|p|div|li|details|summary)>|</(?:pre|code|p|div|li|details|summary)>\s*$")

_NUMBERED = re.compile(  # grep -n; not a time, a date or a PCI address
    r"(?!\d{1,2}:\d\d:\d\d)(?!\d{4}-\d\d-\d\d)(?!\d\d:[\da-f]{2}\.[0-7] )\s*(\d{1,9})(:|-)"
)
_LISTED = re.compile(r"[ ]{0,8}(\d{1,9})(?:\t|[ ]{1,2}\t?|[ ]?[|\u2502] ?)(?=[\S \t]|$)")  # cat -n, nl, an editor
_FILE = (
    r"((?:[\w.@+~=-]{0,100}/){0,20}[\w.@+~=-]{1,200}?\.(?:log|txt|out|err|stdout|stderr|[ct]sv|jsonl)(?:\.\d{1,6})?)"
)
_IN_FILE = re.compile(rf"{_FILE}(?:[:-](\d{{1,9}}))?[:-](?!\d+[:,]\d)")  # grep -r, grep -rn
_OF_FILE = re.compile(r"\s{0,4}# Avg bus bandwidth")  # a summary that says nothing without the name of its file
_SECTION = re.compile(rf"==> {_FILE} <==\s*")  # head, tail
_OF_LINES = re.compile(r"\.(?:log|csv|tsv|jsonl)\b")  # such a file, and no stacks
_NEXT_COMMAND = re.compile(  # behind it: `$ ssh n1 ps`, `[me@n1 run]$ py-spy dump`, `n1:~# dmesg`
    r"(?:\[?[\w.@-]{1,60}[\w:@~/ -]{0,60}\]?(?<! )[$#]|\$) [a-z][\w.-]{0,30}(?: |$)"
)
_TORCHRUN = re.compile(r"(?:^|/)attempt_\d{1,4}/(\d{1,6})/std(?:out|err)\.log")

DATE = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_GITLAB = re.compile(rf"({DATE}) \d\d[OE][ +]?")  # a runner with FF_TIMESTAMPS
_ACTION = re.compile(rf"[^\t\n]{{1,200}}\t[^\t\n]{{1,200}}\t\ufeff?({DATE} )")  # gh run view --log
_COMMAND = re.compile(
    r"##\[(?:error|warning|debug|group|endgroup|command|section)\]|::(?:error|warning|debug)[^:\n]{0,200}::"
)
_JENKINS = re.compile(rf"(\[{DATE}\]|\[?\d\d:\d\d:\d\d\]?) ( ?)")


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of a text, and its number in the file, from 1."""

    number: int
    text: str
    listed: int | None = None  # the number that `cat -n`, an editor or `grep -n` wrote in front of it


def decode(data: bytes) -> str:
    """The text of a file: UTF-8, or UTF-16 by its byte order mark or its zero bytes."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and 8 * data[:4096].count(0) >= len(data[:4096]):
        return data[: len(data) // 2 * 2].decode("utf-16", "replace")
    sample = data[:4096]
    for odd, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        half, other = sample[odd::2], sample[1 - odd :: 2]
        if len(half) >= 8 and half.count(0) > 0.7 * len(half) and other.count(0) < 0.1 * len(other):
            return data[: len(data) // 2 * 2].decode(name, "replace")
    return data.decode("utf-8", "replace").removeprefix("\ufeff")


def clean_lines(text: str) -> list[TextLine]:
    """The lines of a text without what was added around them."""
    lines = [line for number, raw in enumerate(text.split("\n"), 1) for line in _physical(number, raw)]
    for step in _STEPS:
        lines = step(lines)
    return lines


def _physical(number: int, raw: str) -> Iterator[TextLine]:
    """The lines in one line of the file: a carriage return starts a new one."""
    if "\x1b" in raw:
        raw = _TERMINAL.sub("", raw)
    if "[" in raw and raw.find("m") > 0:
        raw = _CARET_COLOUR.sub("", raw)
    if not raw.isascii():
        raw = raw.translate(_ODD)
    if "&" in raw and _ENTITY.search(raw):
        raw = html.unescape(raw).replace("\u00a0", " ").replace("\r", " ").replace("\n", " ")
    if raw.startswith('{"log":'):
        raw = _container_line(raw)
    parts = raw.rstrip("\r").split("\r") if "\r" in raw else (raw,)
    for part in parts:
        if part or len(parts) == 1:
            yield TextLine(number, part)


def _container_line(raw: str) -> str:
    """The line in an entry of docker's json-file driver."""
    try:
        found = json.loads(raw)
        return f"{str(found.get('time', ''))[:40]} {found['log']}".lstrip(" ").split("\n")[0]
    except (ValueError, KeyError, RecursionError, AttributeError):
        return raw


def _each(change: Callable[[str], str]) -> Callable[[list[TextLine]], list[TextLine]]:
    def step(lines: list[TextLine]) -> list[TextLine]:
        return [line if (new := change(line.text)) is line.text else replace(line, text=new) for line in lines]

    return step


def _unmarked(text: str) -> str:
    """A line without Markdown and HTML around it."""
    if not text or len(text) > MAX_LINE:
        return text
    if _FENCE.fullmatch(text):
        return ""
    if "<" in text and ("</" in text or "<p" in text or "<c" in text or "<d" in text or "<l" in text):
        text = _CELL.sub("", text)
    if found := _BULLET.match(text):
        text = text[found.end() :]
    ends = text.rstrip()[-1:]
    if (
        ends
        and ends in "`*_:.,"
        and (found := _STARRED.fullmatch(text))
        and found[2] not in found[3]
        and found[3].strip()
    ):
        text = f"{found[1]}{found[3]}{found[4]}"
    return _BOLD.sub(r"\1", text) if "**" in text else text


def _without_quotes(lines: list[TextLine]) -> list[TextLine]:
    """Without the `>` of mail and Markdown. A single line may be a heading (`_ARROWS`)."""
    cleaned: list[TextLine] = []
    for quoted, group in groupby(lines, lambda line: line.text[:8].lstrip(" \t")[:1] == ">"):
        run = list(group)
        if quoted and len(run) == 1 and (heading := _ARROWS.fullmatch(run[0].text)):
            cleaned.append(replace(run[0], text=f"=== {heading[1]} ==="))
            continue
        for line in run:
            found = _QUOTE.match(line.text) if quoted else None
            cleaned.append(replace(line, text=line.text[found.end() :]) if found else line)
    return cleaned


def _without_bars(lines: list[TextLine]) -> list[TextLine]:
    """Without the `| ` that some mail programs quote with; rows of a table end in a bar as well, or have several."""
    found: list[TextLine] = []
    for barred, group in groupby(lines, lambda line: line.text.startswith("|")):
        run = list(group)
        rows = sum(
            "|" in line.text[1:] and (line.text.rstrip().endswith("|") or line.text.count(" | ") > 1) for line in run
        )
        if barred and len(run) >= QUOTED_LINES and 4 * rows <= len(run):
            run = [replace(line, text=line.text[1:].removeprefix(" ")) for line in run]
        found += run
    return found


def _without_ci(text: str) -> str:
    """A line without what a CI system adds. A time stays: it is that of the line."""
    if len(text) > MAX_LINE:
        return text
    if found := _ACTION.match(text):
        text = found[1] + text[found.end() :]
    if found := _GITLAB.match(text):
        text = f"{found[1]} {text[found.end() :]}"
    if "##[" in text or text.startswith("::"):
        text = _COMMAND.sub("", text, count=1)
    if found := _JENKINS.match(text):
        text = f"{found[1]} {text[found.end() :]}"  # its second blank is not the line's
    return text


_NICK = re.compile(r"<(?!module>|lambda>|genexpr>|\w{3,4}comp>|string>|stdin>)[A-Za-z][\w|-]{0,20}> (?=\S)")


def _without_nicks(lines: list[TextLine]) -> list[TextLine]:
    """Without the `<name> ` of a chat in front of what each person pasted."""
    if sum(line.text[:1] == "<" and _NICK.match(line.text) is not None for line in lines) < LEAST_SAID:
        return lines
    return [
        replace(line, text=line.text[found.end() :])
        if line.text[:1] == "<" and (found := _NICK.match(line.text))
        else line
        for line in lines
    ]


# What a tool that collects output puts in front of every line: a time, the name of a pod, or that of a file.
_COLLECTED = (
    re.compile(rf"\[?{DATE}\]?(?: \d\d[OE][ +]?| |$)"),  # with the stream of a GitLab runner
    re.compile(r"(?P<name>[a-z0-9][\w.-]{0,80}) {1,20}\|(?: |$)"),
    re.compile(rf"(?P<name>{_FILE}):"),
)
# What no program writes behind a time or a name: nothing, an indented line, a command that was typed.
_UNLOGGED = re.compile(r"\s*$|  |\t|[$#%] [a-z]|[\w.@~:/\[\]-]{1,60} ?[$#%] [a-z]")


def _without_collector(lines: list[TextLine]) -> list[TextLine]:
    """Without what a tool put in front of every line: not only of a log, but of tables, stacks and commands as well."""
    written = [line.text for line in lines if line.text.strip()]
    if len(written) < LEAST_LABELLED:
        return lines
    for pattern in _COLLECTED:
        found = [match for text in written if len(text) <= MAX_LINE and (match := pattern.match(text))]
        names = {match["name"] for match in found} if "name" in pattern.groupindex else {""}
        if len(found) < len(written) or len(names) > 1 or _file_prefix(*names):
            continue
        if any(_UNLOGGED.match(match.string, match.end()) for match in found):
            return [replace(line, text=pattern.sub("", line.text, count=1)) for line in lines]
    return lines


# The head of a column of numbers, or the command that prints one: such rows may be numbered in a row.
_COLUMN = re.compile(
    r"\b(?:[LST]?PID|TID|LWP|JOBID)\b|^\W{0,8}(?:[Rr]ank|RANK|[Gg]pu|GPU|[Ii]ndex|[Ii]dx)\b(?!\W{0,3}\d)"
    r"|\bps\s.{0,80}\b(?:pid|lwp|tid)\b|\bps -?[a-zA-Z]{1,4} "
)


# What stands behind a PID: a variable of its environment that a loop printed, or its state in a table of `ps`.
_OF_PROCESS = re.compile(r"\s{0,4}(?:(?:[A-Z_]{0,40}RANK|SLURM_PROCID)=\d{1,6}|[RSDTtZXI][<NLsl+]{0,5})(?:\s|$)")


# `trainer-0 | ` in front of a line, and a host that the line itself names: in a prompt, or as NCCL writes it.
_LABEL = re.compile(r"([a-z0-9][\w.-]{0,80}) {1,20}\| ?")
_OWN_HOST = re.compile(
    r"\[?[a-z_][\w.-]{0,31}@([\w-]{1,63})[: ]|(?:\S{1,100}:)?([A-Za-z][\w-]{0,63}):\d{1,9}:\d{1,9} \[\d"
)


def _without_label(lines: list[TextLine]) -> list[TextLine]:
    """Without the name that stands in front of every line, if lines say that they are of other hosts."""
    names: set[str] = set()
    for line in lines:
        if line.text.strip():
            label = _LABEL.match(line.text)
            names.add(label[1] if label else "")
            if len(names) > 1 or "" in names:
                return lines
    if len(lines) < LEAST_LABELLED:
        return lines
    rest = [replace(line, text=_LABEL.sub("", line.text, count=1)) for line in lines]
    hosts = {name for line in rest if (own := _OWN_HOST.match(line.text)) for name in own.groups() if name}
    labels = {found["host"] if (found := HOST_LABEL.match(line.text)) else "" for line in rest if line.text.strip()}
    return rest if hosts - names or (len(labels) > 1 and "" not in labels) else lines


def _without_numbers(lines: list[TextLine]) -> list[TextLine]:
    """Without the line numbers of `grep -n`, `cat -n` and `nl`."""
    return _renumbered(_renumbered(lines, _NUMBERED, _are_of_grep), _LISTED, _are_of_cat)


def _renumbered(
    lines: list[TextLine], pattern: re.Pattern[str], genuine: Callable[[Sequence[re.Match[str]]], bool]
) -> list[TextLine]:
    found: list[TextLine] = []
    matched = ((line, pattern.match(line.text)) for line in lines)
    for numbered, group in groupby(matched, lambda one: one[1] is not None or one[0].text == "--"):
        run = list(group)
        matches = [match for _, match in run if match]
        in_table = bool(found) and _COLUMN.search(found[-1].text) is not None
        if numbered and matches and not in_table and genuine(matches):
            found += [
                replace(line, text=line.text[match.end() :], listed=int(match[1])) if match else replace(line, text="")
                for line, match in run
            ]
        else:
            found += [line for line, _ in run]
    return found


def _are_of_grep(matches: Sequence[re.Match[str]]) -> bool:
    """True if the numbers are those of lines: they rise, and no blank follows each, as one does after a rank."""
    numbers = [int(match[1]) for match in matches]
    rising = all(a < b for a, b in pairwise(numbers))
    hits = [match for match in matches if match[2] == ":"]
    close = [match for match in hits if match.string[match.end() : match.end() + 1].strip()]
    if not rising or not close or numbers[0] == 0:
        return False
    return len(matches) > 1 or bool(re.match(r"\[[a-zA-Z]|[A-Z][a-z]", close[0].string[close[0].end() :]))


def _are_of_cat(matches: Sequence[re.Match[str]]) -> bool:
    """True if each number follows the one before, from 1 on: rows of tables count from 0.

    PIDs may follow each other as well.
    """
    numbers = [int(match[1]) for match in matches]
    if all(_OF_PROCESS.match(match.string, match.end()) for match in matches):
        return False
    return len(numbers) >= 3 and numbers[0] > 0 and all(b == a + 1 for a, b in pairwise(numbers))


def _without_files(lines: list[TextLine]) -> list[TextLine]:
    """Without the file names of grep; a name or a section of `tail` that states a rank becomes the line's prefix."""
    found: list[TextLine] = []
    section = ""
    for line in _files_apart(lines):
        text = line.text
        if match := _SECTION.fullmatch(text):
            section = _file_prefix(match[1]) if _TORCHRUN.search(match[1]) or _OF_LINES.search(match[1]) else ""
        elif (match := _IN_FILE.match(text)) and match.end() < len(text) and not _OF_FILE.match(text, match.end()):
            text = _prefixed(_file_prefix(match[1]), text[match.end() :])
        elif section and _NEXT_COMMAND.match(text):
            section = ""
        elif section and text:
            text = _prefixed(section, text)
        found.append(replace(line, text=text) if text is not line.text else line)
    return found


def _files_apart(lines: Sequence[TextLine]) -> Iterator[TextLine]:
    """The lines of grep, cut where a file that several of them name begins in the middle of one."""
    names = Counter(match[1] for line in lines if (match := _IN_FILE.match(line.text)))
    several = [re.escape(name) for name, count in names.most_common(MAX_FILES) if count > 1]
    if not several:
        yield from lines
        return
    begins = re.compile(rf"(?<=[^\s/:])(?=(?:{'|'.join(several)}):)")
    for line in lines:
        cuts = (match.start() for match in begins.finditer(line.text, 1))
        yield from (replace(line, text=line.text[a:b]) for a, b in pairwise([0, *cuts, len(line.text)]))


def _file_prefix(name: str) -> str:
    if match := _TORCHRUN.search(name):
        return f"[default{match[1]}]:"
    rank = rank_in_name(name.rpartition("/")[2], worded=True)
    return f"[rank{rank}]: " if rank is not None else ""


def _prefixed(prefix: str, text: str) -> str:
    return text if not prefix or re.match(r"(?:\[default\d+\]:)?\[rank\d", text) else prefix + text


def _dedented(lines: list[TextLine]) -> list[TextLine]:
    """Without an indentation that all lines share."""
    least = min((len(line.text) - len(line.text.lstrip(" ")) for line in lines if line.text.strip()), default=0)
    tabs = all(line.text[:1] == "\t" for line in lines if line.text.strip())
    if tabs and lines:
        least = 1
    return [replace(line, text=line.text[least:]) for line in lines] if least else lines


_STEPS: tuple[Callable[[list[TextLine]], list[TextLine]], ...] = (
    _dedented,
    _without_quotes,
    _without_bars,
    _without_nicks,
    _without_collector,
    _dedented,
    _each(_unmarked),
    _without_numbers,
    _without_files,
    _each(_without_ci),
    _without_label,
)
