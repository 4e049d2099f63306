"""Hosts reached by ssh: a real sshd with real keys on each, and a collector with an address of its own.

    with ssh_testbed(hosts=3) as bed, bed.job(script) as trial:
        trial.wait_log("loss", 90)
        done = bed.hangdoc("watch", "--nodes", bed.nodes, "--once", "--json")

The hosts are 10.77.0.1, 10.77.0.2, ..., by name node-1, node-2, ...; what runs the collector has the next address.
Needs root, iproute2 and OpenSSH. The user's own ssh configuration is one that this bed writes: `ssh node-1` works
there with no option, and on every host a plain `hangdoc` is the one of this working tree.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from hangdoc.demo.harness import Trial
from tests.support import requirements
from tests.support.testbeds import network
from tests.support.testbeds.hosts import Host, host_testbed, torchrun, with_hangdoc
from tests.support.testbeds.network import Bed, Node

COMMANDS = ("ssh", "sshd", "ssh-keygen", "iptables", "unshare", "nsenter")
LISTENS_S = 10.0  # for an sshd to answer

SSHD = """\
Port 22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
UseDNS no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
MaxStartups 200
SetEnv PATH={path}
"""

SSH = """\
{aliases}
Host *
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""


def require() -> None:
    """Skip the calling test where there can be no such bed; with HANGDOC_NO_SKIP=1 fail it."""
    network.require()
    requirements.met(requirements.commands(COMMANDS, "openssh-server openssh-client iptables util-linux"))


@dataclass(slots=True)
class SshTestbed:
    """The hosts, the collector, and what can go wrong between them. Faults count hosts from 0."""

    bed: Bed
    folder: Path
    hosts: tuple[Host, ...]
    collector: Node
    sshd: dict[int, subprocess.Popen[Any]] = field(default_factory=dict)

    @property
    def nodes(self) -> str:
        """The node set of all hosts, by address."""
        return f"10.77.0.[1-{len(self.hosts)}]"

    @property
    def ssh_config(self) -> Path:
        return self.folder / "ssh_config"

    # --- where hangdoc runs ---

    def environment(self) -> dict[str, str]:
        """The collector's user: `ssh` and `hangdoc` of this bed are found first."""
        return {**os.environ, "PATH": with_hangdoc(self.folder)}

    def hangdoc(self, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run the command line at the collector, to its end."""
        command = self.collector.command("hangdoc", *arguments)
        return subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=timeout)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
        """Start a process at the collector; it ends with the bed."""
        return self.collector.start(*arguments, env=self.environment(), **options)

    def ssh(self, index: int, *arguments: str, timeout: float = 30) -> subprocess.CompletedProcess[str]:
        """`ssh ADDRESS ARGUMENTS` at the collector."""
        command = self.collector.command("ssh", self.hosts[index].address, *arguments)
        return subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=timeout)

    def job(
        self, script: Path | str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Trial]:
        """A torchrun job of one rank on each host."""
        return torchrun(self.hosts, script, *arguments, env=env)

    # --- what goes wrong, and its end ---

    def serve(self, index: int) -> None:
        """Start the host's sshd, and wait until it answers."""
        command = (_found("sshd"), "-D", "-e", "-f", str(self.folder / "sshd_config"))
        with (self.folder / f"sshd-{index}.log").open("ab") as log:
            self.sshd[index] = self.hosts[index].start(*command, stdout=log, stderr=log)
        _wait_port(self.hosts[index])

    def stop(self, index: int) -> None:
        """Kill the host's sshd and every session of it."""
        for process in (*self.sessions(index), *_and_children(self.sshd[index].pid)):
            _kill(process, signal.SIGKILL)
        self.sshd[index].wait(10)

    def sessions(self, index: int) -> list[psutil.Process]:
        """The processes of the host's sshd that serve somebody, and what they run there."""
        listeners = [process for process in _and_children(self.sshd[index].pid) if process.name() == "sshd"][:1]
        return [session for listener in listeners for session in listener.children(recursive=True)]

    def freeze(self, index: int) -> None:
        """Let the host's sshd and every session of it stand still, as where a host swaps itself to death.

        Connections stay open and new ones are taken, by the kernel; nobody answers.
        """
        for process in _and_children(self.sshd[index].pid):
            _kill(process, signal.SIGSTOP)

    def thaw(self, index: int) -> None:
        for process in _and_children(self.sshd[index].pid):
            _kill(process, signal.SIGCONT)

    def block(self, index: int) -> None:
        """Let what is sent to the host's sshd vanish, as behind a firewall that drops; the job is not concerned."""
        self._firewall(index, "-A")

    def unblock(self, index: int) -> None:
        self._firewall(index, "-D")

    def _firewall(self, index: int, action: str) -> None:
        done = self.hosts[index].run("iptables", action, "INPUT", "-p", "tcp", "--dport", "22", "-j", "DROP")
        assert done.returncode == 0, done.stderr

    def cut(self, index: int) -> None:
        """Let nothing pass from or to the host; nobody is told."""
        self.bed.cut(index)

    def mend(self, index: int) -> None:
        self.bed.switch.ip("link", "set", f"port{index}", "master", "bridge")


@contextmanager
def ssh_testbed(hosts: int = 3, apart: bool = True) -> Iterator[SshTestbed]:
    """A bed of so many hosts, each with an sshd that answers; `apart` as in `host_testbed`."""
    with host_testbed(hosts, apart) as made:
        bed = SshTestbed(made.bed, made.folder, made.hosts, made.beside)
        _write(bed)
        for index in range(hosts):
            bed.serve(index)
        yield bed


def _write(bed: SshTestbed) -> None:
    """Keys, configurations, and the commands that the users of the bed find first."""
    folder = bed.folder
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd insists on it
    for key in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    host_key = (folder / "host_key.pub").read_text()
    aliases = "\n".join(f"Host {host.name}\n  HostName {host.address}" for host in bed.hosts)
    texts = {
        "known_hosts": "".join(f"{host.address} {host_key}" for host in bed.hosts),
        "sshd_config": SSHD.format(folder=folder, path=with_hangdoc(folder)),
        "ssh_config": SSH.format(folder=folder, aliases=aliases),
        # OpenSSH takes the home folder from passwd, not from HOME.
        "bin/ssh": f'#!/bin/sh\nexec {_found("ssh")} -F {folder}/ssh_config "$@"\n',
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "bin" / "ssh").chmod(0o755)


def _found(command: str) -> str:
    """Its full path: sshd insists on it."""
    return shutil.which(command, path=requirements.SYSTEM_PATH) or command


def _wait_port(host: Host) -> None:
    """Wait until the host's sshd listens; asked from inside, where no fault of the network is in the way."""
    limit = time.monotonic() + LISTENS_S
    ask = "import socket; socket.create_connection(('127.0.0.1', 22), 1).close()"
    while host.run(sys.executable, "-S", "-c", ask).returncode != 0:
        if time.monotonic() > limit:
            raise RuntimeError(f"the sshd of {host.name} does not answer")
        time.sleep(0.05)


def _and_children(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kill(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
