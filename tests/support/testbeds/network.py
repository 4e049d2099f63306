"""Hosts on one machine: network namespaces joined by veth pairs into a bridge.

Needs root and iproute2. Everything made is named after this process and removed on exit from the context.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.support import requirements

_SERIAL = count()


def why_not() -> str | None:
    """Why no namespaces can be made here, or None where they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need `ip` (apt-get install iproute2)"
    name = f"hdprobe{os.getpid()}-{next(_SERIAL)}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode != 0:
        return f"no network namespace can be made: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return None


def require() -> None:
    """Skip the calling test where there can be no namespaces; with HANGDOC_NO_SKIP=1 fail it."""
    requirements.met(why_not())


@dataclass(slots=True)
class Node:
    """One host of the bed: a namespace with one interface, `eth0`, and loopback."""

    name: str
    address: str
    started: list[subprocess.Popen[Any]] = field(default_factory=list)

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs `arguments` in this namespace."""
        return ["ip", "netns", "exec", self.name, *arguments]

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
        """Start a process here; it is killed, with its process group, when the bed is taken down."""
        process = subprocess.Popen(self.command(*arguments), start_new_session=True, **options)
        self.started.append(process)
        return process

    def ip(self, *arguments: str) -> None:
        _run("ip", "-n", self.name, *arguments)

    def link(self, state: str, interface: str = "eth0") -> None:
        """Take the link `up` or `down`, from inside."""
        self.ip("link", "set", interface, state)

    def swallow(self, address: str) -> None:
        """Let what is sent to `address` vanish, as behind a firewall that drops: no answer, no error."""
        self.ip("neigh", "replace", address, "lladdr", "02:00:00:00:00:99", "dev", "eth0")


@dataclass(slots=True)
class Bed:
    switch: Node
    nodes: tuple[Node, ...]

    def unplug(self, index: int) -> None:
        """Pull the cable at the switch: the node's own interface stays up, but loses its carrier."""
        self.switch.link("down", f"port{index}")

    def cut(self, index: int) -> None:
        """Let nothing pass, while both ends keep their carrier."""
        self.switch.ip("link", "set", f"port{index}", "nomaster")


@contextmanager
def network_testbed(nodes: int = 2, prefix: str = "10.77.0") -> Iterator[Bed]:
    """`nodes` namespaces with addresses PREFIX.1, PREFIX.2, ... that reach one another."""
    name = f"hangdoc-test-{os.getpid()}-{next(_SERIAL)}"
    # The switch has a namespace of its own: no firewall of the machine sees what crosses it.
    switch = Node(f"{name}-switch", "")
    bed = Bed(switch, tuple(Node(f"{name}-{index}", f"{prefix}.{index + 1}") for index in range(nodes)))
    try:
        for namespace in (switch, *bed.nodes):
            _run("ip", "netns", "add", namespace.name)
        switch.ip("link", "add", "bridge", "type", "bridge")
        switch.link("up", "bridge")
        for index, node in enumerate(bed.nodes):
            switch.ip("link", "add", f"port{index}", "type", "veth", "peer", "name", "eth0", "netns", node.name)
            switch.ip("link", "set", f"port{index}", "master", "bridge", "up")
            node.ip("address", "add", f"{node.address}/24", "dev", "eth0")
            node.link("up", "lo")
            node.link("up")
        yield bed
    finally:
        _take_down(bed)


def _take_down(bed: Bed) -> None:
    for node in bed.nodes:
        for process in node.started:
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.wait()
        _run("ip", "netns", "del", node.name, check=False)
    _run("ip", "netns", "del", bed.switch.name, check=False)


def _run(*command: Any, check: bool = True) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def free_port() -> int:
    """A TCP port of this namespace that nobody uses."""
    import socket

    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
