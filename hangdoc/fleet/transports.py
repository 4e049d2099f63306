"""How the agent gets onto a host: the command line of each way, and the hosts there are where none are named.

Every word that a user, a scheduler or a cluster gives is checked before a shell or another program gets to see it: none
can be an option, or anything but a word to a shell. The agent's command alone is the user's own, as a shell reads it.
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

ASK_S = 15.0  # for a scheduler to tell the nodes
AGENT_ALONE = "hangdoc-agent"  # the command that is an agent and nothing else: what sudo may allow

# Host and pod names, IPv4 and IPv6 addresses: letters, digits and `.:_-`, never an option.
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,252}")
# ClusterShell's node sets, `@source:group` and operators among them; the name of a group goes to a shell (upcalls).
_NODES = re.compile(r"(?!-)(?:(?<![@:,!&^/\[])-|[A-Za-z0-9_.:,/@\[\]!&^*?+])*")
_SLURM_JOB = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,10})?(?:\+[0-9]{1,10})?")  # 123, 123_4 of an array, 123+1
_SELECTOR = re.compile(r"[A-Za-z0-9!][A-Za-z0-9_./,=!() -]{0,1000}")  # Kubernetes: `app=train`, `tier in (a, b)`
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")  # of a Kubernetes namespace or container (RFC 1123)


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """What the user asked for."""

    via: str = "ssh"
    nodes: str | None = None  # a ClusterShell node set
    agent: str = "hangdoc"  # what to start there, as a shell reads it; %h stands for the host
    job: str | None = None  # Slurm job id
    selector: str | None = None  # of pods
    namespace: str | None = None
    container: str | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """How one agent is started."""

    command: Callable[[str], str]  # host -> what a shell is to run: there if `remote`, else here
    remote: bool = False  # ClusterShell's own worker (ssh, as the site has set it up) carries it
    options: Mapping[str, object] = field(default_factory=dict)  # of ClusterShell's task


def hosts_of(wish: FleetOptions) -> list[str]:
    """The hosts, in the order given; raises HangdocError where none are named or the name means none."""
    _check(wish)
    text = wish.nodes if wish.nodes is not None else _default_nodes(wish)
    _checked("--nodes", text, _NODES, "node[1-64], n1,n2 or @group")
    from ClusterShell.NodeSet import NodeSet, NodeSetException, std_group_resolver
    from ClusterShell.NodeUtils import GroupResolverError, GroupSourceError, UpcallGroupSource

    groups = std_group_resolver()
    if not {"slurmjob", "sj"} & set(groups.sources()):  # else the site has set it up
        groups.add_source(UpcallGroupSource("slurmjob", map_upcall='squeue --noheader --jobs $GROUP --format "%N"'))
    try:
        hosts = list(NodeSet(text, resolver=groups))
    except (NodeSetException, GroupResolverError, GroupSourceError) as error:
        raise HangdocError(f"--nodes {text}: {error}; write node[1-64], n1,n2 or @group", code=64) from None
    if not hosts:
        raise HangdocError(f"--nodes {text!r} means no node; write node[1-64], n1,n2 or @group", code=64)
    for host in hosts:  # a group's upcall, squeue or kubectl may have named them
        _checked("--nodes", host, _HOST, "names of hosts or pods")
    return hosts


def _check(wish: FleetOptions) -> None:
    """Raises HangdocError for a word that cannot be what it should be."""
    _checked("--jobid", wish.job, _SLURM_JOB, "the number of a Slurm job, as 123")
    _checked("--selector", wish.selector, _SELECTOR, "a label, as app=train")
    _checked("--namespace", wish.namespace, _NAME, "the name of a namespace")
    _checked("--container", wish.container, _NAME, "the name of a container")


def _checked(option: str, word: str | None, pattern: re.Pattern[str], wanted: str) -> None:
    if word is not None and not pattern.fullmatch(word):
        raise HangdocError(f"{option} {word!r} is not {wanted}", code=64)


def alone(wish: FleetOptions) -> bool:
    """Whether the agent's command can be nothing but an agent: it is given no word then, as sudo may insist."""
    words = wish.agent.split()
    return bool(words) and os.path.basename(words[-1]) == AGENT_ALONE


