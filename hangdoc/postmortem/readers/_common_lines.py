"""The last line that all ranks but a few have printed: `r3 | step 501 batch on gpu`, and what those few printed last.

Scripts print where each rank is, in their own words. Two lines are alike if they differ only in words with digits, and
agree in the first number behind the rank: the step. Read only where somebody says that the job stands still, or a
collective timed out, since a job that runs is always between two lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from hangdoc.evidence import limits
from hangdoc.evidence.logs import LogEvent
from hangdoc.postmortem.readers._told_state import said_stuck
from hangdoc.postmortem.readers.arrival_lists import OTHER_RANK
from hangdoc.redaction.text import redact_text

KIND = "line_lacks"
LEAST_RANKS = 3  # that have printed the line
MOST_OTHERS = 8  # one in so many ranks has not, or a single one
MAX_TEXT = 64 * 2**10  # characters
MAX_LINES = 5_000
MAX_LINE = 400  # characters
SHOWN = 160  # characters of a line
_RANK = re.compile(
    r"(?<![A-Za-z_])(?:(?:global|world)[ _]?)?(?:rank|rk|ord(?:inal)?)[ _=:#\[(-]{0,3}(\d{1,6})(?![\d.]|/\d)[\])]?"
    r"|[\[(<]r[ _=:-]?(\d{1,6})[\])>]|(?<![\w.-])r[=:]?(\d{1,6})(?=[:,|\])]| [|:>-]|[:,]? [a-z])",
    re.IGNORECASE,
)
# Lines of the software, which have readers of their own.
_LOGGED = re.compile(
    r"NCCL (?:INFO|WARN)|ProcessGroup|[Ww]atchdog|Traceback|\w(?:Error|Exception)\b|^\s*File \"|\bpid\b|\.py:\d+\)"
)
_TIMED_OUT = re.compile(r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send)")
_VARIES = re.compile(r"[\w.@:/%,-]*\d[\w.@:/%,-]*")
_NUMBER = re.compile(r"(?<![\w.])\d{1,9}(?![\d.])")
_SEVERAL = re.compile(r"\branks\b", re.IGNORECASE)

Form = tuple[str, str]  # the line without what varies, its first number


@dataclass(slots=True)
class _Printed:
    """What the ranks of a text have printed."""

    forms: dict[Form, set[int]] = field(default_factory=dict)  # -> ranks
    # rank -> number, text and form of its last line
    last: dict[int, tuple[int, str, Form]] = field(default_factory=dict)


def lacking_line(content: str, source: str) -> LogEvent | None:
    """The last line of all ranks but a few, as an event of none of them: those may never have written a line."""
    if len(content) > MAX_TEXT or not (_TIMED_OUT.search(content) or said_stuck(content, source)):
        return None
    printed = _printed(enumerate(content.split("\n")[:MAX_LINES], 1))
    if (lacking := _lacking(printed)) is None:
        return None
    form, ranks = lacking
    number, text, _ = max(printed.last[rank] for rank in printed.forms[form])
    own = [printed.last[rank][1] for rank in sorted(ranks) if rank in printed.last]
    fields = {"lacking": ",".join(map(str, sorted(ranks))), "others": str(len(printed.forms[form]))}
    return LogEvent(KIND, text, source, number, None, fields | ({"own": own[0]} if own else {}))


def _printed(lines: Iterable[tuple[int, str]]) -> _Printed:
    printed = _Printed()
    for number, text in lines:
        plain = OTHER_RANK.sub(" ", text)
        if len(text) > MAX_LINE or _LOGGED.search(text) or _SEVERAL.search(text):
            continue
        found = list(islice(_RANK.finditer(plain), 2))
        if not found or len({_number(one) for one in found}) > 1:
            continue
        rank, said = _number(found[0]), plain[found[-1].end() :]
        if rank >= limits.MAX_RANKS or not re.search("[A-Za-z]{2}", said):
            continue
        step = _NUMBER.search(said)
        form = " ".join(_VARIES.sub("#", said).split()), step[0] if step else ""
        printed.forms.setdefault(form, set()).add(rank)
        printed.last[rank] = number, redact_text(said.strip(" \t|:>-])"))[:SHOWN], form
    return printed


def _number(match: re.Match[str]) -> int:
    return int(next(one for one in match.groups() if one))


def _lacking(printed: _Printed) -> tuple[Form, set[int]] | None:
    """The form of the last line of most ranks, and the others, which have not printed it; None: there is none."""
    for form, ranks in printed.forms.items():
        if len(ranks) < LEAST_RANKS or any(printed.last[rank][2] != form for rank in ranks):
            continue
        size = max(printed.last) + 1
        others = set(range(size)) - ranks if size <= limits.MAX_RANKS and size <= 2 * len(ranks) else set()
        if 0 < len(others) <= max(1, size // MOST_OTHERS):
            return form, others
    return None
