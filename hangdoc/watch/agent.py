"""`hangdoc agent`: samples the ranks of its host on command, writes its answers, and ends with its input."""

from __future__ import annotations

import os
import platform
import secrets
import signal
import time
from collections.abc import Iterable, Iterator
from functools import cache
from queue import SimpleQueue
from threading import Lock, Thread, main_thread
from typing import BinaryIO, NoReturn

from hangdoc.errors import HangdocError
from hangdoc.evidence import Target
from hangdoc.fleet import agent_presence, protocol
from hangdoc.fleet.encoder import Encoder
from hangdoc.system import procfs
from hangdoc.watch.node_source import NodeSource
from hangdoc.watch.sources import LocalSource
from probes import Tier

TIERS = {"look": Tier.LOOK, "inspect": Tier.EXAMINE, "examine": Tier.EXAMINE}
PEERS = b'{"do":"peers"'
GRACE_S = 5.0  # for the current round, after the input has ended
MAX_LINE_BYTES = 64 << 20  # a command to thousands of agents behind one gateway lists PIDs of each
CLEAN_S = 1.0  # for child processes, after that


def serve(commands: int, answers: BinaryIO) -> None:
    """Answer each command with one line, until the input (a descriptor) ends or a `stop` arrives.

    Raises HangdocError for a line that is not a command.
    """
    out = AnswerStream(answers)
    token = secrets.token_hex(6)
    agent_presence.show_token(token)
    out.write(protocol.Hello(host=platform.node(), token=token, boot=boot_id()))
    source = NodeSource(LocalSource(slurm=os.environ.get("SLURM_JOB_ID"))).find()  # set by srun
    writer, ids = Encoder(), ProcessIds()
    for command in _commands(commands, out, token):
        if command.do == "stop":
            return
        own = command.of(token)
        source.drop(frozenset(own.forget))
        if command.fresh:
            source.rediscover()
        source.own.skip = frozenset(own.skip)
        source.own.sampler.ask = frozenset(command.ask)
        (shot,) = source.round(TIERS[command.do], [(source.own.sampler.host, pid) for pid in own.still])
        about = source.about or ids.processes([rank.target for rank in shot.ranks])
        out.write(writer.answer(command.id, shot, about))


class AnswerStream:
    """The output stream; two threads write to it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._lock = stream, Lock()

    def write(self, message: object) -> None:
        with self._lock:
            self._stream.write(protocol.line(message))
            self._stream.flush()


def _commands(descriptor: int, out: AnswerStream, token: str) -> Iterator[protocol.Command]:
    """The commands, from a thread of its own.

    The thread answers `ping` and `peers` at once, even during a long round, and ends the process if the input ends
    while a probe hangs (a dead mount).
    """
    waiting: SimpleQueue[bytes] = SimpleQueue()

    def read() -> None:
        for line in _lines(descriptor):
            if line == protocol.PING:
                out.write(protocol.Pong())
            elif line.startswith(PEERS):
                if asked := protocol.parse(line, protocol.Command).of(token).peers:
                    out.write(protocol.PeersAnswer(agent_presence.visible_tokens(asked)))
            else:
                waiting.put(line)
        waiting.put(b"")
        time.sleep(GRACE_S)
        _give_up()

    Thread(target=read, name="commands", daemon=True).start()
    while line := newest(waiting):
        try:
            command = protocol.parse(line, protocol.Command)
            if command.do not in (*TIERS, "stop"):
                raise ValueError(command.do)
        except ValueError:
            raise HangdocError(
                f"not a command for the agent: {line[:80]!r}; use `hangdoc watch --nodes`: it starts the agent"
            ) from None
        yield command


def _give_up() -> NoReturn:
    """Exit even if a probe hangs, ending what the round has started (a native dump, which pauses a rank)."""
    main = main_thread().ident
    if main is not None and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        signal.pthread_kill(main, signal.SIGTERM)
        time.sleep(CLEAN_S)
    os._exit(1)


def newest(waiting: SimpleQueue[bytes]) -> bytes:
    """The next line. If several arrived during a long round, only the last one, because each asks for everything.

    Lines that arrive meanwhile wait: a collector that never pauses still gets its answers.
    """
    line = waiting.get()
    for _ in range(waiting.qsize() if line else 0):
        if not (newer := waiting.get()):  # the end of the input comes after the answer
            waiting.put(newer)
            break
        line = newer
    return line


def _lines(descriptor: int) -> Iterator[bytes]:
    """The lines of a descriptor, with their newline. No buffered reader: its lock would outlive the main thread."""
    rest = b""
    while (piece := os.read(descriptor, 1 << 16)) and len(rest) < MAX_LINE_BYTES:  # a longer line is no command: stop
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line + b"\n" for line in whole)


@cache
def boot_id() -> str:
    """Identifies this boot of this kernel; random(4)."""
    return (procfs.text("/proc/sys/kernel/random/boot_id") or platform.node()).strip()


class ProcessIds:
    """Identifies the process of a rank, whichever agent sees it, and how near it is to this agent.

    Two agents may see one process: two Slurm nodes on one kernel, or an agent in a pod and one on its host. A process
    is identified by its kernel, its innermost PID namespace, its PID there, and its start time.
    """

    def __init__(self) -> None:
        self._known: dict[Target, tuple[str, int]] = {}  # of the last round

    def processes(self, targets: Iterable[Target]) -> dict[Target, tuple[str, int]]:
        """`process` of each target, cached."""
        self._known = {target: self._known.get(target) or self.process(target) for target in targets}
        return self._known

    def process(self, target: Target) -> tuple[str, int]:
        """The identity of the process, and how many namespaces it shares with us."""
        if target.pid <= 0:  # a rank that belongs here and is gone
            return f"{boot_id()} {target.job} {target.master} {target.rank}", 0
        inside = procfs.link(f"/proc/{target.pid}/ns/pid")
        numbers = procfs.status(target.pid).get("NSpid", "").split()
        pid = numbers[-1] if numbers and inside else target.pid
        near = sum(_same_namespace(target.pid, kind) for kind in ("net", "pid", "uts", "mnt"))
        return f"{boot_id()} {inside} {pid} {target.start_ticks}", near + 8 * _same_node(target.pid)


def _same_namespace(pid: int, kind: str) -> bool:
    theirs = procfs.link(f"/proc/{pid}/ns/{kind}")
    return theirs is not None and theirs == procfs.link(f"/proc/self/ns/{kind}")


def _same_node(pid: int) -> bool:
    """Slurm gives the node of a process: several nodes may run on one kernel."""
    ours = os.environ.get("SLURMD_NODENAME")
    return ours is not None and (procfs.environ(pid) or {}).get("SLURMD_NODENAME") == ours
