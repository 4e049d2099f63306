"""`hangdoc agent`: samples the ranks of its host when told to, writes what it saw, and ends with its input."""

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
from hangdoc.fleet.encoder import Writer
from hangdoc.system import procfs
from hangdoc.watch.sources import LocalSource
from probes import Tier

TIERS = {"look": Tier.LOOK, "inspect": Tier.EXAMINE, "examine": Tier.EXAMINE}
PEERS = b'{"do":"peers"'
GRACE_S = 5.0  # for the round at hand when the input has ended
MOST_LINE_BYTES = 64 << 20  # a command to thousands of agents behind one gateway names PIDs of each
CLEAN_S = 1.0  # for what it has started, after that


def serve(commands: int, answers: BinaryIO) -> None:
    """Answer each command, a line each, until the input (a descriptor) ends or says `stop`.

    Raises HangdocError for a line that is no command.
    """
    out = Out(answers)
    token = secrets.token_hex(6)
    agent_presence.show(token)
    out.write(protocol.Hello(host=platform.node(), token=token, boot=boot_id()))
    here = LocalSource(slurm=os.environ.get("SLURM_JOB_ID")).find()  # srun, which started us, says for which job
    writer, about = Writer(), About()
    for command in _commands(commands, out, token):
        if command.do == "stop":
            return
        own = command.of(token)
        here.drop(frozenset(own.forget))
        if command.fresh:
            here.rediscover()
        here.skip = frozenset(own.skip)
        here.sampler.ask = frozenset(command.ask)
        (shot,) = here.round(TIERS[command.do], [(here.sampler.host, pid) for pid in own.still])
        out.write(writer.answer(command.id, shot, about.processes([rank.target for rank in shot.ranks])))


class Out:
    """The answers' stream, which two threads write to."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._lock = stream, Lock()

    def write(self, message: object) -> None:
        with self._lock:
            self._stream.write(protocol.line(message))
            self._stream.flush()


def _commands(descriptor: int, out: Out, token: str) -> Iterator[protocol.Command]:
    """The commands. `ping` and `peers` are answered at once, whatever takes long meanwhile; and when the input has
    ended while a probe hangs (a dead mount), the process ends all the same."""
    waiting: SimpleQueue[bytes] = SimpleQueue()

    def read() -> None:
        for line in _lines(descriptor):
            if line == protocol.PING:
                out.write(protocol.Pong())
            elif line.startswith(PEERS):
                if asked := protocol.parse(line, protocol.Command).of(token).peers:
                    out.write(protocol.Peers(agent_presence.shown(asked)))
            else:
                waiting.put(line)
        waiting.put(b"")
        time.sleep(GRACE_S)
        _give_up()

    Thread(target=read, name="commands", daemon=True).start()
    while line := _newest(waiting):
        try:
            command = protocol.parse(line, protocol.Command)
            if command.do not in (*TIERS, "stop"):
                raise ValueError(command.do)
        except ValueError:
            raise HangdocError(f"no command of an agent: {line[:80]!r}; `hangdoc watch --nodes` talks to it") from None
        yield command


def _give_up() -> NoReturn:
    """End, whatever hangs; what was started for the round (a native dump, which holds a rank) is ended with it."""
    main = main_thread().ident
    if main is not None and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        signal.pthread_kill(main, signal.SIGTERM)
        time.sleep(CLEAN_S)
    os._exit(1)


def _newest(waiting: SimpleQueue[bytes]) -> bytes:
    """The next line; of several that have come while a round took long the last, for each asks for all of it."""
    line = waiting.get()
    while line and not waiting.empty():
        if not (newer := waiting.get()):  # the end comes after the answer
            waiting.put(newer)
            break
        line = newer
    return line


def _lines(descriptor: int) -> Iterator[bytes]:
    """The lines of a descriptor, each with its end. No buffered reader: its lock would outlive the main thread."""
    rest = b""
    while (piece := os.read(descriptor, 1 << 16)) and len(rest) < MOST_LINE_BYTES:  # more is no command: the end
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line + b"\n" for line in whole)


@cache
def boot_id() -> str:
    """What tells this start of this kernel from every other; random(4)."""
    return (procfs.text("/proc/sys/kernel/random/boot_id") or platform.node()).strip()


class About:
    """Which process a rank is, whoever sees it, and how near to us it runs.

    Two agents may see one process: two Slurm nodes on one kernel, an agent in a pod and one on its host. A process is
    known by the kernel it runs on, its innermost PID namespace, its PID there, and its start.
    """

    def __init__(self) -> None:
        self._known: dict[Target, tuple[str, int]] = {}  # of the last round

    def processes(self, targets: Iterable[Target]) -> dict[Target, tuple[str, int]]:
        """`process` of each; what is known of one stays."""
        self._known = {target: self._known.get(target) or self.process(target) for target in targets}
        return self._known

    def process(self, target: Target) -> tuple[str, int]:
        """The text that stands for the process, and how many of its surroundings are ours too."""
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
    """Slurm says which of its nodes a process belongs to: several may run on one kernel."""
    ours = os.environ.get("SLURMD_NODENAME")
    return ours is not None and (procfs.environ(pid) or {}).get("SLURMD_NODENAME") == ours
