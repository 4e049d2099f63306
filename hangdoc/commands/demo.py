"""`hangdoc demo`: a real broken job, diagnosed live."""

from __future__ import annotations

from typing import Annotated

import typer

from hangdoc.commands.output import stdout_console, write
from hangdoc.commands.runbook import known


def command(
    id: Annotated[
        str, typer.Argument(metavar="[ID]", help="Failure to show; see --list.", autocompletion=known)
    ] = "uneven-batches",
    listed: Annotated[bool, typer.Option("--list", help="List the failures and exit.")] = False,
) -> int:
    """Break a real training job and diagnose it.

    The demo needs torch (pip install 'hangdoc[demo]') and ends every process that it starts.

    \b
    hangdoc demo                   three ranks; one runs out of batches
    hangdoc demo stopped-process   another failure
    hangdoc demo healthy           a healthy job, watched from start to end
    hangdoc demo --list            all failures

    Exit codes: 0 expected diagnosis (for the healthy job: none), 1 another diagnosis, 3 the job did not start,
    64 wrong usage.
    """
    from hangdoc.demo import healthy, reproducer
    from hangdoc.rules import runbook

    if listed:
        for one in (*reproducer.ids(), healthy.ID):
            write(one)
        return 0
    if id == healthy.ID:
        return healthy.run(write)
    runbook.require(id)
    return reproducer.run(id, stdout_console())
