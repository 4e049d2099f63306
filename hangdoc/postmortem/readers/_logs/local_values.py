"""Losses and norms of gradients of several ranks in one place: a gathered list, a dictionary, or a table.

`local grad norm per rank: [0.81, nan, 0.80]`, `{0: 0.81, 6: nan}`, a table with a row for each rank, rows of numbers
behind a rank or a file of its own (`rank6  9140  nan  65536`). Only values that are no numbers are of interest, and the
numbers beside them. A table with a column for each rank needs a title: pandas prints NaN for what was not measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_VALUES = 4_096
MAX_CELLS = 80
MAX_TEXT = 8_000  # characters of a line
LEAST = 3  # ranks of a list
MAX_BELOW_TITLE = 3  # lines between what says what the values of a table are, and its head

_VALUE = r"[+-]?(?:nan|inf(?:inity)?|\d{1,9}(?:\.\d{1,17})?(?:e[+-]?\d{1,3})?)"
_NAME = re.compile(
    r"\b(?:loss(?:es)?|(?:grad(?:ient)?s?[ _.-]{0,2}|g[ _-]?)(?:l2[ _-]?)?norms?|gn)\b|(?<![a-z])gnorms?\b",
    re.IGNORECASE,
)
_OVER_RANKS = re.compile(r"\branks?\b|per[ _-]rank|gather|each process|all processes", re.IGNORECASE)
_BAD = re.compile(r"\b(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
_LIST = re.compile(rf"\[\s?({_VALUE}(?:\s?,\s?{_VALUE}){{2,4095}})\s?,?\s?\]", re.IGNORECASE)
_PAIR = re.compile(
    rf"(?<![\w.])[\"']?(?P<named>(?:global )?(?:rank|rk|r)[ _=:-]{{0,2}})?(?P<rank>\d{{1,6}})[\"']?"
    rf"\s?(?:[:=]|->|=>)?\s?[\"']?(?:tensor\()?(?P<value>{_VALUE})(?![\w.])",
    re.IGNORECASE,
)
_MAYBE_HEAD = re.compile(r"\brank|\brk\b", re.IGNORECASE)
_RANK_HEAD = re.compile(r"(?:global[ _]?)?(?:rank|rk)(?:[ _]?id)?|#rank", re.IGNORECASE)
_STEP_HEAD = re.compile(r"(?:global[ _]?)?(?:step|iter(?:ation)?|it)", re.IGNORECASE)
# The head of a table with a column for each rank, and the line above it that says what its values are.
_RANK_COLUMN = re.compile(r"(?:global[ _]?)?(?:rank|rk|r)[ _:#=-]{0,2}(\d{1,6})", re.IGNORECASE)
_TITLE = re.compile(
    r"(?<![A-Za-z])(?:loss(?:es)?|grad(?:ient)?s?[ _.-]{0,2}(?:l2[ _-]?)?norms?|g[ _-]?norms?)(?![A-Za-z])",
    re.IGNORECASE,
)
_RANK_CELL = re.compile(r"(?:rank|rk|r)?[ _=:-]?(\d{1,6})", re.IGNORECASE)
_RULE = re.compile(r"[\s|+:=\u2500-\u257f-]{3,}")
# `rank6 9140 NaN 65536`, `[rank2]: 5121,nan`, `loss_rank2.csv: 5120,0.088  5121,nan`: numbers alone, a step first.
_ROW = re.compile(
    r"\s{0,8}(?:[\w.-]{0,40}[_.-])?\[?(?:rank|rk|r)[ _=:-]?(?P<rank>\d{1,6})\]?"
    r"(?:[\w.-]{0,20}\.(?:csv|tsv|txt|jsonl|log|out))?[:,|\s]{1,8}(?=\d)(?P<cells>[\d.,;|e+\-\s]{1,400}(?:nan|inf)?.*)",
    re.IGNORECASE,
)
_BARS = str.maketrans(dict.fromkeys("\u2502\u2503\u2506\u2551", "|"))


@dataclass(frozen=True, slots=True)
class LocalValue:
    """A value of one rank."""

    name: str
    value: str
    rank: int
    step: int | None  # in a column of the table
    line: int  # of the list, or of the head of the table: its values are of one moment


def has_nonfinite(text: str) -> bool:
    """True if a nan or an infinity stands in the text."""
    return _BAD.search(text) is not None


@dataclass(slots=True)
class _RankColumns:
    """A table with a column for each rank. Takes the lines of a text in order."""

    title: str = ""  # what the values of the table are
    untitled: int = 0  # lines since the title
    ranks: dict[int, int] = field(default_factory=dict)  # column -> rank
    width: int = 0  # columns
    steps: int | None = None  # the column of steps
    first_nan: dict[int, LocalValue] = field(default_factory=dict)  # of a rank: perhaps no value was logged yet
    lasting: set[int] = field(default_factory=set)  # ranks with nan in two rows

    def feed(self, text: str, number: int) -> Iterator[LocalValue]:
        if _RULE.fullmatch(text):
            return
        if title := _TITLE.search(text):
            self.title, self.untitled = _plain(title[0]), 0
        elif text.strip():
            self.untitled += 1
        if not self.ranks and (not self.title or self.untitled > MAX_BELOW_TITLE):
            return
        cells = _cells(text)
        if not self.ranks or len(cells) != self.width:
            self._begin(cells)
            return
        step = int(cells[self.steps][:9]) if self.steps is not None and cells[self.steps].isdecimal() else None
        values = {rank: cells[at] for at, rank in self.ranks.items()}
        if all(re.fullmatch(_VALUE, value, re.IGNORECASE) for value in values.values()):
            for rank, value in values.items():
                yield from self._kept(LocalValue(self.title, value.lower(), rank, step, number))

    def _begin(self, heads: list[str]) -> None:
        """A line that may be the head of a table."""
        found = {at: int(head[1]) for at, cell in enumerate(heads) if (head := _RANK_COLUMN.fullmatch(cell))}
        several = len(found) >= LEAST and len(set(found.values())) == len(found)
        self.ranks, self.width = found if several else {}, len(heads)
        self.steps = next((at for at, cell in enumerate(heads) if _STEP_HEAD.fullmatch(cell)), None)
        self.first_nan, self.lasting = {}, set()

    def _kept(self, value: LocalValue) -> Iterator[LocalValue]:
        """The value, but the first nan of a table with steps only together with a second one."""
        before = self.first_nan.pop(value.rank, None)
        if value.value != "nan" or value.step is None or value.rank in self.lasting:
            yield value
        elif before is None:
            self.first_nan[value.rank] = value
        else:
            self.lasting.add(value.rank)
            yield from (before, value)


@dataclass(slots=True)
class LocalValues:
    """Takes the lines of a text in order."""

    _columns: list[str] = field(default_factory=list)  # of a table that has begun
    _line: int = 0  # of its head
    _rank_columns: _RankColumns = field(default_factory=_RankColumns)
    _kept: int = 0

    def feed(self, text: str, number: int) -> Iterator[LocalValue]:
        if len(text) > MAX_TEXT or self._kept >= MAX_VALUES:
            return
        rows = self._row(text.translate(_BARS), number) if self._columns or _MAYBE_HEAD.search(text) else ()
        found = list(rows) or list(_listed(text, number)) or list(_numbered(text, number))
        found = found or list(self._rank_columns.feed(text.translate(_BARS), number))
        self._kept += len(found)
        yield from found

    def _row(self, text: str, number: int) -> Iterator[LocalValue]:
        if _RULE.fullmatch(text):
            return
        cells = _cells(text)
        if not self._columns or len(cells) != len(self._columns):
            self._columns = cells if _is_head(cells) else []
            self._line = number
            return
        by_head = dict(zip(self._columns, cells, strict=True))
        rank = next((_RANK_CELL.fullmatch(cell) for head, cell in by_head.items() if _RANK_HEAD.fullmatch(head)), None)
        if rank is None:
            self._columns = []
            return
        steps = [cell for head, cell in by_head.items() if _STEP_HEAD.fullmatch(head) and cell.isdecimal()]
        step = int(steps[0][:9]) if steps else None
        for head, cell in by_head.items():
            if _NAME.search(head) and re.fullmatch(_VALUE, cell, re.IGNORECASE):
                yield LocalValue(_plain(head), cell.lower(), int(rank[1]), step, self._line)


def _cells(text: str) -> list[str]:
    inner = text.strip().strip("|")
    cells = inner.split("|") if "|" in inner else re.split(r"\s{2,}|\t|,", inner)
    if len(cells) < 2:
        cells = inner.split()
    return [cell.strip() for cell in cells[:MAX_CELLS]]


def _is_head(cells: list[str]) -> bool:
    return any(map(_RANK_HEAD.fullmatch, cells)) and any(map(_NAME.search, cells)) and len(set(cells)) == len(cells)


def _listed(text: str, number: int) -> Iterator[LocalValue]:
    """The values of a list or a dictionary over ranks, if one of them is no number."""
    if not _BAD.search(text) or not (name := _NAME.search(text)):
        return
    behind = text[name.end() :]
    listed = _LIST.search(behind)
    if listed and _OVER_RANKS.search(text[: name.end() + listed.start()]):
        for rank, value in enumerate(listed[1].split(",")):
            yield LocalValue(_plain(name[0]), value.strip().lower(), rank, None, number)
        return
    pairs = list(_PAIR.finditer(behind))
    named = all(pair["named"] for pair in pairs)
    ranks = [int(pair["rank"]) for pair in pairs]
    if len(pairs) < LEAST or len(set(ranks)) < len(ranks) or not (named or _OVER_RANKS.search(text)):
        return
    for rank, pair in zip(ranks, pairs, strict=True):
        yield LocalValue(_plain(name[0]), pair["value"].lower(), rank, None, number)


def _numbered(text: str, number: int) -> Iterator[LocalValue]:
    """The values of a row without a head: each column but the first, which is the step."""
    if (row := _ROW.fullmatch(text)) is None:
        return
    parts = re.split(r"\s{2,}", row["cells"].strip()) if "," in row["cells"] else [row["cells"].strip()]
    found = [re.split(r"[\s,;|]{1,4}", part)[:MAX_CELLS] for part in parts[:MAX_CELLS]]
    for step, *values in found:
        if not values or not step.isdecimal() or not all(re.fullmatch(_VALUE, one, re.IGNORECASE) for one in values):
            return
    for step, *values in found:
        for column, value in enumerate(values, 2):
            yield LocalValue(f"column {column}", value.lower(), int(row["rank"]), int(step[:9]), number)


def _plain(name: str) -> str:
    return re.sub(r"\W+", " ", name).strip().lower()
