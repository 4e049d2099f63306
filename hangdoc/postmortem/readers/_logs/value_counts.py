"""Lines that say how many ranks have each value, and name those that differ: `params: 15x 1f08 1x c293 (rank 11)`.

Other forms: `1f08 on 15 ranks, c293 on rank 11`, `15/16 ranks = 1f08, rank 11 = c293`. Every rank that is not named has
the majority's value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from hangdoc.evidence import limits
from hangdoc.evidence.figures import Figure
from hangdoc.postmortem.readers._logs.figure_kinds import EACH_ITS_OWN
from hangdoc.postmortem.readers._logs.figure_values import HEX, RANK

MAX_FIGURES = 2_048
MAX_LINE = 600  # characters
MAX_NAMED = 64  # ranks of one line

# What replicas have in common.
_COMMON = re.compile(r"\b(?:params?|parameters?|weights?|model|replicas?|checksum|hash|sha1|md5|crc|digest)\b")
_STEP = re.compile(
    r"\b(?:global[_ ]?)?(?:step|iter(?:ation)?|it|update)s?\b[\s:=#@\[]{1,4}(\d{1,9})(?![\d.])|@ ?(\d{1,9})\b"
)
_ONE = re.compile(
    rf"(?<![\w.])(?P<times>\d{{1,6}}) ?x (?P<of_times>{HEX})(?: ?\((?:global )?rank (?P<rank>\d{{1,6}})\))?"
    rf"|(?<![\w.])(?P<on>{HEX}) (?:on |\()(?:(?P<count>\d{{1,6}}) ranks\b|rank (?P<on_rank>\d{{1,6}})\b)"
    rf"|(?<![\w./])(?P<part>\d{{1,6}})(?:/(?P<size>\d{{1,6}}))? ranks?(?: have)? ?[=:]? ?(?P<of_part>{HEX})(?!\w)"
    rf"|\brank (?P<is_rank>\d{{1,6}}) ?(?:[=:]|has) ?(?P<of_rank>{HEX})(?!\w)",
    re.IGNORECASE,
)


@dataclass(slots=True)
class ValueCounts:
    """Takes the lines of a text in order."""

    found: list[Figure] = field(default_factory=list)

    def feed(self, text: str, number: int) -> None:
        if len(text) <= MAX_LINE and len(self.found) < MAX_FIGURES and "rank" in text:
            self.found += _counted(text, number)


def _counted(text: str, line: int) -> Iterator[Figure]:
    """The value of each rank, for the first name in the line with a value that most ranks have and one that differs."""
    step = _STEP.search(text)
    at = int(step[1] or step[2]) if step else None
    name, end = "", 0
    common: tuple[str, int, int] | None = None  # value, ranks with it, ranks of the job; 0: not stated
    named: dict[int, str] = {}
    for one in _ONE.finditer(text):
        before = _name(text[end : one.start()])
        if before and common and named:
            break  # the values of the next name
        if before:
            name, common, named = before, None, {}
        end = one.end()
        value = (one["of_times"] or one["on"] or one["of_part"] or one["of_rank"]).lower()
        rank = one["rank"] or one["on_rank"] or one["is_rank"]
        count = int(one["times"] or one["count"] or one["part"] or 1)
        if rank is not None and len(named) < MAX_NAMED:
            named[int(rank)] = value
        elif common is None or count > common[1]:
            common = value, count, int(one["size"] or 0)
    if not common or not named or common[0] in named.values() or not _COMMON.search(name) or EACH_ITS_OWN.search(name):
        return
    size = common[2] or common[1] + len(named)
    if size != common[1] + len(named) or size > limits.MAX_RANKS or max(named) >= size:
        return
    for rank in range(size):
        yield Figure("state", name, RANK, str(rank), named.get(rank, common[0]), True, False, at, line)


def _name(gap: str) -> str:
    """The name in front of values: without the step, and what is in brackets."""
    words = re.sub(r"\[[^\]]{0,40}\]", " ", _STEP.sub(" ", gap.lower()))
    return (
        " ".join(re.sub(r"[^a-z_ ()|0-9]+", " ", words).split())[-60:].strip() if re.search("[a-z]{3}", words) else ""
    )
