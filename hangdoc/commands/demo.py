"""`hangdoc demo`: a real broken job, diagnosed live."""

from __future__ import annotations

from typing import Annotated

import typer

from hangdoc.commands.output import stdout_console, write
from hangdoc.commands.runbook import known


def command(
    id: Annotated[
        str, typer.Argument(metavar="[ID]", help="Which failure; --list shows them.", autocompletion=known)
    ] = "uneven-batches",
    listed: Annotated[bool, typer.Option("--list", help="List the failures that can be shown.")] = False,
) -> int:
    """Break a real training job and diagnose it.

    Every process it starts is ended again. Needs torch: pip install 'hangdoc[demo]'.

    \b
    hangdoc demo                   three ranks, one of which runs out of batches
    hangdoc demo stopped-process   another failure
    hangdoc demo healthy           a job with nothing wrong, watched from start to end
    hangdoc demo --list            all of them

    Exit codes: 0 the diagnosis was the expected one (of the healthy job: none), 1 it was not,
    3 the job could not be started, 64 wrong usage.
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
