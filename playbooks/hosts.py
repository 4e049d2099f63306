"""Several hosts on one machine, for the reproducers of network failures: network namespaces on one switch, with
torchrun started on each of them. Needs root and `ip`. All of it is named after this process and removed at the end.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

PORT = "29500"


@dataclass(frozen=True)
class Hosts:
    """Namespaces with an interface `eth0` each, `PREFIX.1`, `PREFIX.2` ... on a switch whose ports are `port0` ..."""

    count: int
    prefix: str = "10.88.0"
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def switch(self) -> str:
        return f"hangdoc-{os.getpid()}-switch"

    def name(self, index: int) -> str:
        return f"hangdoc-{os.getpid()}-host{index}"

    def address(self, index: int) -> str:
        return f"{self.prefix}.{index + 1}"

    def ip(self, where: int | None, *arguments: str) -> None:
        """`ip` on a host, or (None) at the switch."""
        subprocess.run(["ip", "-n", self.switch if where is None else self.name(where), *arguments], check=True)

    def run(self, where: int | None, *command: str) -> None:
        """A command on a host, or at the switch."""
        name = self.switch if where is None else self.name(where)
        subprocess.run(["ip", "netns", "exec", name, *command], check=True)

    def plug(self, index: int, interface: str, port: str, address: str) -> None:
        """A cable from the switch to a host."""
        self.ip(None, "link", "add", port, "type", "veth", "peer", "name", interface, "netns", self.name(index))
        self.ip(None, "link", "set", port, "master", "bridge", "up")
        self.ip(index, "address", "add", f"{address}/24", "dev", interface)
        self.ip(index, "link", "set", interface, "up")

    def job(
        self,
        script: str,
        arguments: Sequence[str],
        on_line: Callable[[str], None] = lambda line: None,
        env: Mapping[str, str] | None = None,
    ) -> int:
        """Train with a rank on each host, and return the exit code; `on_line` gets each line of the first one."""
        for index in range(self.count):
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(self.count)]
            torchrun += ["--node-rank", str(index), "--nproc-per-node", "1"]
            torchrun += ["--master-addr", self.address(0), "--master-port", PORT]
            self.started.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", self.name(index), *torchrun, os.path.abspath(script), *arguments],
                    env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0", **(env or {})},
                    stdout=subprocess.PIPE if index == 0 else None,
                    stderr=subprocess.STDOUT if index == 0 else None,
                    text=True,
                )
            )
        for line in self.started[0].stdout or ():
            print(line, end="", flush=True)
            on_line(line)
        return max(process.wait() for process in self.started)

    def build(self) -> None:
        for name in (self.switch, *map(self.name, range(self.count))):
            subprocess.run(["ip", "netns", "add", name], check=True)
        self.ip(None, "link", "add", "bridge", "type", "bridge")
        self.ip(None, "link", "set", "bridge", "up")
        for index in range(self.count):
            self.ip(index, "link", "set", "lo", "up")
            self.plug(index, "eth0", f"port{index}", self.address(index))

    def remove(self) -> None:
        for name in (*map(self.name, range(self.count)), self.switch):
            inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
            for pid in inside.stdout.split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


@contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """So many hosts, taken down again whatever ends this process (but SIGKILL)."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        sys.exit("this job builds network namespaces: run it as root, with `ip` installed (apt-get install iproute2)")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    made = Hosts(count)
    try:
        made.build()
        yield made
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        made.remove()
