"""Lists of the parts of a step or an epoch, one to a line, of no rank in particular.

`waiting for data loader: 548.7s`, `forward  0.212 s  8.2 %`: timers of scripts; `Total time user thread is blocked by
Ray Data iter_batches: 548.71s`: ray/data/_internal/stats.py, IterStats. A list counts as one report of its steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hangdoc.evidence.figures import Figure
from hangdoc.postmortem.readers._logs.figure_kinds import SPENT, meaning

MAX_FIGURES = 4_096
MAX_ROWS = 64  # of one list
UNSTATED = 0  # number of steps of which a list shows means or sums

_ROW = re.compile(
    r"\W{0,12}(?P<name>[A-Za-z][\w ()./>+-]{1,70}?)(?: ?[:=|]\s{0,40}|[\s.]{2,60}|\s{1,40}(?=\d))"
    r"(?P<value>\d{1,12}(?:\.\d{1,9})?) ?(?P<unit>us|ms|msec|s|sec|secs|seconds)?"
    r"(?:[\s(|/,]{1,20}\d{1,3}(?:\.\d{1,4})? ?%\)?)?\W{0,8}"
)
_TOTAL = re.compile(r"^(?:total|sum|overall)[ _:-]{0,2}", re.IGNORECASE)


@dataclass(slots=True)
class Breakdowns:
    """Takes the lines of a text in order."""

    found: list[Figure] = field(default_factory=list)
    _rows: list[tuple[str, str, str | None]] = field(default_factory=list)  # name, value, unit
    _line: int = 0  # of the first row

    def feed(self, text: str, owned: bool, number: int) -> None:
        """`owned`: the line belongs to one rank, whose figures are compared with those of its peers."""
        row = None if owned else _ROW.fullmatch(text)
        if row is None or len(self._rows) >= MAX_ROWS:
            self.end()
        if row:
            self._line = self._line if self._rows else number
            self._rows.append((row["name"], row["value"], row["unit"]))

    def end(self) -> None:
        """Called at the end of the text."""
        figures = [one for row in self._rows if (one := self._figure(*row))] if len(self._rows) > 1 else []
        kinds = {one.kind for one in figures}
        named = [one.name for one in figures]
        if "input" in kinds and kinds & SPENT and len(set(named)) == len(named) and len(self.found) < MAX_FIGURES:
            self.found += figures
        self._rows = []

    def _figure(self, name: str, value: str, unit: str | None) -> Figure | None:
        known = meaning(_TOTAL.sub("", name), unit, "." in value)
        if known is None and unit and _TOTAL.match(name):
            known = meaning("step", unit)
        if known is None or known.factor is None or not (unit or "." in value):
            return None
        seconds = f"{float(value) * known.factor:.9g}"
        return Figure(known.kind, name.lower(), "", "", seconds, False, True, None, self._line, UNSTATED)
