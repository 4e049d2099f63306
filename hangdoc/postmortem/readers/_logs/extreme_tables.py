"""Tables of extremes: a row for each part of a step, and columns such as `min`, `max`, `mean` and `slowest rank`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hangdoc.postmortem.readers._logs.figure_kinds import meaning

MAX_COLUMNS = 16
NUMBER = r"\d{1,12}(?:\.\d{1,9})?"
TIME_UNIT = r"(?:\u00b5s|us|ms|msec|secs?|seconds?|s)\b"

_UNIT = re.compile(r"(?:[(\[]|[_ ])(us|ms|msec|secs?|seconds?|s)(?:[)\]]|\b)", re.IGNORECASE)
_IN_UNIT = r"(?:[ _]?[(\[]?(?:us|ms|s|sec)[)\]]?)?"
_ROLES = {
    "least": re.compile(rf"(?:min(?:imum)?|fastest|least|best){_IN_UNIT}", re.IGNORECASE),
    "middle": re.compile(rf"(?:mean|avg|average|median|p50){_IN_UNIT}", re.IGNORECASE),
    "most": re.compile(rf"(?:max(?:imum)?|slowest|most|worst){_IN_UNIT}", re.IGNORECASE),
    "least rank": re.compile(
        r"(?:min|fastest|best|arg ?min)[ _-]?rank|rank[ _]?(?:of[ _])?(?:min|fastest)", re.IGNORECASE
    ),
    "most rank": re.compile(
        r"(?:max|slowest|worst|arg ?max|straggler)[ _-]?rank|rank[ _]?(?:of[ _])?(?:max|slowest|worst)"
        r"|arg ?max|straggler|(?:slow )?rank",
        re.IGNORECASE,
    ),
}
_RULE = re.compile(r"[\s|+:=\u2500-\u257f-]{3,}")


@dataclass(frozen=True, slots=True)
class End:
    """One end of a report, or its middle."""

    value: float  # seconds
    rank: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What a line says about one name."""

    kind: str
    name: str
    line: int
    least: End | None
    most: End | None
    middle: float | None  # mean or median, seconds


@dataclass(frozen=True, slots=True)
class _Head:
    """The head of a table."""

    places: dict[str, int]  # `least`, `middle`, `most`, and `least rank`, `most rank`
    width: int
    unit: str | None


@dataclass(slots=True)
class ExtremeTables:
    """Takes the lines of a text in order."""

    _head: _Head | None = None
    _unit: str | None = None  # in the line before

    def feed(self, text: str, number: int) -> list[Report]:
        """The report in a row of a table; empty: there is none."""
        row = _row(self._head, text, number) if self._head else None
        if row is None:
            self._head = _head(text, self._unit)
        unit = _UNIT.search(text)
        self._unit = unit[1].lower() if unit else None
        return row or []


def _head(text: str, unit: str | None) -> _Head | None:
    """The head of a table. None: the line is none."""
    cells = _split(text)
    places: dict[str, int] = {}
    for at, cell in enumerate(cells):
        for role, pattern in _ROLES.items():
            if pattern.fullmatch(cell):
                places.setdefault(role, at)
    if len(cells) > MAX_COLUMNS or 0 in places.values() or not {"most rank", "least rank"} & places.keys():
        return None
    inner = _UNIT.search(text)
    return _Head(places, len(cells), inner[1].lower() if inner else unit)


def _row(head: _Head, text: str, number: int) -> list[Report] | None:
    """The report in a row. None: the table is over."""
    if _RULE.fullmatch(text):
        return []
    cells = _split(text)
    if len(cells) != head.width:
        return None
    values: dict[str, float] = {}
    for role, at in head.places.items():
        found = re.fullmatch(rf"(?:rank[ _]?)?({NUMBER})(?: ?(?:{TIME_UNIT}))?", cells[at], re.IGNORECASE)
        if not found:
            return None
        values[role] = float(found[1])
    units = {one[1].lower() for cell in cells[1:] if (one := re.fullmatch(rf"[\d.]{{1,20}} ?({TIME_UNIT})", cell))}
    unit = units.pop() if len(units) == 1 else head.unit
    known = meaning(cells[0], unit, True) if not units else None
    if known is None or known.factor is None:
        return []
    least, most = (
        End(values[role] * known.factor, str(int(values[f"{role} rank"])) if f"{role} rank" in values else None)
        if role in values
        else None
        for role in ("least", "most")
    )
    middle = values["middle"] * known.factor if "middle" in values else None
    return [Report(known.kind, cells[0].lower(), number, least, most, middle)]


def _split(text: str) -> list[str]:
    inner = text.strip(" \t|#")
    parts = inner.split("|") if "|" in inner else inner.split("\t") if "\t" in inner else re.split(r"\s{2,}|,", inner)
    return [part.strip() for part in parts]
