"""`hangdoc doctor`: what hangdoc can see."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hangdoc.commands.options import (
    AgentCommand,
    Container,
    JobId,
    Namespace,
    Nodes,
    Selector,
    ViaOption,
    fleet_options,
)
from hangdoc.commands.output import stdout_console, write

if TYPE_CHECKING:
    from hangdoc.doctor.checks import Check


def command(
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one check per line.")] = False,
    bf16: Annotated[
        bool,
        typer.Option("--bf16", help="Only compare the speed of bfloat16 and float32 on this CPU (3 s)."),
    ] = False,
    python: Annotated[
        str,
        typer.Option(
            "--python",
            metavar="PATH",
            help="Python to measure with --bf16 (default: hangdoc's own).",
            show_default=False,
        ),
    ] = sys.executable,
    nodes: Nodes = None,
    via: ViaOption = None,
    agent_command: AgentCommand = "hangdoc",
    jobid: JobId = None,
    selector: Selector = None,
    namespace: Namespace = None,
    container: Container = None,
) -> int:
    """Check what hangdoc can see on this host or on others.

    Each failed check names its fix.

    \b
    hangdoc doctor                                      this host
    hangdoc doctor --nodes node[1-64]                   other hosts, and whether ssh reaches them
    hangdoc doctor --json | jq 'select(.ok == false)'   failed checks
    ONEDNN_MAX_CPU_ISA=AVX2 hangdoc doctor --bf16       bfloat16, with the job's environment

    Exit codes: 0 no check failed, 3 a check failed, 64 wrong usage.
    """
    fleet = fleet_options(nodes, via, agent_command, jobid, selector, namespace, container)
    if fleet:
        from hangdoc.fleet.doctor import check_hosts

        found: tuple[Check, ...] = check_hosts(fleet)
    elif bf16:
        from hangdoc.doctor.bf16 import measure

        found = (measure(python),)
    else:
        from hangdoc.doctor.checks import checks

        found = checks()
    from hangdoc.redaction.records import masked

    found = masked(found)
    code = 0 if all(check.ok is not False for check in found) else 3
    if json:
        from dataclasses import asdict

        from hangdoc.render.json import line

        for check in found:
            write(line(asdict(check)))
        return code
    from hangdoc.render.doctor import show

    show(found, stdout_console())
    return code
