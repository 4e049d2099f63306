"""Start hangdocs that examine one rank over and over: `examiner.py PID [PYSPY]`.

Each line on stdin, `watch`, `agent` or `daemon`, starts one, and its PID is written to stdout; once it
has ended, its exit code.
They are forked from this process, which has imported everything: hangdoc takes longer to start than to examine a rank.
Each ends as hangdoc does: through `cli.main`, with its handling of signals, and the end of the interpreter.
"""

from __future__ import annotations

import os
import signal
import sys
from threading import Thread
from typing import Any, cast
from unittest.mock import patch

from hangdoc import cli
from hangdoc.daemon.health import Steps
from hangdoc.daemon.probe_limits import limited
from hangdoc.evidence import Target
from hangdoc.fleet import protocol
from hangdoc.system import procfs, programs
from hangdoc.watch import agent, sources
from hangdoc.watch.sampler import Sampler
from probes import Probe, Tier
from probes.stacks import StacksProbe


def watch(pid: int) -> int:
    """What `hangdoc watch` does that pauses a rank. No dump is kept from one round to the next, so each takes one."""
    stat = procfs.stat(pid)
    target = Target(pid, stat.start_ticks if stat else 0, "here", 0)
    while True:
        Sampler("here", (target,), stacks()).round(Tier.EXAMINE, (pid,))


def rounds(pid: int) -> int:
    """What `hangdoc daemon` does that pauses a rank: in a thread of its own, with the limits of probes."""
    stat, steps = procfs.stat(pid), Steps()
    target = Target(pid, stat.start_ticks if stat else 0, "here", 0)

    def run() -> None:
        while True:
            Sampler("here", (target,), limited(stacks(), steps, print)).round(Tier.EXAMINE, (pid,))

    thread = Thread(target=run, daemon=True)
    steps.hand_over(thread)
    thread.start()
    thread.join()
    return 1


def stacks() -> tuple[Probe, ...]:
    return (cast(Probe, StacksProbe()),)


def serve(pid: int) -> int:
    """An agent whose collector asks it to examine the rank after each answer, without the probes that take long."""

    class LocalSource(sources.LocalSource):
        def round(self, tier: Tier, still: Any = ()) -> Any:
            self.sampler.probes = stacks()
            return super().round(tier, still)

    def ask() -> None:
        arguments = {"": protocol.HostArguments(still=(pid,))}
        for number, _ in enumerate(answers):  # the first is the greeting
            os.write(command, protocol.line(protocol.Command("examine", number, arguments)))

    commands, command = os.pipe()
    answered, answer = os.pipe()
    with (
        os.fdopen(answered, "rb") as answers,
        os.fdopen(answer, "wb") as out,
        patch.object(agent, "LocalSource", lambda slurm: LocalSource((pid,))),
    ):
        Thread(target=ask, daemon=True).start()
        agent.serve(commands, out)
    return 0


def main() -> None:
    pid = int(sys.argv[1])
    if len(sys.argv) > 2:
        programs.py_spy = lambda: sys.argv[2]
    while what := sys.stdin.readline().strip():
        child = os.fork()
        if child == 0:
            break
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    else:
        return
    os.setsid()  # a Ctrl-C of the tests' terminal is not for it
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    work = {"watch": watch, "agent": serve, "daemon": rounds}[what]
    cli.run = lambda arguments: work(pid)
    cli.main()


main()
