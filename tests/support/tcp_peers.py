"""Processes that hold real TCP connections: `TcpPeer.start().do("connect 127.0.0.1 7000")`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hangdoc.evidence import Target
from tests.support.testbeds.network import Node

PROGRAM = """
import os, socket, sys
held = []
for line in sys.stdin:
    verb, *rest = line.split()
    if verb == "listen":
        family = socket.AF_INET6 if ":" in rest[0] else socket.AF_INET
        held.append(socket.create_server((rest[0], int(rest[1])), family=family, dualstack_ipv6=rest[0] == "::"))
    elif verb == "accept":
        held.append(held[0].accept()[0])
    elif verb == "connect":
        held.append(socket.create_connection((rest[0], int(rest[1])), 5))
    elif verb == "dial":  # does not wait for an answer
        held.append(socket.socket())
        held[-1].setblocking(False)
        held[-1].connect_ex((rest[0], int(rest[1])))
    elif verb == "send":
        held[-1].settimeout(float(rest[1]) if len(rest) > 1 else 5)
        try:
            held[-1].sendall(b"x" * int(rest[0]))
        except TimeoutError:
            pass  # what fits is sent
    elif verb == "read":
        left = int(rest[0])
        while left:
            left -= len(held[-1].recv(left))
    elif verb == "become":  # another user, and another program, with the same sockets
        for one in held:
            os.set_inheritable(one.fileno(), True)
        os.setuid(int(rest[0]))
        print("ok", flush=True)
        os.execv("/bin/sleep", ["sleep", "60"])
    print("ok", flush=True)
"""


class TcpPeer:
    """A process that opens, fills and drains connections on command."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    @classmethod
    def start(cls, node: Node | None = None) -> TcpPeer:
        """In a node of a test bed, or here."""
        command = [sys.executable, "-c", PROGRAM]
        return cls(
            subprocess.Popen(
                node.command(*command) if node else command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )

    def do(self, command: str) -> None:
        """Run a command and wait until it is done."""
        self.say(command)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ok\n", command

    def say(self, command: str) -> None:
        """Hand over a command without waiting."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def target(self, rank: int, world_size: int = 2) -> Target:
        return Target(self.pid, 0, "here", rank, world_size=world_size)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def tcp_peers(*nodes: Node | None) -> Iterator[tuple[TcpPeer, ...]]:
    """A talker in each node (None: here), ended with the context."""
    talkers: list[TcpPeer] = []
    try:
        for node in nodes:
            talkers.append(TcpPeer.start(node))
        for talker in talkers:
            talker.do("nothing")  # before it has answered it may still be in our namespace
        yield tuple(talkers)
    finally:
        for talker in talkers:
            talker.end()


def join(server: TcpPeer, client: TcpPeer, address: str, port: int, bind: str | None = None) -> None:
    """Connect client to server and let a kilobyte cross each way."""
    server.do(f"listen {bind or address} {port}")
    client.do(f"connect {address} {port}")
    server.do("accept")
    for one, other in ((server, client), (client, server)):
        one.do("send 1000")
        other.do("read 1000")
