"""`hangdoc doctor`: what hangdoc may see here."""

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
    json: Annotated[bool, typer.Option("--json", help="Write JSON: one object a check and line.")] = False,
    bf16: Annotated[
        bool,
        typer.Option("--bf16", help="Measure only this: how many times slower than float32 bfloat16 is here (3 s)."),
    ] = False,
    python: Annotated[
        str,
        typer.Option(
            "--python",
            metavar="PATH",
            help="With --bf16: the Python whose torch is measured (default: hangdoc's own).",
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
    """What hangdoc may see here, or on other hosts, and how to let it.

    \b
    hangdoc doctor
    hangdoc doctor --nodes node[1-64]                  are they reached, and what may be seen there
    hangdoc doctor --json | jq 'select(.ok == false)'
    ONEDNN_MAX_CPU_ISA=AVX2 hangdoc doctor --bf16      with the job's variables

    Exit codes: 0 all is well, 3 something cannot be seen.
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
