"""`hangdoc runbook`: list the runbooks, or show one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hangdoc.commands.options import Playbooks
from hangdoc.commands.output import stdout_console, write

if TYPE_CHECKING:
    from hangdoc.rules.runbook import Entry

WIDEST = 100  # columns; longer lines of prose are hard to read


def known(incomplete: str) -> list[str]:
    """Playbook ids that begin with `incomplete`, for shell completion."""
    from hangdoc.rules.runbook import folders

    return [id for id in folders() if id.startswith(incomplete)]


def command(
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Playbook to show. Default: list all.", autocompletion=known)
    ] = None,
    playbooks: Playbooks = None,
) -> int:
    """Show how to confirm, fix and prevent a failure.

    \b
    hangdoc runbook                  list all failures that hangdoc knows
    hangdoc runbook uneven-batches   show the runbook of one
    """
    from hangdoc.render.sanitize import clean
    from hangdoc.rules import runbook

    if id is None:
        _list(runbook.entries(playbooks or ()))
        return 0
    text = "\n".join(clean(line) for line in runbook.text(id, playbooks or ()).rstrip().split("\n"))
    if sys.stdout.isatty():
        from rich.markdown import Markdown
        from rich.theme import Theme

        console = stdout_console()
        console.push_theme(
            Theme({"markdown.code": "cyan"})
        )  # rich's default has a black background, which is ugly on a light terminal
        console.print(Markdown(text, hyperlinks=False), width=min(console.width, WIDEST))
    else:
        write(text)
    return 0


def _list(entries: list[Entry]) -> None:
    from hangdoc.render.page import Page
    from hangdoc.render.sanitize import clean

    page = Page(stdout_console())
    width = max((len(entry.id) for entry in entries), default=0) + 2
    page.table([(clean(entry.id), (clean(entry.cls), clean(entry.title))) for entry in entries], width, "bold")
    page.blank()
    page.paragraph("hangdoc runbook ID shows one; hangdoc demo ID runs a real job that fails this way.", 2, "dim")
    page.print()
