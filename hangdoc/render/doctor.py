"""The checks of `hangdoc doctor`, one per line, each with its fix."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from hangdoc.render.page import NARROW, Page
from hangdoc.render.sanitize import clean

if TYPE_CHECKING:
    from rich.console import Console

    from hangdoc.doctor.checks import Check


MARKS = {True: ("ok", "green"), False: ("no", "bold red"), None: ("-", "dim")}


def show(checks: Iterable[Check], console: Console) -> None:
    """Print the checks."""
    found = list(checks)
    width = max((len(clean(check.name)) for check in found), default=0)
    page = Page(console)
    for check in found:
        mark, style = MARKS[check.ok]
        name = Text.assemble((mark.ljust(4), style), clean(check.name).ljust(width + 2))
        if console.width >= NARROW:
            page.beside(name, clean(check.detail))
        else:
            page.paragraph(name)
            page.paragraph(clean(check.detail), 6)
        if check.fix:
            page.paragraph(f"fix: {clean(check.fix)}", 6, "yellow", hang=5)
    page.print()
