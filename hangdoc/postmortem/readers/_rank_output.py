"""Puts the rank in front of each line of its output, where a heading above the output names it.

People paste the end of each rank's log below `--- rank 2 ---`, `[node n41, rank 4]` or `output of rank 3:`, and the
kernel's log below `dmesg on the node of rank 0:`. Stacks keep their headings: the readers of stacks know these.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from hangdoc.postmortem.readers._cleaning import TextLine
from hangdoc.postmortem.readers._host_names import prompt_of
from hangdoc.postmortem.readers._input_file import rank_in_name
from hangdoc.postmortem.readers._owner_hints import OwnerHints

MAX_HEADING = 120  # characters
MAX_SECTION = 5_000  # lines
MAX_SEARCHED = 400  # characters of a line

_NAMES_RANK = re.compile(r"(?<![A-Za-z])ranks?(?![A-Za-z])", re.IGNORECASE)
_DECORATED = re.compile(r"\s*(?:[=\-#*~+>]{2,}|#{1,6} |\[)\s*\S.{0,200}")
_TITLE = re.compile(r"\s{0,4}(?:[=\-#*~+>]{2,}|#{1,6} |==> )\s*\w.{0,200}")
_OF_KERNEL = re.compile(
    r"\W{0,8}(?:here(?:'s| is) )?(?:the )?(?:dmesg|kernel(?: log| messages?)?|journal(?:ctl)?|syslog)\b[^\n]{0,60}?"
    r"\brank[ -]?(\d{1,6})\b[^\n]{0,40}:\s*",
    re.IGNORECASE,
)
_STACK = re.compile(
    r"\bThread (?:0x[0-9A-Fa-f]+|\d+)\b|most recent call first|^\s*#\d{1,4} |\([\w./<>+-]{1,200}\.pyx?:\d{1,9}\)\s*$"
    r"|^Process \d+: |^\[<[0-9a-f]*>\]|\+0x[0-9a-f]+/0x"
)
_ABOVE_BLOCK = re.compile(  # `node-b, when node-a died (local rank 0 = global 4)`
    r"[^\n()]{1,100}\((?:local[ _]rank \d{1,3} ?(?:=|is|,) ?)?(?:global(?:[ _]rank)?|rank)[ =]{1,3}(\d{1,6})\)\s*:?\s*"
)
_LOGGED = re.compile(
    r"^\[ {0,8}\d{1,9}\.\d{6}\]|Traceback \(most recent call last\)|\w(?:Error|Exception)\b|\bNCCL\b|\[[EWI]\d{3,4} "
    r"|\d\d:\d\d:\d\d|\b(?:step|iter(?:ation)?|epoch)\b\W{0,4}\d|\bloss\b|\d%\||Killed|Segmentation fault"
)
_OWNED = re.compile(r"\s{0,8}(?:\[(?:rank ?)?\d{1,6}\]|\[default\d|\d{1,6}: |(?:global )?rank[ _-]?\d)", re.IGNORECASE)
_SHOWS = re.compile(r"(?:sudo )?(?:tail|head|cat|less|more|grep|egrep|zgrep|rg|sed|awk)\s")
_LOG_FILE = re.compile(r"\.(?:log|txt|out|err|stdout|stderr)(?:\.\d{1,4})?$")
_PROSE = re.compile(r"[A-Za-z][A-Za-z']*(?:,? [A-Za-z'()-]+){4,}[^\[\]=|]{0,200}")


def with_ranks(lines: Sequence[TextLine]) -> list[TextLine]:
    """The lines, with `[rank2]: ` in front of those below a heading of rank 2."""
    found: list[TextLine] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        found.append(line)
        at += 1
        apart = at < len(lines) and not lines[at].text.strip()
        if (rank := _rank_of_heading(line.text, apart)) is None:
            continue
        end = _end(lines, at, decorated=_DECORATED.match(line.text) is not None)
        own = _is_output(lines[at:end])
        found += [_of_rank(rank, one) if own and one.text.strip() else one for one in lines[at:end]]
        at = end
    return found


def _is_output(section: Sequence[TextLine]) -> bool:
    """True for output that names no rank itself, and has no stack."""
    texts = [one.text[:MAX_SEARCHED] for one in section]
    return any(map(_LOGGED.search, texts)) and not any(_STACK.search(text) or _OWNED.match(text) for text in texts)


def _of_rank(rank: int, line: TextLine) -> TextLine:
    return replace(line, text=f"[rank{rank}]: {line.text}")


def _rank_of_heading(text: str, apart: bool = False) -> int | None:
    """The only rank in a heading; None: it is none, or names several ranks. `apart`: a fence or empty line follows."""
    if len(text) > MAX_HEADING:
        return None
    if apart and (above := _ABOVE_BLOCK.fullmatch(text)):
        return int(above[1])
    if (shown := _rank_of_file_shown(text)) is not None:
        return shown
    if len(_NAMES_RANK.findall(text)) != 1:
        return None
    if kernel := _OF_KERNEL.fullmatch(text):
        return int(kernel[1])
    if not text.rstrip(" *_`").endswith(":") and not _DECORATED.fullmatch(text):
        return None
    hints = OwnerHints()
    hints.observe(text)
    return hints.rank if hints.updated and not hints.companions else None


def _rank_of_file_shown(text: str) -> int | None:
    """The rank in the name of the only file that a command at a prompt prints: `$ tail -n 20 logs/rank_6.err`."""
    prompt = prompt_of(text)
    if prompt is None or not _SHOWS.match(prompt.command):
        return None
    files = [word for word in prompt.command.split()[1:] if _LOG_FILE.search(word)]
    return rank_in_name(files[0], worded=True) if len(files) == 1 else None


def _end(lines: Sequence[TextLine], start: int, decorated: bool) -> int:
    """The end of the section that begins on a line: the next heading, prompt, or prose after a blank line."""
    begun = False
    for at in range(start, min(len(lines), start + MAX_SECTION)):
        text = lines[at].text
        blank = begun and not lines[at - 1].text.strip()
        if not text.strip():
            continue
        begun = True
        if blank and (not decorated or _PROSE.fullmatch(text[:MAX_SEARCHED])):
            return at
        if _TITLE.fullmatch(text) or _rank_of_heading(text) is not None or prompt_of(text):
            return at
    return min(len(lines), start + MAX_SECTION)
