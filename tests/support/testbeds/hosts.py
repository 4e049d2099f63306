"""Hosts in namespaces: each with its own network, host name, PIDs and /etc/hosts.

A host is a process namespace (its own PIDs, from 1 on), a UTS namespace (its own host name) and a mount namespace
inside the network namespace of a `network.Node`. Everything in it dies with its first process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hangdoc.demo.harness import MARK, Trial
from tests.support import requirements
from tests.support.paths import ROOT
from tests.support.testbeds.network import Bed, Node, network_testbed

STARTS_S = 10.0  # for the first process of a host
STORE_PORT = 29500  # each host has its own ports

# The first process takes over orphans, and its ignoring SIGCHLD lets the kernel bury them.
FIRST = 'hostname "$1" && mount --bind "$2" /etc/hosts && trap "" CHLD && echo up && exec sleep infinity'


@dataclass(slots=True)
class Host:
    """One host: where to run what. `first` is the PID of its first process, seen from outside; None: not set apart."""

    name: str
    node: Node
    first: int | None = None
    started: list[subprocess.Popen[Any]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.node.address

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs `arguments` on this host."""
        if self.first is None:
            return self.node.command(*arguments)
        enter = ("nsenter", f"--target={self.first}", "--net", "--uts", "--pid", "--mount")
        return [*enter, "env", f"--chdir={ROOT}", *arguments]

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
        """Start a process here; it ends with the bed."""
        process = subprocess.Popen(self.command(*arguments), start_new_session=True, **options)
        self.node.started.append(process)
        return process

    def run(self, *arguments: str, timeout: float = 30) -> subprocess.CompletedProcess[str]:
        """Run a command here to its end."""
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=timeout)


@dataclass(frozen=True, slots=True)
class HostTestbed:
    """Hosts on one switch, and where those stand who look at them from outside."""

    bed: Bed
    folder: Path  # for what is written; gone at the end
    hosts: tuple[Host, ...]
    beside: Node


@contextmanager
def host_testbed(count: int, apart: bool = True) -> Iterator[HostTestbed]:
    """So many hosts, node-1 at 10.77.0.1 and so on, and a place beside them that reaches them all.

    Not `apart`, hosts share PIDs and host name: whoever looks sees the processes of all.
    """
    temporary = tempfile.TemporaryDirectory(prefix="hangdoc-bed-", ignore_cleanup_errors=True)
    with temporary as name, network_testbed(count + 1) as bed:
        folder = Path(name)
        *nodes, beside = bed.nodes
        names = {node.address: f"node-{at}" for at, node in enumerate(nodes, 1)}
        lines = ("127.0.0.1 localhost", *(f"{address} {name}" for address, name in names.items()))
        (folder / "hosts").write_text("\n".join(lines) + "\n")
        beside.link("up", "lo")
        yield HostTestbed(
            bed,
            folder,
            tuple(
                set_apart(node, names[node.address], folder / "hosts") if apart else Host(names[node.address], node)
                for node in nodes
            ),
            beside,
        )


def set_apart(node: Node, name: str, hosts_file: Path) -> Host:
    """A host of its own in the node's network, with `hosts_file` as its /etc/hosts."""
    unshare = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
    outer = node.start(*unshare, "sh", "-c", FIRST, "sh", name, str(hosts_file), stdout=subprocess.PIPE, text=True)
    assert outer.stdout is not None
    if outer.stdout.readline() != "up\n":
        raise RuntimeError(f"no host of its own can be made in {node.name}")
    return Host(name, node, _only_child(outer.pid))


def _only_child(pid: int) -> int:
    limit = time.monotonic() + STARTS_S
    while time.monotonic() < limit:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.01)
    raise RuntimeError(f"process {pid} has no child")


@contextmanager
def torchrun(
    hosts: Sequence[Host], script: Path | str, *arguments: str, env: Mapping[str, str] | None = None, ranks: int = 1
) -> Iterator[Trial]:
    """A job of so many ranks on each host, one torchrun a host, all in one log; nothing of it is left afterwards."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="hangdoc-", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "job.log"
        inherited = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
        given = {**inherited, **of_job(mark, folder, "eth0"), **(env or {})}
        with log.open("wb") as sink:
            started = [
                host.start(
                    *torchrun_command(len(hosts), str(index), hosts[0].address, STORE_PORT, ranks),
                    *("--rdzv-id", mark),
                    str(script),
                    *arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    env=given,
                )
                for index, host in enumerate(hosts)
            ]
        trial = Trial(started[0], mark, Path(folder), log)
        try:
            yield trial
        finally:
            trial.end()


def of_job(mark: str, folder: str, interface: str) -> dict[str, str]:
    """What the processes of a job have in their environment: who started it, and where it may leave what."""
    own = {MARK: mark, "TMPDIR": folder, "GLOO_SOCKET_IFNAME": interface}
    return {**own, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def torchrun_command(nodes: int, node: str, address: str, port: int, ranks: int = 1) -> list[str]:
    """How torchrun is started on one of so many nodes; the store is at `address` and `port`."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes), "--node-rank", node),
        *("--master-addr", address, "--master-port", str(port), "--nproc-per-node", str(ranks)),
    ]


def with_hangdoc(folder: Path) -> str:
    """A PATH on which a plain `hangdoc` is the one of this working tree, by a command in `folder`/bin."""
    command = folder / "bin" / "hangdoc"
    if not command.exists():
        command.parent.mkdir(exist_ok=True)
        command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m hangdoc.cli "$@"\n')
        command.chmod(0o755)
    return os.pathsep.join((str(command.parent), str(Path(sys.executable).parent), requirements.SYSTEM_PATH))
