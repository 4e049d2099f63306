"""The commands, one file each. Each returns its exit code and imports what it needs only when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from hangdoc import __version__
from hangdoc.commands import agent, demo, doctor, report, runbook, watch

# Plain help: rich's takes three times as long to start, and wraps worse on narrow terminals.
app = typer.Typer(
    name="hangdoc",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"hangdoc {__version__}")
        raise typer.Exit


@app.callback()
def _hangdoc(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Why a distributed training job is stuck or slow, which rank or link did it, and what to do.

    From outside, in seconds, with no change to the job and no restart.

    \b
    hangdoc watch                 watch every training rank on this host
    hangdoc watch --once          one verdict now
    hangdoc demo                  break a real job and watch it being diagnosed
    """


app.command("watch", context_settings={"allow_extra_args": True})(watch.command)  # `--pids 1 2 3`
app.command("report")(report.command)
app.command("runbook")(runbook.command)
app.command("demo")(demo.command)
app.command("doctor")(doctor.command)
app.command("agent", hidden=True)(agent.command)
