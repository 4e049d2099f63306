"""A real Slurm cluster on one host: munged, slurmctld, and a slurmd for each of the nodes n1 and n2.

    with slurm_testbed() as slurm:
        job = slurm.allocate()
        with slurm.ranks(job, script) as trial: ...

The host has its own PIDs and network: what else runs on this machine is not seen from there, nor in the way.
Needs root, iproute2 and Debian's slurm-wlm and munge; no service of theirs has to run, and none that runs is touched.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hangdoc.demo.harness import Trial
from tests.support import requirements
from tests.support.paths import HUNG
from tests.support.testbeds import network
from tests.support.testbeds.hosts import STORE_PORT, Host, host_testbed, of_job, torchrun_command, with_hangdoc

COMMANDS = ("slurmctld", "slurmd", "srun", "salloc", "munged")
NODES = ("n1", "n2")
STARTS_S = 20.0
PORT = 17000  # of slurmctld, and the nodes' after it: the host has its own ports

CONF = """\
ClusterName=hangdoc
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=1
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def require_slurm() -> None:
    """Skip the calling test where there can be no such bed; with HANGDOC_NO_SKIP=1 fail it."""
    network.require()
    requirements.met(requirements.commands(COMMANDS, "slurm-wlm munge"))


@dataclass(slots=True)
class Slurm:
    """The cluster: two nodes on one kernel, under one host name, each with a slurmd."""

    host: Host
    folder: Path
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def environment(self) -> dict[str, str]:
        """What Slurm's commands and hangdoc need to find this cluster and this working tree."""
        outer = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "PMI", "RANK"))}
        return {**outer, "SLURM_CONF": str(self.conf), "PATH": with_hangdoc(self.folder)}

    def run(self, *command: str, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command (srun, squeue, hangdoc) to its end."""
        environment = {**self.environment(), **env}
        nothing = subprocess.DEVNULL
        line = self.host.command(*command)
        return subprocess.run(line, env=environment, stdin=nothing, capture_output=True, text=True, timeout=timeout)

    def start(self, *command: str, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[Any]:
        """Start a command; it ends with the cluster."""
        return self.host.start(*command, env={**self.environment(), **(env or {})}, **options)

    def allocate(self) -> int:
        """The id of a job that holds both nodes, with nothing in it yet."""
        done = self.run("salloc", "--no-shell", "--nodes", str(len(NODES)), "--job-name", "train")
        if done.returncode != 0:
            raise RuntimeError(f"salloc: {done.stderr.strip()}")
        return int(done.stderr.rsplit(maxsplit=1)[-1])

    @contextmanager
    def ranks(self, job: int, script: Path | str, *arguments: str) -> Iterator[Trial]:
        """The script started by srun alone, one rank a node: the ranks have Slurm's variables only."""
        command = (sys.executable, str(HUNG / "started_by_srun.py"), str(script), *arguments)
        with self._step(job, command) as trial:
            yield trial

    @contextmanager
    def torchrun(self, job: int, script: Path | str, *arguments: str) -> Iterator[Trial]:
        """The script under torchrun, which srun starts once a node."""
        torchrun = torchrun_command(len(NODES), "$SLURM_PROCID", "127.0.0.1", STORE_PORT)
        command = ("sh", "-c", f'exec {" ".join(torchrun)} "$@"', "sh", str(script), *arguments)
        with self._step(job, command) as trial:
            yield trial

    @contextmanager
    def _step(self, job: int, command: Sequence[str]) -> Iterator[Trial]:
        folder = self.folder / uuid.uuid4().hex
        folder.mkdir()
        mark = uuid.uuid4().hex
        env = of_job(mark, str(folder), "lo")
        srun = ("srun", "--jobid", str(job), "--nodes", str(len(NODES)), "--ntasks-per-node", "1", "--unbuffered")
        with (folder / "job.log").open("wb") as log:
            nothing = subprocess.DEVNULL
            process = self.start(*srun, *command, env=env, stdin=nothing, stdout=log, stderr=subprocess.STDOUT)
        trial = Trial(process, mark, folder, folder / "job.log")
        try:
            yield trial
        finally:
            trial.end()


@contextmanager
def slurm_testbed() -> Iterator[Slurm]:
    """The cluster with both nodes idle."""
    with host_testbed(1) as bed:
        slurm = Slurm(bed.hosts[0], bed.folder)
        _configure(slurm)
        _start_munge(slurm)
        _daemon(slurm, "slurmctld", "slurmctld", "-D", "-f", str(slurm.conf))
        for node in NODES:
            _daemon(slurm, node, "slurmd", "-D", "-N", node, "-f", str(slurm.conf))
        _wait(slurm, lambda: slurm.run("sinfo", "-h", "-N", "-o", "%t").stdout.split() == ["idle"] * len(NODES))
        yield slurm


def _configure(slurm: Slurm) -> None:
    folder = slurm.folder
    folder.chmod(0o755)
    node = f"NodeName={{}} NodeHostname={slurm.host.name} NodeAddr=127.0.0.1 Port={{}} CPUs=4"
    nodes = "\n".join(node.format(name, port) for port, name in enumerate(NODES, PORT + 1))
    text = CONF.format(host=slurm.host.name, folder=folder, port=PORT, nodes=nodes, names=",".join(NODES))
    slurm.conf.write_text(text)
    # Nothing here needs control groups; left to find out which there are, slurmd fails where none are mounted.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    for name in ("state", "munge", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir(mode=0o755)


def _start_munge(slurm: Slurm) -> None:
    folder = slurm.folder / "munge"
    (folder / "key").write_bytes(secrets.token_bytes(128))
    (folder / "key").chmod(0o600)
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={folder / name}" for option, name in files.items()]
    _daemon(slurm, "munged", "munged", "--foreground", "--num-threads=2", *options)
    _wait(slurm, (folder / "socket").exists)


def _daemon(slurm: Slurm, name: str, *command: str) -> None:
    with (slurm.folder / f"{name}.out").open("wb") as log:
        slurm.daemons[name] = slurm.start(*command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _wait(slurm: Slurm, ready: Callable[[], bool]) -> None:
    limit = time.monotonic() + STARTS_S
    while not ready():
        dead = [name for name, daemon in slurm.daemons.items() if daemon.poll() is not None]
        if dead or time.monotonic() > limit:
            logs = "\n".join(file.read_text(errors="replace")[-800:] for file in sorted(slurm.folder.glob("*.out")))
            raise RuntimeError(f"Slurm does not start ({', '.join(dead) or 'nodes not idle'}):\n{logs}")
        time.sleep(0.05)
