"""`hangdoc report`: post-mortem of what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hangdoc.commands.options import Playbooks
from hangdoc.commands.output import say, write
from hangdoc.commands.watch import print_verdicts, worst


def command(
    sources: Annotated[
        list[Path], typer.Argument(metavar="SOURCE...", exists=True, help="Recordings of `hangdoc watch --record`.")
    ],
    json: Annotated[bool, typer.Option("--json", help="Write the verdict as JSON, one object a line.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Write a ticket in Markdown.")] = False,
    playbooks: Playbooks = None,
) -> int:
    """Say the same of a recording, afterwards.

    \b
    hangdoc watch --record incidents      keeps what it sees
    hangdoc report incidents              the verdict again
    hangdoc report incidents --markdown   as a ticket

    Exit codes: 0 healthy, 1 slow or suspect, 2 stalled or failed, 3 cannot tell, 64 wrong usage, 130 interrupted.
    """
    if json and markdown:
        raise typer.BadParameter("give one of --json and --markdown, not both", param_hint="--markdown")
    from hangdoc.report import replay

    verdicts = replay(tuple(sources), tuple(playbooks or ()), say)
    if markdown:
        from hangdoc.render.markdown import document

        write(document(verdicts).rstrip("\n"))
    else:
        print_verdicts(verdicts, json)
    return worst(verdicts)
