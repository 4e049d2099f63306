"""Agents of a fleet; the one of n2 lies or floods: `lying_agent.py SCENE HOST agent`."""

from __future__ import annotations

import os
import sys

from msgspec.structs import replace

from hangdoc.evidence import Connection, Process, RankEvidence, Snapshot, Sockets, Target, ThreadCpu, Unseen
from hangdoc.fleet import protocol
from hangdoc.fleet.encoder import Encoder

SCENE, HOST = sys.argv[1:3]
RANKS = {"n1": (0,), "n2": (), "n3": (1, 2)}
CONNECTIONS = {  # of the honest: each shows its end
    0: (Connection("10.0.0.1", 29500, "10.0.0.3", 5001, "established"),),
    1: (Connection("10.0.0.3", 5001, "10.0.0.1", 29500, "established"),),
}


def say(message: object) -> None:
    sys.stdout.buffer.write(protocol.line(message))
    sys.stdout.buffer.flush()


def rank(number: int | None, pid: int, world: int = 3, **more: object) -> RankEvidence:
    target = Target(pid, 7, HOST, number, world_size=world, master="10.0.0.1:29500", **more)  # type: ignore[arg-type]
    cpu = Process(pid, 1, 0, "S", (), None, None, 1.0, 0.1, 0, (ThreadCpu(1, "python", "S", 0.1),))
    return RankEvidence(target, True, {"cpu": cpu, "sockets": Sockets(CONNECTIONS.get(number or 0, ()))})


Claims = list[tuple[RankEvidence, tuple[str, int]]]  # ranks, the process that each is said to be, and how near


def honest() -> Claims:
    return [(rank(number, 100 + number), (f"{HOST} pid:[1] {100 + number} 7", 4)) for number in RANKS[HOST]]


def lies() -> Claims:
    mine = "n2 pid:[1]"
    theirs = [(_alone(0, 100), ("n1 pid:[1] 100 7", 99))]
    dead = replace(_alone(1, 500), alive=False, exit="signal 9 (SIGKILL)")
    absurd = (_alone(10**15, 501, 10**18), _alone(-1, 502, -5))
    return {
        "claims": theirs,
        "claims-with-its-boot-id": theirs,
        "same-rank": [(_alone(0, 500), (f"{mine} 500 7", 4))],
        "dead-rank": [(dead, (f"{mine} 500 7", 4))],
        "gone-rank": [(replace(_alone(1, -2), alive=False), ("n2 none 10.0.0.1:29500 1", 0))],
        "absurd": [(one, (f"{mine} {one.target.pid} 7", 4)) for one in absurd],
    }.get(SCENE, [])


def _alone(number: int, pid: int, world: int = 3) -> RankEvidence:
    return replace(rank(number, pid, world), records={})


def flood() -> None:
    """Write as fast as one can, whatever is asked."""
    if SCENE == "flood-line":
        while True:
            os.write(1, b"x" * (1 << 20))
    if SCENE == "flood-stderr":
        while True:
            os.write(2, b"x" * (1 << 20))
    piece = {"flood-pongs": protocol.line(protocol.Pong()), "flood-greetings": b"Welcome!\n"}[SCENE] * 4096
    while True:
        os.write(1, piece)


def bomb(to: int) -> bytes:
    """An answer that is small on the wire and large in memory."""
    head = b'{"to":%d,"at_s":1.0,"time":"","tier":"look","ranks":' % to
    if SCENE == "bomb-parts":
        return head + b'[],"parts":{' + b",".join(b'"%d":1' % n for n in range(1_000_000)) + b"}}\n"
    if SCENE == "bomb-depth":
        return head + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}\n"
    if SCENE == "bomb-unseen":
        return head + b'[],"unseen":[' + b",".join([b'{"probe":"x","why":"y"}'] * 500_000) + b"]}\n"
    if SCENE == "bomb-ranks":
        return head + b"[" + b",".join([b'{"target":1,"alive":true,"records":{}}'] * 100_000) + b"]}\n"
    groups = [
        b'{"address":%d,"name":"g","ranks":[[%d,1048575]],"default":true,"backend":null}' % (n, n) for n in range(9)
    ]
    record = b'{"groups":[' + b",".join(groups) + b'],"rank":0,"world_size":1,"local_rank":0,"master":null}'
    target = b'{"pid":1,"start_ticks":1,"host":"n2","rank":0}'
    seen = b'[{"target":1,"alive":true,"records":{"groups":2}}]'
    return head + seen + b',"parts":{"1":' + target + b',"2":' + record + b"}}\n"


def main() -> None:
    liar = HOST == "n2"
    if liar and SCENE == "flood-line":
        flood()
    boot = "n1" if liar and SCENE == "claims-with-its-boot-id" else HOST
    say(protocol.Hello(host=HOST, token=f"{ord(HOST[-1]):012x}", boot=boot))
    if liar and SCENE == "two-hellos":
        say(protocol.Hello(host=HOST, token=f"{ord(HOST[-1]):012x}", boot="n1"))
    if liar and SCENE.startswith("flood"):
        flood()
    writer, number = Encoder(), 0
    for line in sys.stdin.buffer:
        if line == protocol.PING:
            say(protocol.Pong())
            continue
        command = protocol.parse(line, protocol.Command)
        if command.do == "peers":
            asked = next(iter(command.own.values())).peers
            say(protocol.PeersAnswer(asked if liar else ()))  # no honest host shows the agent of n2
            continue
        number += 1
        if liar and SCENE.startswith("bomb"):
            sys.stdout.buffer.write(bomb(command.id))
            sys.stdout.buffer.flush()
            continue
        seen = lies() if liar else honest()
        skip = {pid for own in command.own.values() for pid in own.skip}
        kept = [(one, about) for one, about in seen if one.target.pid not in skip]
        unseen = (Unseen("agent", "all is lost"), Unseen("x" * 10_000, "y" * 10_000)) if liar else ()
        shot = Snapshot(
            HOST, 1e6 * ord(HOST[-1]) + number, "", tuple(one for one, _ in kept), unseen=unseen, tier="look"
        )
        answer = writer.answer(command.id, shot, {one.target: about for one, about in kept})
        say(answer)
        if liar and SCENE == "unasked":
            say(replace(answer, to=command.id + 1))


main()
