"""Tables with a row, or a column, for each rank, GPU or host, in any layout that people and libraries print.

Layouts: blanks, tabs, commas, bars, boxes of rich and tabulate, and `print(df)` of pandas, with its index in front of
the rows, and the name of an index in a line of its own (pandas/io/formats/string.py). A table belongs to ranks if a
column names them and another one means something (figure_kinds.yaml); its other columns may have any name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hangdoc.postmortem.readers._host_names import is_host_name
from hangdoc.postmortem.readers._logs.figure_kinds import meaning, names_a_figure
from hangdoc.postmortem.readers._logs.figure_values import GPU, HOST, NUMBERED, RANK, SHORT, Owner, Value, cell_value

MAX_CELLS = 64
MAX_SPAN = 1_024  # ranks of one row
MAX_OTHER_COLUMNS = 3  # mean, max and the like behind those of ranks

_HEAD = re.compile(
    r"(?P<rank>(?:global[ _]?|world[ _]?)?ranks?(?:[ _]?(?:id|index))?|dp[ _]?rank|rk"
    r"|(?:proc(?:ess)?|trainer)(?:[ _]?id)?)"
    r"|(?P<gpu>gpu(?:[ _]?(?:id|idx|index))?|device|card)"
    r"|(?P<host>host(?:[ _]?name)?|node(?:[ _]?name)?|pod|machine|server|worker)",
    re.IGNORECASE,
)
# Columns that say that the rows are no ranks of one job, or that ranks differ by design.
_FOREIGN = re.compile(
    r"(?:model|method|config(?:uration)?|backbone|arch|dataset|task|lora|alpha|params?|gpus|#gpus|layer|kernel|op"
    r"|stage|pp|tp|ep|cp|(?:pp|tp|ep|cp|pipeline|tensor|expert)[ _]?(?:rank|stage|size)|world[ _]?size|world|size"
    r"|speed-?up|efficiency|acc(?:uracy)?|f1|bleu|ppl)",
    re.IGNORECASE,
)
_GPUS = re.compile(r"#?gpus", re.IGNORECASE)
_STEP = re.compile(r"(?:global[ _]?)?(?:step|iter(?:ation)?|itr|it|upd(?:ate)?|epoch|ep)s?", re.IGNORECASE)
_STATISTIC = re.compile(r"(?:min|max|avg|mean|median|std|total|sum|all|spread|skew|ratio|max/min)", re.IGNORECASE)
_TOUCHING = re.compile(  # heads
    r"^((?:global[ _]?)?(?:step|iter(?:ation)?)|rank) (rank|host(?:name)?|node|pod|gpu)(?=\s{2})", re.IGNORECASE
)
# The unit of all times of a table, in the line above it: `mean over 200 steps, ms:`, `from our own timers (s)`
_UNIT_ABOVE = re.compile(r"(?:, ?(?:in )?|\bin |[(\[])(us|ms|s|sec|seconds)(?:[)\],;:.]| ?$|, )", re.IGNORECASE)
_RULE = re.compile(r"[\s|+:=\u2500-\u257f-]{3,}")
_BARS = str.maketrans(dict.fromkeys("\u2502\u2503\u2506\u2551", "|"))
_WORD = re.compile(r"(?=.{0,60}[A-Za-z])[\w()\[\]%/.#*-]{1,60}(?<![.?!])")
_NUMBER_CELL = re.compile(r"[-\d.,=%]+")
_GIVEN = re.compile(r"^[-\d.,=%]+$|\w\s?=\s?[\w.-]{0,40}\d")  # a number, or a name with its value
_OWNER_CELL = re.compile(
    r"(?P<rank>rank|proc(?:ess)?|trainer)?(?P<gpu>gpu|cuda)?(?P<short>[rw])?[ _:#]{0,2}(?P<number>\d{1,6})",
    re.IGNORECASE,
)
_SPAN_CELL = re.compile(r"(?:ranks? )?(\d{1,6}) ?(?:-|\u2013|\.\.) {0,4}(\d{1,6})")
_HOST_CELL = re.compile(r"[A-Za-z][\w.-]{0,100}")
# What a person calls the two figures of a cell: the second one is of now.
_THEN_AND_NOW = re.compile(r"\b(?:before|was|then|old|yesterday) ?/ ?(?:after|now|new|today)\b", re.IGNORECASE)
_PAIR = re.compile(r"(?<![\w./])\d[\d.,]{0,20} ?/ {0,8}(?=\d[\d.,]{0,20}(?![\w./]))")
_LAYOUTS = ("|", "\t", ",", ";", "  ", " ")


@dataclass(slots=True)
class RankTables:
    """Takes the lines of a text in order, and is in a table or not."""

    heading: str = ""  # of the columns of ranks: what their values are
    _layout: str = ""
    _columns: list[str] = field(default_factory=list)
    _place: int = 0  # of the column with the owner
    _of: str = ""
    _step: int | None = None  # its column
    _unit: str | None = None  # of the times in the table, by the line above it
    _owners: list[Owner | None] = field(default_factory=list)  # of the columns, in a table with one for each owner
    _last: list[str] = field(default_factory=list)  # cells of the line before: a head without the name of its index
    _last_layout: str = ""
    _compares: bool = False  # the text announces two figures in a cell: of then, and of now

    def feed(self, text: str, raw: str, heading: str) -> list[Value] | None:
        """The values in a line of a table; None: it is none. `raw`: with its prefixes; `heading`: the text above."""
        text, raw = text.translate(_BARS), raw.translate(_BARS)
        if _RULE.fullmatch(text):
            return []
        both = (text, raw) if raw != text else (text,)  # the first cell may look like a prefix: `0 | 0.41`
        if self._columns or self._owners:
            for line in both:
                if (row := self._row(line)) is not None:
                    return row
            self.close()
        compares = bool(_THEN_AND_NOW.search(text))
        opened = any(self._opens(line, heading) for line in both)
        if not opened:
            units = {unit.lower() for unit in _UNIT_ABOVE.findall(text)}
            self._unit = units.pop() if len(units) == 1 else None
        self._compares = compares or (opened and self._compares)  # said above the table, or in its head
        return [] if opened else None

    def close(self) -> None:
        """Called at an empty line, too."""
        if self._columns or self._owners:
            self._compares = False  # the announcement was of this table
        self._columns, self._owners = [], []
        self._last = []

    def _opens(self, text: str, heading: str) -> bool:
        """True for the head of a table."""
        if self._last and len(cells := _cells(text, " ")) == 1 and _HEAD.fullmatch(cells[0].strip()):
            return self._by_rows([cells[0], *self._last], self._last_layout)
        self._last = []
        for layout in _LAYOUTS:
            cells = _cells(text, layout)
            if len(cells) > 2 and (owners := _numbered_ranks(cells)):
                self._owners, self._layout, self.heading = owners, layout, heading
                return True
            if len(cells) < 2 or "per" in cells or any(map(_GIVEN.search, cells)):
                continue  # figures are in the rows, and a heading says of what they are
            if layout == " " and not all(map(_WORD.fullmatch, cells)):
                continue  # a sentence, which may be the heading of a list
            if self._by_rows(cells, layout) or self._by_columns(cells, layout, heading):
                return True
            if layout in ("  ", " ") and not self._last and text.startswith("  ") and all(map(names_a_figure, cells)):
                self._last, self._last_layout = cells, layout
        return False

    def _by_rows(self, cells: Sequence[str], layout: str) -> bool:
        heads = [_HEAD.fullmatch(cell) for cell in cells]
        foreign = [cell for cell in cells if _FOREIGN.fullmatch(cell)]
        if not any(heads) or (foreign and not (_is_of_hosts(heads) and all(map(_GPUS.fullmatch, foreign)))):
            return False
        if not any(names_a_figure(cell) for cell, head in zip(cells, heads, strict=True) if not head):
            return False
        places = {head.lastgroup or "": at for at, head in reversed(list(enumerate(heads))) if head}
        self._of = next(of for of in (RANK, HOST, GPU) if of in places)
        if self._of == HOST and GPU in places:
            return False  # GPUs of several hosts: a reader of their tables knows them
        self._place, self._layout = places[self._of], layout
        self._columns = [" ".join(cell.lower().split()) for cell in cells]
        self._step = None
        parts = [at for at, cell in enumerate(cells) if not heads[at] and names_a_figure(cell)]
        for at in (at for at, cell in enumerate(cells) if _STEP.fullmatch(cell)):
            if at > next((part for part in parts if part != at), at):
                self._columns[at] += " time"  # behind its parts it is their sum
            elif self._step is None:
                self._step = at
        return True

    def _by_columns(self, cells: Sequence[str], layout: str, heading: str) -> bool:
        owners = [_owner_of(cell) for cell in cells]
        named = [one for one in owners if one]
        if len(named) < 2:
            return False
        others = [cell for cell, owner in zip(cells, owners, strict=True) if not owner]
        if owners[0] is None:
            others = others[1:]
        counted = [one.name for one in named] == [str(at) for at in range(len(named))] and len(named) > 2
        if len(others) > MAX_OTHER_COLUMNS or not (counted or all(_STATISTIC.fullmatch(cell) for cell in others)):
            return False
        self._owners, self._layout = owners, layout
        told = owners[0] is None and names_a_figure(cells[0]) and not _STEP.fullmatch(cells[0])
        self.heading = cells[0] if told else heading
        return True

    def _row(self, text: str) -> list[Value] | None:
        """The values of a row. None: the line is no row of the table."""
        text = _PAIR.sub("", text) if self._compares else text
        cells = _cells(text, self._layout)
        columns = len(self._owners or self._columns)
        if self._layout in ("  ", " ") and len(cells) < columns:  # columns may touch, or a cell may be long
            cells = text.strip().rsplit(None, columns if self._owners and self._owners[0] else columns - 1)
        return self._labelled(cells) if self._owners else self._of_owner(cells)

    def _of_owner(self, cells: Sequence[str]) -> list[Value] | None:
        """A row with the figures of one owner."""
        if len(cells) == len(self._columns) + 1 and cells[0].isdecimal():
            cells = cells[1:]  # the index of pandas
        if len(cells) != len(self._columns):
            return None
        owners = self._owners_in(cells[self._place])
        if not owners:
            return [] if _STATISTIC.fullmatch(cells[self._place]) else None
        step = cells[self._step] if self._step is not None else ""
        at = int(step) if re.fullmatch(r"\d{1,9}", step) else None
        found = [
            cell_value(owners[0], name, cell, at)
            for place, (name, cell) in enumerate(zip(self._columns, cells, strict=True))
            if place != self._place
        ]
        return [replace(one, owners=owners, unit=one.unit or self._unit_of(one.name)) for one in found if one]

    def _unit_of(self, name: str) -> str | None:
        known = meaning(name)
        return self._unit if known is None or known.factor is not None else None

    def _owners_in(self, cell: str) -> tuple[Owner, ...]:
        """The owners of a row; `0-7`: a row for all of these ranks."""
        if self._of == RANK and (span := _SPAN_CELL.fullmatch(cell)):
            first, last = int(span[1]), int(span[2])
            return tuple(Owner(RANK, str(rank)) for rank in range(first, min(last + 1, first + MAX_SPAN)))
        owner = self._owner(cell)
        return (owner,) if owner else ()

    def _owner(self, cell: str) -> Owner | None:
        number = _OWNER_CELL.fullmatch(cell)
        if self._of == HOST:
            if number and (cell.isdecimal() or number["rank"] or (number["short"] or "").lower() == "w"):
                return Owner(RANK if number["rank"] else NUMBERED, str(int(number["number"])))
            return Owner(HOST, cell) if _HOST_CELL.fullmatch(cell) else None
        return Owner(self._of, str(int(number["number"]))) if number else None

    def _labelled(self, cells: Sequence[str]) -> list[Value] | None:
        """A row with a figure of each owner: its label says what it is, else the heading."""
        if len(cells) == len(self._owners) - 1 and self._owners[0] is None:
            return None
        if len(cells) == len(self._owners) and self._owners[0] is None:
            label, owners, values = cells[0], self._owners[1:], cells[1:]
        elif len(cells) == len(self._owners) + 1 and self._owners[0] is not None:
            label, owners, values = cells[0], self._owners, cells[1:]
        elif len(cells) == len(self._owners):
            label, owners, values = "", self._owners, cells
        else:
            return None
        if not any(values):  # a row that only says what happened between two others
            return []
        name = self.heading if not label or _NUMBER_CELL.fullmatch(label) else label
        step = int(label) if re.fullmatch(r"\d{1,9}", label) else None
        found = [
            cell_value(owner, name.lower(), value, step)
            for owner, value in zip(owners, values, strict=True)
            if owner is not None
        ]
        kept = [one for one in found if one]
        return kept if len(kept) > 1 else None


def _is_of_hosts(heads: Sequence[re.Match[str] | None]) -> bool:
    """True if the rows are hosts: how many GPUs each of them has is no parameter of a benchmark."""
    return {head.lastgroup for head in heads if head} == {HOST}


def _numbered_ranks(cells: Sequence[str]) -> list[Owner | None]:
    """The columns below `rank  0  1  2  3`, the head that pandas prints for a transposed table; empty: it is none."""
    head, numbers = _HEAD.fullmatch(cells[0]), cells[1:]
    if not head or not head["rank"] or len(numbers) < 2 or list(numbers) != [str(at) for at in range(len(numbers))]:
        return []
    return [None, *(Owner(RANK, number) for number in numbers)]


def _cells(text: str, layout: str) -> list[str]:
    """The cells of a line in one of the layouts."""
    inner = text.strip(" \t\r\n#")
    if layout == "|":
        cells = inner.strip("|").split("|") if "|" in inner else [inner]
    elif layout == "  ":
        cells = re.split(r"\s{2,}", _TOUCHING.sub(r"\1  \2", inner))
    elif layout == " ":
        cells = inner.split()
    else:
        cells = inner.split(layout)
    return [cell.strip().strip("\"'") for cell in cells[:MAX_CELLS]]


def _owner_of(cell: str) -> Owner | None:
    """The owner that the head of a column names."""
    found = _OWNER_CELL.fullmatch(cell)
    if found and not cell.isdecimal():
        of = RANK if found["rank"] else GPU if found["gpu"] else SHORT if found["short"] in ("r", "R") else ""
        return Owner(of, str(int(found["number"]))) if of else None
    return Owner(HOST, cell) if _HOST_CELL.fullmatch(cell) and is_host_name(cell) else None
