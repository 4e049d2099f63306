"""How many parameters or gradients are not equal on the ranks, where a person or a script has counted them.

`412 of 430 params differ between rank 0 and rank 1`, `grads equal across ranks: False`, and tables with such a column.
Gradients of each rank differ until they are averaged: they count only in a text that speaks of them afterwards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hangdoc.evidence.figures import Figure

UNEQUAL = "unequal"  # kind; the value is what the text says: "128 / 128"
MAX_FIGURES = 64
MAX_LINE = 600  # characters
NEAR = 8  # lines above a table in which the ranks are named

_WHAT = r"(?P<what>param(?:eter)?s?|weights?|grad(?:ient)?s?|buffers?|replicas|state ?dicts?)"
_APART = (
    r"(?:not (?:equal|identical|the same|in sync)|unequal|differ(?:s|ent|ing)?|mismatch(?:es|ed|ing)?|out of sync"
    r"|diverged?|do(?:es)?(?: not|n't) match)"
)
_RANKS = re.compile(r"\b(?:ranks?|gpus|processes|replicas|workers|devices)\b", re.IGNORECASE)
_COUNTED = re.compile(
    rf"\b(?P<count>\d{{1,6}}) ?(?:of|/|out of) ?(?:the )?(?P<all>\d{{1,6}}) {_WHAT}(?: [a-z]{{1,12}}){{0,3}} {_APART}\b"
    rf"|\b{_WHAT.replace('what', 'noun')}(?: [a-z]{{1,12}}){{0,3}} {_APART}(?: [a-z]{{1,12}}){{0,4}}\s?[:=]\s?"
    r"(?P<found>\d{1,6}) ?(?:of|/|out of) ?(?P<total>\d{1,6})\b",
    re.IGNORECASE,
)
_SAYS_NO = re.compile(
    rf"\b{_WHAT}(?: [a-z]{{1,12}}){{0,3}} (?:equal|identical|(?:the )?same|in sync|match(?:es|ing)?)"
    r"(?: [a-z]{1,12}){0,4}\s?[:=?]{1,2}\s?(?:false|no)\b",
    re.IGNORECASE,
)
_BETWEEN = re.compile(
    rf"\b{_WHAT}\b[^\n]{{0,120}}?\b(?:diverge(?:d|nce|s)?|mismatch(?:es|ed)?|differ(?:s|ent|ence)?)\b"
    r"(?: [a-z]{1,12}){0,2} (?:between|across|on) ranks? \d{1,6}\b",
    re.IGNORECASE,
)
_HEAD = re.compile(
    rf"\s{{0,4}}(?:#|n |num |number of )?{_WHAT}(?: [a-z]{{1,12}}){{0,2}} {_APART}[^|]{{0,30}}", re.IGNORECASE
)
_CELL = re.compile(r"(?P<count>\d{1,6}) ?(?:/|of|out of) ?(?P<all>\d{1,6})")
_AVERAGED = re.compile(
    r"\bafter (?:(?:the|each|every|one|its|first|1st|an?) ){0,3}"
    r"(?:opt(?:imi[sz]er)?[. ]?step|step|all-?reduce|sync\w*|reduction|averaging|update)\b"
    r"|\b(?:averaged|synchroni[sz]ed|reduced) grad",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Unequals:
    """Takes the lines of a text in order."""

    _found: list[Figure] = field(default_factory=list)
    _ranks_at: int = -NEAR  # the line that named ranks last
    _averaged: bool = False
    _column: int = -1  # of the table
    _name: str = ""

    def feed(self, text: str, number: int) -> None:
        if len(text) > MAX_LINE or len(self._found) >= MAX_FIGURES:
            return
        self._averaged = self._averaged or _AVERAGED.search(text) is not None
        if _RANKS.search(text):
            self._ranks_at = number
        if counted := _COUNTED.search(text):
            what, count, total = (counted["what"] or counted["noun"], *_both(counted))
            if count and self._ranks_at == number:
                self._add(what, f"{count} of {total}", number)
        elif (said := _SAYS_NO.search(text) or _BETWEEN.search(text)) and self._ranks_at == number:
            self._add(said["what"], "not equal", number)
        elif "|" in text:
            self._table(text, number)
        else:
            self._column = -1

    def figures(self) -> list[Figure]:
        """Those that say that replicas are apart."""
        return [one for one in self._found if self._averaged or not one.name.lower().startswith("grad")]

    def _table(self, text: str, number: int) -> None:
        cells = [cell.strip() for cell in text.strip().strip("|").split("|")]
        if number - self._ranks_at <= NEAR:
            for at, cell in enumerate(cells):
                if head := _HEAD.fullmatch(cell):
                    self._column, self._name = at, head["what"]
                    return
        if 0 <= self._column < len(cells) and (found := _CELL.fullmatch(cells[self._column])) and int(found["count"]):
            self._add(self._name, f"{found['count']} of {found['all']}", number)

    def _add(self, what: str, value: str, number: int) -> None:
        self._found.append(Figure(UNEQUAL, what.lower(), "", "", value, False, False, None, number))


def _both(found: re.Match[str]) -> tuple[int, int]:
    return int(found["count"] or found["found"]), int(found["all"] or found["total"])
