"""Options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hangdoc.fleet.transports import FleetOptions

Playbooks = Annotated[
    list[Path] | None,
    typer.Option(
        "--playbooks",
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="Also use the playbooks in DIR. Repeatable.",
    ),
]

Ask = Annotated[
    list[str] | None,
    typer.Option(
        "--ask",
        metavar="WHAT,...",
        help="Allow requests that hangdoc never sends otherwise: store, recorder, ping, dns, or all (see above).",
    ),
]


def parse_ask(groups: Sequence[str]) -> frozenset[str]:
    """The names in `--ask ping,dns` or `--ask ping --ask dns`; raises a usage error."""
    from probes import ASKABLE

    words = [word for group in groups for word in re.split(r"[,\s]+", group) if word]
    for word in words:
        if word not in (*ASKABLE, "all"):
            raise typer.BadParameter(
                f"unknown request {word!r}; choose from {', '.join(ASKABLE)}, or all", param_hint="--ask"
            )
    return frozenset(ASKABLE if "all" in words else words)


# --- hosts and transport --------------------------------------------------------------------------


class Via(str, Enum):
    """Transport that starts the agents."""

    ssh = "ssh"
    srun = "srun"
    kubectl = "kubectl"
    local = "local"


Nodes = Annotated[str | None, typer.Option(metavar="NODESET", help="Hosts: node[1-64], n1,n2, @slurmjob:123.")]
ViaOption = Annotated[
    Via | None, typer.Option(help="How to reach the hosts (default: ssh). srun and kubectl work without --nodes.")
]
AgentCommand = Annotated[
    str, typer.Option(metavar="COMMAND", help="Command that starts hangdoc on a host; %h is the host.")
]
JobId = Annotated[str | None, typer.Option(metavar="N", help="Slurm job for --via srun (default: the current one).")]
Selector = Annotated[str | None, typer.Option(metavar="LABEL=VALUE", help="Label of the pods for --via kubectl.")]
Namespace = Annotated[str | None, typer.Option(metavar="NAME", help="Namespace of the pods.")]
Container = Annotated[str | None, typer.Option(metavar="NAME", help="Container in the pods.")]


def fleet_options(
    nodes: str | None,
    via: Via | None,
    agent: str,
    jobid: str | None,
    selector: str | None,
    namespace: str | None,
    container: str | None,
) -> FleetOptions | None:
    """The options as one record; None: this host only."""
    hints = ((Via.srun, jobid), (Via.kubectl, selector), (Via.ssh, nodes))
    transport = via or next((transport for transport, hint in hints if hint), None)
    if transport is None:
        return None
    from hangdoc.fleet.transports import FleetOptions

    return FleetOptions(transport.value, nodes, agent, jobid, selector, namespace, container)