def way_of(wish: FleetOptions, verb: str = "agent") -> Way:
    """How to start `hangdoc VERB` (`alone`: the agent, whatever the verb) on hosts; raises HangdocError where what it
    needs is not there."""
    _check(wish)
    what = wish.agent if alone(wish) else f"{wish.agent} {verb}"

    def run(host: str) -> str:
        return what.replace("%h", shlex.quote(host))

    if wish.via == "ssh":
        _trusted("ssh")
        # Silence for so long means that the host, or the way to it, is gone.
        options = {"connect_timeout": 5, "ssh_options": "-oServerAliveInterval=5 -oServerAliveCountMax=2"}
        return Way(run, remote=True, options=options)
    if wish.via == "srun":
        _need("srun", "run hangdoc where Slurm's commands are")
        # One srun a node: several tasks' long lines come out of one srun cut and mixed (seen with Slurm 22.05).
        step = "--overlap --nodes 1 --ntasks 1 --mpi none --immediate=5 --quit-on-interrupt --input all --quiet"
        start = f"exec srun --jobid {_slurm_job(wish)} {step} --nodelist"
        return Way(lambda host: f"{start} {shlex.quote(host)} {run(host)}")
    if wish.via == "kubectl":
        _need("kubectl", "install it, and try `kubectl get pods`")
        words = [*_flag("--namespace", wish.namespace), *_flag("--container", wish.container)]
        rest = "".join(f" {shlex.quote(word)}" for word in words)
        return Way(lambda host: f"exec kubectl exec -i {shlex.quote(host)}{rest} -- {run(host)}")
    return Way(run)


def _default_nodes(wish: FleetOptions) -> str:
    if wish.via == "srun":
        found = _ask("squeue", "--noheader", "--jobs", _slurm_job(wish), "--format", "%N").strip()
        if not found:
            raise HangdocError(f"job {_slurm_job(wish)} has no nodes yet: `squeue --jobs {_slurm_job(wish)}` says why")
        return found
    if wish.via == "kubectl":
        if wish.selector is None:
            raise HangdocError("--via kubectl needs --selector LABEL=VALUE or --nodes POD,...", code=64)
        words = ["--selector", wish.selector, *_flag("--namespace", wish.namespace)]
        running = ["--field-selector", "status.phase=Running", "--output", "jsonpath={.items[*].metadata.name}"]
        found = ",".join(_ask("kubectl", "get", "pods", *words, *running).split())
        if not found:
            raise HangdocError(f"no running pod has the label {wish.selector}: see `kubectl get pods --show-labels`")
        return found
    if wish.via == "local":
        return os.uname().nodename
    raise HangdocError("--via ssh needs --nodes, as in: hangdoc watch --nodes node[1-64]", code=64)


def _slurm_job(wish: FleetOptions) -> str:
    job = wish.job or os.environ.get("SLURM_JOB_ID")
    if not job:
        raise HangdocError("not within a Slurm job: name one with --jobid N (`squeue --me` lists yours)", code=64)
    _checked("SLURM_JOB_ID", job, _SLURM_JOB, "the number of a Slurm job, as 123")
    return job


def _flag(name: str, value: str | None) -> list[str]:
    return [] if value is None else [name, value]


def _need(command: str, remedy: str) -> None:
    if shutil.which(command) is None:
        raise HangdocError(f"there is no `{command}` here: {remedy}")
    _trusted(command)


def _trusted(command: str) -> None:
    """Raises HangdocError where we are root and the program on the PATH is one that others may change."""
    found = shutil.which(command)
    if found is not None and os.geteuid() == 0 and not programs.only_root_may_change(found):
        raise HangdocError(
            f"root does not run {found}, which others may change: put the system's own first on the PATH"
        )


def _ask(*command: str) -> str:
    """What a command of the scheduler prints; raises HangdocError where it fails."""
    _need(command[0], "run hangdoc where it is installed")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise HangdocError(f"`{shlex.join(command)}` did not answer in {ASK_S:g} s") from None
    if done.returncode != 0:
        raise HangdocError(f"`{shlex.join(command)}` failed: {done.stderr.strip() or done.returncode}")
    return done.stdout
