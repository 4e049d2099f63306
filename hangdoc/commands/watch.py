"""`hangdoc watch`: one verdict, or a live watch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hangdoc.commands.options import (
    AgentCommand,
    Ask,
    Container,
    JobId,
    Namespace,
    Nodes,
    Playbooks,
    Selector,
    ViaOption,
    fleet_options,
    parse_ask,
)
from hangdoc.commands.output import reader_gone, say, stdout_console, write

if TYPE_CHECKING:
    from hangdoc.incident.incident import File
    from hangdoc.verdict import Verdict
    from hangdoc.watch.run import WatchOptions


Pids = Annotated[
    list[str] | None,
    typer.Option(
        "--pids",
        metavar="PID,...",
        help="Watch these ranks, or all ranks of a launcher. Default: every training rank on this host.",
    ),
]
Record = Annotated[
    Path | None,
    typer.Option(metavar="DIR", file_okay=False, help="Record what hangdoc sees to DIR, for `hangdoc report DIR`."),
]
Incidents = Annotated[
    Path | None,
    typer.Option(
        "--incidents",
        metavar="DIR",
        file_okay=False,
        help="Keep incidents in DIR/incidents, not in hangdoc's own folder; see `hangdoc incidents`.",
    ),
]


def command(
    context: typer.Context,
    pids: Pids = None,
    once: Annotated[bool, typer.Option("--once", help="Print one verdict and exit.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON: one event per line, or with --once a verdict.")
    ] = False,
    record: Record = None,
    incidents: Incidents = None,
    no_incidents: Annotated[bool, typer.Option("--no-incidents", help="Keep no incidents.")] = False,
    playbooks: Playbooks = None,
    interval: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.1, max=60, help="Time between samples; longer while the job is healthy."),
    ] = 1.0,
    ask: Ask = None,
    nodes: Nodes = None,
    via: ViaOption = None,
    agent_command: AgentCommand = "hangdoc",
    jobid: JobId = None,
    selector: Selector = None,
    namespace: Namespace = None,
    container: Container = None,
) -> int:
    """Watch running jobs and find out why they stall or slow down.

    hangdoc does not pause, signal or change a running job.

    \b
    hangdoc watch                            all jobs on this host, live
    hangdoc watch --once                     one verdict now
    hangdoc watch --pids 4276,4277 --json    events of these ranks, as JSON lines
    hangdoc watch --nodes node[1-64]         many hosts, over your own ssh
    hangdoc watch --via srun --jobid 123     the nodes of a Slurm job
    hangdoc watch --via kubectl --selector app=train --container main

    The live watch keeps each incident, from the first suspicion on: `hangdoc incidents` lists them, and
    `hangdoc report latest` judges the newest one again.

    \b
    --ask allows these requests; hangdoc sends none of them otherwise:
      store      read the addresses that ranks published in the job's TCPStore
      recorder   query the job's own debug server for Flight Recorder dumps
      ping       ping the peers of a rank whose bytes do not arrive
      dns        resolve the rendezvous address

    Exit codes: 0 healthy, 1 slow or suspect, 2 stalled or failed, 3 cannot tell, 64 wrong usage, 130 interrupted.
    """
    wanted = parse_pids(pids or [], context.args)
    fleet = fleet_options(nodes, via, agent_command, jobid, selector, namespace, container)
    if fleet and wanted:
        raise typer.BadParameter("PIDs refer to this host; give --pids or --nodes, not both", param_hint="--pids")
    if not fleet:
        say(f"looking at PID {', '.join(map(str, wanted))}" if wanted else "looking for training ranks on this host")
    from hangdoc.watch.run import WatchOptions

    if incidents and no_incidents:
        raise typer.BadParameter("give one of --incidents and --no-incidents, not both", param_hint="--incidents")
    options = WatchOptions(
        wanted,
        record,
        tuple(playbooks or ()),
        interval,
        fleet,
        parse_ask(ask or ()),
        None if once or no_incidents else incidents or _default_incidents(),
    )
    return _once(options, json) if once else _live(options, json)


def _default_incidents() -> Path | None:
    """Where incidents are kept by default; None: there is no such place."""
    from hangdoc.incident.store import NoPlace, default_root

    try:
        return default_root()
    except NoPlace as error:
        say(str(error))
        return None


def parse_pids(groups: Sequence[str], rest: Sequence[str]) -> tuple[int, ...]:
    """PIDs of `--pids 1,2`, `--pids "1 2"`, `--pids 1 --pids 2` and `--pids 1 2`; raises a usage error."""
    if rest and not groups:
        raise _no_pids(f"give PIDs with --pids, as in: hangdoc watch --pids {','.join(rest)}")
    words = [word for group in (*groups, *rest) for word in re.split(r"[,\s]+", group) if word]
    if groups and not words:
        raise _no_pids("no PID given; leave --pids out to watch every rank on this host")
    for word in words:
        if not re.fullmatch(r"[1-9][0-9]{0,9}", word):
            raise _no_pids(f"{word!r} is not a PID; give numbers, as in: --pids 4276,4277")
    return tuple(dict.fromkeys(map(int, words)))


def _no_pids(why: str) -> typer.BadParameter:
    return typer.BadParameter(why, param_hint="--pids")


def _once(options: WatchOptions, json: bool) -> int:
    from hangdoc.watch.run import watch_once

    verdicts = watch_once(options, say)
    print_verdicts(verdicts, json)
    return worst(verdicts)


def print_verdicts(verdicts: Sequence[Verdict], json: bool, files: Sequence[File] = ()) -> None:
    """Print verdicts to stdout: for a terminal, or as one JSON object per line."""
    if json:
        from hangdoc.render.json import verdict_line

        for verdict in verdicts:
            write(verdict_line(verdict))
        return
    from hangdoc.render.terminal import show

    show(verdicts, stdout_console(), files)


def worst(verdicts: Sequence[Verdict]) -> int:
    """Exit code for several jobs: the worst of stalled or failed, slow, unknown, healthy."""
    from hangdoc.verdict import EXIT

    codes = {EXIT[verdict.status] for verdict in verdicts}
    return next((code for code in (2, 1, 3, 0) if code in codes), 3)


def _live(options: WatchOptions, json: bool) -> int:
    from hangdoc.render.live import Closed, view
    from hangdoc.watch.run import watch

    with view(stdout_console, write, reader_gone, json) as shown:
        try:
            return watch(options, shown.emit, shown.status, say)
        except Closed:
            return shown.code
