"""`hangdoc watch`: one verdict, or a live watch."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
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
    Via,
    ViaOption,
    fleet_options,
    parse_ask,
)
from hangdoc.commands.output import reader_gone, say, stderr_console, stdout_console, write

if TYPE_CHECKING:
    from hangdoc.incident.incident import File
    from hangdoc.launch.on_hang import OnHang
    from hangdoc.launch.supervisor import Command
    from hangdoc.verdict import Verdict
    from hangdoc.watch.run import WatchOptions

WAIT_S = 600.0  # for a launcher to start its ranks; a container image or a module environment takes minutes to load
ENDING_S = 60.0  # for --kill-after to end the processes of a command: 30 s until SIGKILL, and some to collect them

Pids = Annotated[
    list[str] | None,
    typer.Option(
        "--pids",
        metavar="PID,...",
        help="Watch these ranks, or all ranks of a launcher. Default: every training rank on this host.",
    ),
]
Wait = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0,
        help="Wait this long for the ranks of a launcher (default: 600; with --once 0; a COMMAND's: until it ends).",
    ),
]
OnHangOption = Annotated[
    str | None,
    typer.Option(
        "--on-hang",
        metavar="CMD",
        help="Run this shell command once per incident that stalls or fails, with HANGDOC_* in its environment.",
    ),
]
OnHangTimeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=1, max=86400, help="End the --on-hang command after this long.")
]
KillAfterOption = Annotated[
    float | None,
    typer.Option(
        "--kill-after",
        metavar="SECONDS",
        min=1,
        help="End the COMMAND if a high-confidence verdict on its stall has held this long. Off by default.",
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
    wait: Wait = None,
    on_hang: OnHangOption = None,
    on_hang_timeout: OnHangTimeout = 60.0,
    kill_after: KillAfterOption = None,
    nodes: Nodes = None,
    via: ViaOption = None,
    agent_command: AgentCommand = "hangdoc",
    jobid: JobId = None,
    selector: Selector = None,
    namespace: Namespace = None,
    container: Container = None,
) -> int:
    """Watch running jobs, or start one and watch it, and find out why they stall or slow down.

    hangdoc does not pause, signal or change a running job. Only --kill-after lets it end the job that it started.

    \b
    hangdoc watch -- torchrun --nproc-per-node 8 train.py     start a job, watch it, end as it ends
    hangdoc watch --on-hang './page.sh' -- torchrun train.py  and run a command of yours if it hangs
    hangdoc watch --via srun -- srun torchrun train.py        in a Slurm job: its ranks on all nodes

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
    With -- COMMAND: that of the command.
    """
    launched: tuple[str, ...] | None = context.obj
    fleet = fleet_options(nodes, via, agent_command, jobid, selector, namespace, container)
    asked = parse_ask(ask) if ask else frozenset[str]()
    if no_incidents and (incidents or on_hang):
        both = "--incidents" if incidents else "--on-hang"
        raise typer.BadParameter(f"give one of {both} and --no-incidents, not both", param_hint=both)
    if once and on_hang:
        raise typer.BadParameter("--once reports no incident; leave it out", param_hint="--on-hang")

    def select(wanted: tuple[int, ...], wait_s: float, below: bool = False) -> WatchOptions:
        from hangdoc.watch.run import WatchOptions

        root = None if once or no_incidents else incidents or _default_incidents()
        return WatchOptions(
            wanted, record, tuple(playbooks or ()), interval, fleet, asked, root, wait_s=wait_s, below=below
        )

    if launched is None:
        if kill_after is not None:
            raise typer.BadParameter(
                "hangdoc ends only a job that it started; add -- COMMAND", param_hint="--kill-after"
            )
        wanted = parse_pids(pids or [], context.args)
        if fleet and wanted:
            raise typer.BadParameter("PIDs refer to this host; give --pids or --nodes, not both", param_hint="--pids")
        if not fleet:
            pids_text = ", ".join(map(str, wanted))
            say(f"looking at PID {pids_text}" if wanted else "looking for training ranks on this host")
        options = select(wanted, (0.0 if once else WAIT_S) if wait is None else wait)
        return _once(options, json) if once else _live(options, json, on_hang, on_hang_timeout)
    elsewhere = fleet is not None and fleet.via != Via.srun.value  # agents of a Slurm job see its ranks only
    refused = {"--pids": pids or context.args, "--once": once, "--json": json, "--wait": wait}
    refused |= {"--via/--nodes": elsewhere, "--via srun --kill-after": fleet and kill_after}
    return _launch(
        _checked(launched, [name for name, given in refused.items() if given]),
        lambda pid: select((pid,), math.inf, below=True),
        on_hang,
        on_hang_timeout,
        kill_after,
    )


def _checked(command: tuple[str, ...], refused: Sequence[str]) -> tuple[str, ...]:
    """The command; raises a usage error if it is empty, or if options do not go with it."""
    if not command:
        raise typer.BadParameter("give a command after --, as in: hangdoc watch -- torchrun train.py", param_hint="--")
    if refused:
        why = "its stdout and its ranks are its own"
        raise typer.BadParameter(f"not with -- COMMAND: {why}", param_hint=", ".join(refused))
    return command


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


def _live(options: WatchOptions, json: bool, on_hang: str | None, timeout_s: float) -> int:
    from hangdoc.render.live import Closed, view
    from hangdoc.watch.run import watch

    hook = _hook(on_hang, timeout_s, options)
    with view(stdout_console, write, reader_gone, json) as shown:
        try:
            return watch(options, shown.emit, shown.status, say, (hook.notify,) if hook else ())
        except Closed:
            return shown.code
        finally:
            if hook:
                hook.wait()


def _hook(command: str | None, timeout_s: float, options: WatchOptions) -> OnHang | None:
    if command is None or options.incidents is None:
        return None
    from hangdoc.incident.store import IncidentStore
    from hangdoc.launch.on_hang import OnHang

    return OnHang(command, IncidentStore(options.incidents).path, say, timeout_s)


def _launch(
    command: tuple[str, ...],
    select: Callable[[int], WatchOptions],
    on_hang: str | None,
    on_hang_timeout_s: float,
    kill_after_s: float | None,
) -> int:
    from hangdoc.launch.supervisor import FINISH_S, supervise

    def watch(started: Command) -> None:
        try:
            _watch_launched(started, select(started.pid), on_hang, on_hang_timeout_s, kill_after_s)
        except Exception as error:  # whatever it is, it is not the job's
            if os.environ.get("HANGDOC_DEBUG"):
                raise
            say(f"the watch has failed ({type(error).__name__}: {error}); the command goes on without it")

    ending_s = on_hang_timeout_s * (on_hang is not None) + ENDING_S * (kill_after_s is not None)
    return supervise(command, watch, say, FINISH_S + ending_s)


def _watch_launched(
    started: Command, options: WatchOptions, on_hang: str | None, timeout_s: float, kill_after_s: float | None
) -> None:
    """Runs in the watcher, and loads the engine there."""
    from hangdoc.launch.job_watch import JobWatch
    from hangdoc.launch.kill_after import KillAfter
    from hangdoc.render.live import Aside

    hook = _hook(on_hang, timeout_s, options)
    ending = None if kill_after_s is None else KillAfter(kill_after_s)
    JobWatch(started, options, Aside(stderr_console()), say, hook, ending).run()
