"""Transports: how the agent is started on a host (ssh, srun, kubectl, local), and the default hosts.

Every word from a user, a scheduler or a cluster is checked before a shell or another program sees it: it cannot be an
option, nor anything but a plain word to a shell. Only the agent's command is passed to the shell as the user wrote it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hangdoc.errors import HangdocError
from hangdoc.system import programs

ASK_S = 15.0  # for a scheduler command
AGENT_ALONE = "hangdoc-agent"  # a command that can only be an agent: safe to allow in sudoers

# Host and pod names, IPv4 and IPv6 addresses: letters, digits and `.:_-`, never an option.
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,252}")
# ClusterShell node sets, with `@source:group` and operators; the name of a group goes to a shell (upcalls).
_NODES = re.compile(r"(?!-)(?:(?<![@:,!&^/\[])-|[A-Za-z0-9_.:,/@\[\]!&^*?+])*")
_SLURM_JOB = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,10})?(?:\+[0-9]{1,10})?")  # 123, array task 123_4, heterogeneous 123+1
_SELECTOR = re.compile(r"[A-Za-z0-9!][A-Za-z0-9_./,=!() -]{0,1000}")  # Kubernetes: `app=train`, `tier in (a, b)`
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")  # Kubernetes namespace or container (RFC 1123)


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """Options of `--nodes` and its companions."""

    via: str = "ssh"
    nodes: str | None = None  # a ClusterShell node set
    agent: str = "hangdoc"  # agent command, as a shell reads it; %h is the host
    job: str | None = None  # Slurm job id
    selector: str | None = None  # Kubernetes label selector of the pods
    namespace: str | None = None
    container: str | None = None


@dataclass(frozen=True, slots=True)
class Transport:
    """How one agent is started."""

    command: Callable[[str], str]  # host -> shell command; it runs there if `remote`, else here
    remote: bool = False  # over ClusterShell's ssh worker, configured by the site
    options: Mapping[str, object] = field(default_factory=dict)  # of the ClusterShell task


def hosts_of(options: FleetOptions) -> list[str]:
    """The hosts, in the given order. Raises HangdocError if there are none."""
    _check(options)
    text = options.nodes if options.nodes is not None else _default_nodes(options)
    _checked("--nodes", text, _NODES, "a node set such as node[1-64], n1,n2 or @group")
    from ClusterShell.NodeSet import NodeSet, NodeSetException, std_group_resolver
    from ClusterShell.NodeUtils import GroupResolverError, GroupSourceError, UpcallGroupSource

    groups = std_group_resolver()
    if not {"slurmjob", "sj"} & set(groups.sources()):  # not configured by the site
        groups.add_source(UpcallGroupSource("slurmjob", map_upcall='squeue --noheader --jobs $GROUP --format "%N"'))
    try:
        hosts = list(NodeSet(text, resolver=groups))
    except (NodeSetException, GroupResolverError, GroupSourceError) as error:
        raise HangdocError(f"--nodes {text}: {error}; write node[1-64], n1,n2 or @group", code=64) from None
    if not hosts:
        raise HangdocError(f"--nodes {text!r} matches no host; write node[1-64], n1,n2 or @group", code=64)
    for host in hosts:  # names may come from a group upcall, squeue or kubectl
        _checked("--nodes", host, _HOST, "a host or pod name")
    return hosts


def _check(options: FleetOptions) -> None:
    """Raises HangdocError for an invalid option value."""
    _checked("--jobid", options.job, _SLURM_JOB, "a Slurm job ID such as 123")
    _checked("--selector", options.selector, _SELECTOR, "a label selector such as app=train")
    _checked("--namespace", options.namespace, _NAME, "a namespace name")
    _checked("--container", options.container, _NAME, "a container name")


def _checked(option: str, word: str | None, pattern: re.Pattern[str], wanted: str) -> None:
    if word is not None and not pattern.fullmatch(word):
        raise HangdocError(f"{option} {word!r} is not {wanted}", code=64)


def alone(options: FleetOptions) -> bool:
    """True if the agent command can only be an agent. It then gets no argument, because sudo may allow none."""
    words = options.agent.split()
    return bool(words) and os.path.basename(words[-1]) == AGENT_ALONE


def transport_of(options: FleetOptions, verb: str = "agent") -> Transport:
    """How to start `hangdoc VERB` on hosts (if `alone`: the agent, whatever the verb).

    Raises HangdocError if a command that it needs is missing.
    """
    _check(options)
    what = options.agent if alone(options) else f"{options.agent} {verb}"

    def run(host: str) -> str:
        return what.replace("%h", shlex.quote(host))

    if options.via == "ssh":
        _trusted("ssh")
        # A host that is silent for this long is gone, or the network to it is.
        task_options = {"connect_timeout": 5, "ssh_options": "-oServerAliveInterval=5 -oServerAliveCountMax=2"}
        return Transport(run, remote=True, options=task_options)
    if options.via == "srun":
        _need("srun", "run hangdoc on a host with the Slurm commands")
        # One srun per node: with several tasks, one srun cuts and mixes long lines (seen with Slurm 22.05).
        step = "--overlap --nodes 1 --ntasks 1 --mpi none --immediate=5 --quit-on-interrupt --input all --quiet"
        start = f"exec srun --jobid {_slurm_job(options)} {step} --nodelist"
        return Transport(lambda host: f"{start} {shlex.quote(host)} {run(host)}")
    if options.via == "kubectl":
        _need("kubectl", "install it and try `kubectl get pods`")
        words = [*_flag("--namespace", options.namespace), *_flag("--container", options.container)]
        rest = "".join(f" {shlex.quote(word)}" for word in words)
        return Transport(lambda host: f"exec kubectl exec -i {shlex.quote(host)}{rest} -- {run(host)}")
    return Transport(run)


def _default_nodes(options: FleetOptions) -> str:
    if options.via == "srun":
        found = _ask("squeue", "--noheader", "--jobs", _slurm_job(options), "--format", "%N").strip()
        if not found:
            raise HangdocError(
                f"job {_slurm_job(options)} has no nodes yet: check `squeue --jobs {_slurm_job(options)}`"
            )
        return found
    if options.via == "kubectl":
        if options.selector is None:
            raise HangdocError("--via kubectl needs --selector LABEL=VALUE or --nodes POD,...", code=64)
        words = ["--selector", options.selector, *_flag("--namespace", options.namespace)]
        running = ["--field-selector", "status.phase=Running", "--output", "jsonpath={.items[*].metadata.name}"]
        found = ",".join(_ask("kubectl", "get", "pods", *words, *running).split())
        if not found:
            raise HangdocError(f"no running pod matches {options.selector}: check `kubectl get pods --show-labels`")
        return found
    if options.via == "local":
        return os.uname().nodename
    raise HangdocError("--via ssh needs --nodes, as in: hangdoc watch --nodes node[1-64]", code=64)


def _slurm_job(options: FleetOptions) -> str:
    job = options.job or os.environ.get("SLURM_JOB_ID")
    if not job:
        raise HangdocError("not inside a Slurm job: select one with --jobid N (`squeue --me` lists yours)", code=64)
    _checked("SLURM_JOB_ID", job, _SLURM_JOB, "a Slurm job ID such as 123")
    return job


def _flag(name: str, value: str | None) -> list[str]:
    return [] if value is None else [name, value]


def _need(command: str, remedy: str) -> None:
    if shutil.which(command) is None:
        raise HangdocError(f"`{command}` is not installed here: {remedy}")
    _trusted(command)


def _trusted(command: str) -> None:
    """Raises HangdocError if we are root and other users may change the program on the PATH."""
    found = shutil.which(command)
    if found is not None and os.geteuid() == 0 and not programs.only_root_may_change(found):
        raise HangdocError(
            f"root does not run {found}, which other users can change: put the system's {command} first on PATH"
        )


def _ask(*command: str) -> str:
    """Output of a scheduler command. Raises HangdocError if it fails."""
    _need(command[0], "run hangdoc on a host that has it")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise HangdocError(f"`{shlex.join(command)}` did not answer in {ASK_S:g} s") from None
    if done.returncode != 0:
        raise HangdocError(f"`{shlex.join(command)}` failed: {done.stderr.strip() or done.returncode}")
    return done.stdout
