"""The typer application: every command under its name. `hangdoc.cli` imports it once Ctrl-C is handled."""

from __future__ import annotations

from typing import Annotated

import typer

from hangdoc import __version__
from hangdoc.commands import agent, daemon, demo, doctor, incidents, report, runbook, watch

# Plain help: rich takes three times as long to start, and wraps badly on narrow terminals.
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
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Find out why a distributed training job is stuck or slow.

    hangdoc names the rank or network link at fault and what to do about it. It works from outside the job, in
    seconds, and neither changes nor restarts it.

    \b
    hangdoc watch -- torchrun train.py   start a job and watch it
    hangdoc watch          watch every training rank on this host
    hangdoc watch --once   one verdict now
    hangdoc report logs/   find out why a job died
    hangdoc incidents      what hangdoc kept
    hangdoc daemon         watch every job on this node, as a service
    hangdoc demo           break a real job and diagnose it
    """


# Extra arguments: for `--pids 1 2 3`. `hangdoc.cli` has split off the command.
app.command("watch", context_settings={"allow_extra_args": True}, options_metavar="[OPTIONS] [-- COMMAND...]")(
    watch.command
)
app.command("report")(report.command)
app.add_typer(incidents.app, name="incidents")
app.command("runbook")(runbook.command)
app.command("demo")(demo.command)
app.command("doctor")(doctor.command)
app.command("daemon")(daemon.command)
app.command("agent", hidden=True)(agent.command)
