"""`hangdoc runbook`: list the runbooks, or show one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hangdoc.commands.options import Playbooks
from hangdoc.commands.output import say, stdout_console, write

if TYPE_CHECKING:
    from hangdoc.diagnose import Judge
    from hangdoc.postmortem.report import Report
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
    why: Annotated[
        Path | None,
        typer.Option(
            "--why",
            metavar="RECORDING",
            exists=True,
            help="Print why the playbook applies to what was recorded, or not: every condition with its value.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="With --why: print JSON, one job per line.")] = False,
    playbooks: Playbooks = None,
) -> int:
    """Show how to confirm, fix and prevent a failure.

    \b
    hangdoc runbook                              list all failures that hangdoc knows
    hangdoc runbook uneven-batches               show the runbook of one
    hangdoc runbook straggler --why incidents/   why this playbook applies to an incident, or does not
    """
    from hangdoc.render.sanitize import clean
    from hangdoc.rules import runbook

    if why is not None:
        return _explain(id, why, json, playbooks or ())
    if json:
        raise typer.BadParameter("give it together with --why RECORDING", param_hint="--json")
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


def print_explanations(judge: Judge, found: Report, id: str, json: bool) -> None:
    """Print why a playbook applies to each job or does not; raises HangdocError if it could not be loaded."""
    from hangdoc.errors import HangdocError
    from hangdoc.rules.explanation import explain

    for job in found.jobs:
        try:
            explanation = explain(judge.library, job.facts, job.verdict, id)
        except KeyError:
            raise HangdocError(f"the playbook {id!r} has problems and was skipped: see above") from None
        if json:
            from hangdoc.render.json import explanation_line

            write(explanation_line(explanation, job.verdict.job.id))
        else:
            from hangdoc.render.explanation import tree

            stdout_console().print(tree(explanation))


def _explain(id: str | None, why: Path, json: bool, playbooks: Sequence[Path]) -> int:
    """Print why the playbook applies to each job in the recording, or not."""
    from hangdoc.diagnose import load_judge
    from hangdoc.postmortem.report import report
    from hangdoc.rules.runbook import require

    if id is None:
        raise typer.BadParameter("name the playbook: hangdoc runbook ID --why RECORDING", param_hint="--why")
    require(id, playbooks)
    judge = load_judge(tuple(playbooks), say)
    print_explanations(judge, report((why,), warn=say, judge=judge), id, json)
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
