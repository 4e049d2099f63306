"""Several hosts on one machine, for the reproducers of network failures: network namespaces connected by a switch.

Needs root and `ip`. All names contain the PID of this process; everything is removed at the end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PORT = "29500"  # of the store, on the first host
SOCKET_IFNAME = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True)
class Hosts:
    """Namespaces with addresses `PREFIX.1`, `PREFIX.2` ..., on a switch with ports `port0`, `port1` ..."""

    nics: Sequence[str]  # name of the interface on each host
    prefix: str = "10.88.0"
    names: dict[int, str] = field(default_factory=dict)  # host names that differ from the machine's own
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.nics)

    @property
    def switch(self) -> str:
        return f"hangdoc-{os.getpid()}-switch"

    def name(self, index: int) -> str:
        return f"hangdoc-{os.getpid()}-host{index}"

    def address(self, index: int) -> str:
        return f"{self.prefix}.{index + 1}"

    def ip(self, where: int | None, *arguments: str) -> None:
        """Run `ip` on a host; None: on the switch."""
        subprocess.run(["ip", "-n", self.switch if where is None else self.name(where), *arguments], check=True)

    def run(self, where: int | None, *command: str) -> None:
        """Run a command on a host; None: on the switch."""
        name = self.switch if where is None else self.name(where)
        subprocess.run(["ip", "netns", "exec", name, *command], check=True)

    def plug(self, index: int, interface: str, port: str, address: str) -> None:
        """Connect an interface of a host to a port of the switch."""
        self.ip(None, "link", "add", port, "type", "veth", "peer", "name", interface, "netns", self.name(index))
        self.ip(None, "link", "set", port, "master", "bridge", "up")
        self.ip(index, "address", "add", f"{address}/24", "dev", interface)
        self.ip(index, "link", "set", interface, "up")

    def call(self, index: int, name: str, *lines: str) -> None:
        """Give a host a name and a hosts file; `ip netns exec` mounts it over the machine's own."""
        self.names[index] = name
        folder = Path("/etc/netns", self.name(index))
        folder.mkdir(parents=True)
        (folder / "hosts").write_text("\n".join(("127.0.0.1 localhost", *lines, "")))
        (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")

    # --- processes ---

    def torchrun(self, index: int, script: str, *arguments: str, master: str | None = None) -> list[str]:
        """Command of one host's launcher, with one rank; the store is on the first host."""
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(self.count)]
        launcher += ["--node-rank", str(index), "--nproc-per-node", "1"]
        launcher += ["--master-addr", master or self.address(0), "--master-port", PORT]
        return [*launcher, os.path.abspath(script), *arguments]

    def start(self, index: int, *command: str, **variables: str) -> None:
        """Start a process on a host with these variables; an empty variable is not set."""
        inherited = {key: value for key, value in os.environ.items() if key != SOCKET_IFNAME}
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.names.get(index, "")]
        self.started.append(
            subprocess.Popen(
                ["ip", "netns", "exec", self.name(index), *(named if index in self.names else ()), *command],
                env={**inherited, **{key: value for key, value in variables.items() if value}},
                stdout=None if self.started else subprocess.PIPE,
                stderr=None if self.started else subprocess.STDOUT,
                text=True,
            )
        )

    def wait(self, on_line: Callable[[str], None] = lambda line: None) -> int:
        """Wait for all processes; returns the highest exit code. `on_line` gets each line of the first process."""
        for line in self.started[0].stdout or ():
            print(line, end="", flush=True)
            on_line(line)
        return max(process.wait() for process in self.started)

    def job(
        self,
        script: str,
        arguments: Sequence[str],
        on_line: Callable[[str], None] = lambda line: None,
        interfaces: Sequence[str] | None = None,
    ) -> int:
        """Train with one rank per host; returns the exit code. `interfaces`: GLOO_SOCKET_IFNAME of each host."""
        for index, interface in enumerate(interfaces or self.nics):
            self.start(index, *self.torchrun(index, script, *arguments), **{SOCKET_IFNAME: interface})
        return self.wait(on_line)

    # --- set-up and removal ---

    def build(self) -> None:
        for name in (self.switch, *map(self.name, range(self.count))):
            subprocess.run(["ip", "netns", "add", name], check=True)
        self.ip(None, "link", "add", "bridge", "type", "bridge")
        self.ip(None, "link", "set", "bridge", "up")
        for index, interface in enumerate(self.nics):
            self.ip(index, "link", "set", "lo", "up")
            self.plug(index, interface, f"port{index}", self.address(index))

    def remove(self) -> None:
        for name in (*map(self.name, range(self.count)), self.switch):
            inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
            for pid in inside.stdout.split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)


@contextmanager
def hosts(count: int, prefix: str = "10.88.0", nics: Sequence[str] = ()) -> Iterator[Hosts]:
    """Build `count` hosts; they are removed however this process ends, except by SIGKILL. `nics`: default `eth0`."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        sys.exit("this job builds network namespaces: run it as root, with `ip` installed (apt-get install iproute2)")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    made = Hosts(tuple(nics) or ("eth0",) * count, prefix)
    try:
        made.build()
        yield made
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        made.remove()
