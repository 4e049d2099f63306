"""Parts of a text under a heading that names one rank: `=== rank 3 ===`, `rank3:`, `"rank_3": {`, `Timings of rank 3`.

The lines below belong to that rank as long as they show values: `forward  0.671 s`, `"forward_ms": 588.0`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangdoc.postmortem.readers._host_names import NAME
from hangdoc.postmortem.readers._logs.figure_values import RANK, Owner

MAX_ROW = 200  # characters of a line with values

_WORDS = r"(?:times?|timings?|timers?|stats?|statistics|summary|report|breakdown|profile|metrics)"
_HEAD = re.compile(
    rf"\W{{0,12}}(?:{_WORDS} (?:for|of|on) )?(?:global[ _])?rank[ _:#=-]{{0,3}}(?P<rank>\d{{1,6}})[\"']?"
    rf"(?:,? ?\(?(?:on |host |@ ?)?(?=\S{{0,60}}[\d.-]){NAME}\)?)?(?: {_WORDS})?[^\w.]{{0,12}}",
    re.IGNORECASE,
)
_ROW = re.compile(r"\W{0,12}[A-Za-z][\w ()/.\[\]%-]{0,60}?[\"']?[\s:=|]{1,40}-?\d.*")
_DECORATION = re.compile(r"\W*")


@dataclass(slots=True)
class RankSections:
    """Takes the lines of a text in order."""

    _owner: Owner | None = None

    def feed(self, text: str) -> Owner | None:
        """The rank to which the values in this line belong. None: no heading above names one."""
        head = _HEAD.fullmatch(text) if len(text) <= MAX_ROW else None
        if head:
            self._owner = Owner(RANK, str(int(head["rank"])))
            return None
        if _DECORATION.fullmatch(text):
            return None
        if len(text) > MAX_ROW or not _ROW.fullmatch(text):
            self._owner = None
        return self._owner
