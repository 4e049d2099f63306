"""Layout for the terminal renderers: labelled lines that wrap well."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

Part = str | Text
Row = tuple[str, Sequence[Part]]  # label and columns
GAP = "  "
NARROW = 60  # columns; below this, details go on a line of their own


class Page:
    """Lines no wider than the console, without trailing spaces; wrapped text is indented to where it began."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.lines: list[Text] = []

    def print(self) -> None:
        for line in self.lines:
            self.console.print(line, soft_wrap=True)  # already wrapped

    def blank(self) -> None:
        self.lines.append(Text())

    def paragraph(self, body: Part, indent: int = 0, style: str = "", hang: int = 0) -> None:
        """Wrapped text; lines after the first are indented by `hang` more."""
        self._hang(Text(" " * indent), _text(body, style), hang)

    def beside(self, head: Text, body: Part) -> None:
        """Wrapped text to the right of a head."""
        self._hang(head, _text(body))

    def row(self, label: str, body: Part, width: int, style: str = "dim", hang: int = 0) -> None:
        """A label of `width` columns and its text; if the text is too long, it breaks between its columns."""
        room = self.console.width - len(GAP) - width
        text = _text(body)
        bodies = [text] if text.cell_len <= room else self._pack(_columns(text), room, GAP)
        for i, line in enumerate(bodies):
            self._hang(self._label("" if i else label, width, style), line, hang)

    def parts(self, parts: Sequence[Part], indent: int = 0, gap: str = GAP) -> None:
        """Parts side by side; a part that does not fit moves to the next line whole."""
        for line in self._pack([_text(p) for p in parts if len(p)], self.console.width - indent, gap):
            self._hang(Text(" " * indent), line)

    def table(self, rows: Sequence[Row], width: int, style: str = "dim") -> None:
        """Labelled rows; as many leading columns as fit are aligned, the rest is packed."""
        cells = [[_text(part) for part in parts] for _, parts in rows]
        widths = [max(cell.cell_len for cell in column) for column in zip_longest(*cells, fillvalue=Text())]
        room = self.console.width - len(GAP) - width
        aligned = next((n for n in range(len(widths), 0, -1) if _fits(widths, n, room)), 0)
        for (label, _), line in zip(rows, cells, strict=True):
            head = _padded(line, widths[:aligned])
            rest = self._pack([cell for cell in line[aligned:] if len(cell)], room - head.cell_len, GAP) or [Text()]
            for i, body in enumerate(rest):
                start = head if i == 0 else Text(" " * head.cell_len)
                body = Text.assemble(start, body)
                body.rstrip()
                self._hang(self._label("" if i else label, width, style), body)

    def _label(self, label: str, width: int, style: str) -> Text:
        return Text(GAP).append(label.ljust(width), style)

    def _pack(self, parts: Sequence[Text], room: int, gap: str) -> list[Text]:
        lines: list[Text] = []
        for part in parts:
            if lines and lines[-1].cell_len + len(gap) + part.cell_len <= room:
                lines[-1].append(gap).append_text(part)
            else:
                lines.append(part.copy())
        return lines

    def _hang(self, head: Text, body: Text, hang: int = 0) -> None:
        room = max(self.console.width - head.cell_len - hang, 10)
        first = True
        for line in body.wrap(self.console, room, overflow="fold"):
            line.rstrip()
            self.lines.append(Text.assemble(head if first else " " * (head.cell_len + hang), line))
            first = False


def _columns(text: Text) -> list[Text]:
    """The columns of a text: parts separated by two or more spaces."""
    cuts = [end for gap in re.finditer(r" {2,}", text.plain) for end in gap.span()]
    parts = list(text.divide(cuts))
    return [part for part in parts if part.plain.strip()]


def _text(part: Part, style: str = "") -> Text:
    return part if isinstance(part, Text) else Text(part, style)


def _fits(widths: Sequence[int], aligned: int, room: int) -> bool:
    """True if the first `aligned` columns, padded, leave room for every other cell."""
    head = sum(width + len(GAP) for width in widths[:aligned] if width)
    rest = widths[aligned:]
    return head + max(rest) <= room if rest else head - len(GAP) <= room


def _padded(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    """The first cells side by side, padded to `widths`; empty columns are skipped."""
    line = Text()
    for cell, width in zip_longest(cells[: len(widths)], widths, fillvalue=Text()):
        if isinstance(cell, Text) and isinstance(width, int) and width:
            line.append_text(cell).append(" " * (width - cell.cell_len + len(GAP)))
    return line
