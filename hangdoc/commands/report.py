"""`hangdoc report`: post-mortem of whatever is left of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hangdoc.commands.options import Playbooks
from hangdoc.commands.output import say, write
from hangdoc.commands.watch import print_verdicts, worst


def command(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE...",
            exists=True,
            help="Recordings, Flight Recorder dumps, logs, pasted stacks: files, or folders of them, in any mix.",
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Write the verdict as JSON, one object a line.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Write a ticket in Markdown.")] = False,
    playbooks: Playbooks = None,
) -> int:
    """Say afterwards why a job was stuck or failed, from whatever is left of it.

    \b
    hangdoc report incidents              recordings of `hangdoc watch --record incidents`
    hangdoc report logs/ /tmp/fr_dumps    logs and Flight Recorder dumps together
    hangdoc report stacks.txt --markdown  pasted `py-spy dump` output, as a ticket

    Exit codes: 0 healthy, 1 slow or suspect, 2 stalled or failed, 3 cannot tell, 64 wrong usage, 130 interrupted.
    """
    if json and markdown:
        raise typer.BadParameter("give one of --json and --markdown, not both", param_hint="--markdown")
    from hangdoc.report import Unrecognised, report

    try:
        told = report(tuple(sources), tuple(playbooks or ()), say)
    except Unrecognised as error:
        say(str(error))
        return 3
    if markdown:
        from hangdoc.render.markdown import document

        write(document(told.verdicts).rstrip("\n"))
    else:
        print_verdicts(told.verdicts, json)
    return worst(told.verdicts)
