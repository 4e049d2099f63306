"""An agent that fails in the way SCENE names: `scripted_agent.py SCENE HOST agent`."""

from __future__ import annotations

import select
import sys
import time

from msgspec.structs import replace

from hangdoc.evidence import Process, RankEvidence, Snapshot, Target, ThreadCpu
from hangdoc.fleet import protocol
from hangdoc.fleet.encoder import Encoder

SCENE, HOST = sys.argv[1:3]
AWAY_S = 5.0
SLOW_S = 6.0  # an answer may take, of an agent that says meanwhile that it is there


def say(message: object) -> None:
    sys.stdout.buffer.write(protocol.line(message))
    sys.stdout.buffer.flush()


def snapshot(number: int) -> Snapshot:
    """One rank, or several of which each host sees all."""
    ranks = range(3) if SCENE.startswith("one-kernel") else [int(HOST.lstrip("n")) - 1]
    cpu = Process(0, 1, 0, "S", (), None, None, 1.0, 0.1 * number, 0, (ThreadCpu(1, "python", "S", 0.1 * number),))
    seen = tuple(
        RankEvidence(
            Target(100 + rank, 7, "as the host calls itself", rank, world_size=3, master="10.0.0.1:29500"),
            True,
            {"cpu": replace(cpu, pid=100 + rank)},
        )
        for rank in ranks
    )
    return Snapshot("as the host calls itself", 1e6 * ord(HOST[-1]) + number, "", seen, tier="look")


def process(pid: int) -> tuple[str, int]:
    """On one kernel each host is nearest to the rank that is its own."""
    if not SCENE.startswith("one-kernel"):
        return f"{HOST} {pid}", 4
    return f"kernel {pid}", 4 if pid == 99 + int(HOST.lstrip("n")) else 2


def work(seconds: float) -> None:
    """Take so long, and say meanwhile that we are there."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([0], [], [], left)[0] and sys.stdin.buffer.readline() == protocol.PING:
            say(protocol.Pong())


def main() -> None:
    if HOST == "n2" and SCENE == "refused":
        sys.exit("ssh: connect to host n2 port 22: Connection refused")
    token = f"{ord(HOST[-1]):012x}"
    if SCENE == "motd":
        print("Welcome to the cluster!", flush=True)
    version = "0.0.1" if HOST == "n2" and SCENE == "version" else protocol.Hello().hangdoc
    boot = "kernel" if SCENE.startswith("one-kernel") else HOST
    say(protocol.Hello(hangdoc=version, host=HOST, token=token, boot=boot))
    writer, number, gone = Encoder(), 0, set[int]()
    for line in sys.stdin.buffer:
        if HOST == "n2" and SCENE == "silent":
            time.sleep(3600)
        if HOST == "n2" and number == {"away": 2, "one-kernel-late": 0, "one-kernel-away": 2}.get(SCENE):
            time.sleep(AWAY_S)
        if line == protocol.PING:
            say(protocol.Pong())
            continue
        if b'"peers"' in line[:13]:
            (asked,) = protocol.parse(line, protocol.Command).own.values()
            say(protocol.PeersAnswer(asked.peers))  # whoever asks is on this kernel
            continue
        number += 1
        if HOST == "n2" and SCENE == "dies" and number == 6:
            sys.exit("Killed")
        if HOST == "n2" and SCENE == "garbage":
            print('{"to":1,"ranks":"none"}', flush=True)
            continue
        command = protocol.parse(line, protocol.Command)
        shot = snapshot(number)
        if HOST == "n2" and SCENE == "slow" and number > 1:
            work(SLOW_S)
        own = command.own.get("", protocol.HostArguments())
        gone.update(own.forget)
        shot = replace(shot, ranks=tuple(r for r in shot.ranks if r.target.pid not in {*own.skip, *gone}))
        about = {rank.target: process(rank.target.pid) for rank in shot.ranks}
        say(writer.answer(command.id, shot, about))


main()
