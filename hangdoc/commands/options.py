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
        help="Add playbooks of your own. May be repeated.",
    ),
]

Ask = Annotated[
    list[str] | None,
    typer.Option(
        "--ask",
        metavar="WHAT,...",
        help="Send something to learn more (by default nothing is): store (read the addresses that ranks left in the "
        "job's TCPStore), recorder (a request to the job's own debug server), ping (to the peers of a rank whose "
        "bytes do not arrive), dns (what the address where ranks meet stands for), or all.",
    ),
]


def parse_ask(groups: Sequence[str]) -> frozenset[str]:
    """What `--ask ping,dns` and `--ask ping --ask dns` stand for; raises a usage error."""
    from probes import ASKABLE

    words = [word for group in groups for word in re.split(r"[,\s]+", group) if word]
    for word in words:
        if word not in (*ASKABLE, "all"):
            raise typer.BadParameter(
                f"{word!r} is nothing to ask; give some of {', '.join(ASKABLE)}, or all", param_hint="--ask"
            )
    return frozenset(ASKABLE if "all" in words else words)


# --- which hosts, and how they are reached --------------------------------------------------------


class Via(str, Enum):
    """What carries the agents."""

    ssh = "ssh"
    srun = "srun"
    kubectl = "kubectl"
    local = "local"


Nodes = Annotated[str | None, typer.Option(metavar="NODESET", help="These hosts: node[1-64], n1,n2, @slurmjob:123.")]
ViaOption = Annotated[
    Via | None, typer.Option(help="How to reach the hosts (ssh). By srun, kubectl: their own nodes by default.")
]
AgentCommand = Annotated[str, typer.Option(metavar="COMMAND", help="How hangdoc is called there; %h: the host.")]
JobId = Annotated[str | None, typer.Option(metavar="N", help="Slurm job, for --via srun; else the one we are in.")]
Selector = Annotated[str | None, typer.Option(metavar="LABEL=VALUE", help="Pods, for --via kubectl.")]
Namespace = Annotated[str | None, typer.Option(metavar="NAME", help="Of the pods.")]
Container = Annotated[str | None, typer.Option(metavar="NAME", help="In the pods.")]


def fleet_options(
    nodes: str | None,
    via: Via | None,
    agent: str,
    jobid: str | None,
    selector: str | None,
    namespace: str | None,
    container: str | None,
) -> FleetOptions | None:
    """What these options ask for; None: nothing, this host is meant."""
    hints = ((Via.srun, jobid), (Via.kubectl, selector), (Via.ssh, nodes))
    way = via or next((way for way, hint in hints if hint), None)
    if way is None:
        return None
    from hangdoc.fleet.transports import FleetOptions

    return FleetOptions(way.value, nodes, agent, jobid, selector, namespace, container)
