"""What real processes wait for, followed from process to process."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from hangdoc.evidence import Process, Stack, Stacks
from hangdoc.evidence.waits import Awaited, Chain
from hangdoc.system import procfs
from probes import Probe, Request, Tier
from probes.chain import PROBE, ChainProbe
from probes.cpu import CpuProbe
from tests.support.polling import at_rest, until
from tests.support.probe_targets import Program, started

# Each program says the PID of the process that it waits for, then waits.
HEAD = """
import asyncio, fcntl, json, os, select, signal, socket, subprocess, sys, threading, time
def say(pid): print(json.dumps(pid), flush=True)
def child(code, **more): return subprocess.Popen([sys.executable, "-c", code, *sys.argv[1:]], text=True, **more)
HOLD = "import fcntl, time, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(1, flush=True); time.sleep(99)"
SERVE = '''
import socket, sys, time
server = socket.create_server(("127.0.0.1", 0)); print(server.getsockname()[1], flush=True)
got = server.accept(); time.sleep(99)'''
def connect():
    server = child(SERVE, stdout=subprocess.PIPE)
    return server.pid, socket.create_connection(("127.0.0.1", int(server.stdout.readline())))
"""
SLEEPS = 'child("import time; time.sleep(99)", stdout=subprocess.PIPE)'
WAITS = {
    "pipe": f"p = {SLEEPS}; say(p.pid); p.stdout.read()",
    "child": f"p = {SLEEPS}; say(p.pid); p.wait()",
    "any child": f"p = {SLEEPS}; say(p.pid); os.wait()",
    "poll": f"p = {SLEEPS}; say(p.pid); q = select.poll(); q.register(p.stdout); q.poll()",
    "select": f"p = {SLEEPS}; say(p.pid); select.select([p.stdout], [], [], 60)",
    "tcp": "pid, s = connect(); say(pid); s.recv(1)",
    "asyncio": """
pid, s = connect()
async def ask():
    reader, _ = await asyncio.open_connection(sock=s)
    await reader.read(1)
say(pid); asyncio.run(ask())""",
    "unix": """
a, b = socket.socketpair(); os.set_inheritable(b.fileno(), True)
p = child("import time; time.sleep(99)", close_fds=False); b.close(); say(p.pid); a.recv(1)""",
    "lock": "p = child(HOLD, stdout=subprocess.PIPE); p.stdout.readline(); f = open(sys.argv[1]); say(p.pid);"
    " fcntl.flock(f, 2)",
    "thread": """
pid, s = connect(); t = threading.Thread(target=s.recv, args=(1,), daemon=True); t.start(); say(pid); t.join()""",
}
WAYS = {"any child": "child", "poll": "pipe", "select": "pipe", "asyncio": "tcp", "thread": "tcp"}


def process_of(program: Program) -> Process:
    stat = procfs.stat(program.pid)
    assert stat is not None
    target = replace(program.target(), start_ticks=stat.start_ticks)
    found: Process = CpuProbe().observe(Request([target], Tier.PULSE)).by_pid[program.pid]
    return found


def look(program: Program, probe: ChainProbe | None = None, process: Process | None = None) -> Chain | None:
    """The chain of a program whose stacks show all of its threads."""
    at_rest(program.pid)
    cpu = process or process_of(program)
    stacks = Stacks(tuple(Stack(t.tid, "MainThread" if t.tid == program.pid else "T", ()) for t in cpu.threads))
    records: Mapping[int, object] = {program.pid: {"cpu": cpu, "stacks": stacks}}
    seen = (probe or ChainProbe()).observe(Request([program.target()], Tier.LOOK, records=records))
    found = seen.by_pid.get(program.pid)
    assert found is None or isinstance(found, Chain)
    return found


def test_is_a_probe() -> None:
    assert isinstance(PROBE, Probe)


@pytest.mark.parametrize("wait", WAITS)
def test_whom_a_rank_waits_for(wait: str, tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with started("-c", HEAD + WAITS[wait], str(tmp_path / "lock")) as program:
        try:
            at_rest(program.said)  # it may still be starting
            chain = look(program)
            assert chain is not None
            awaits = [awaited for thread in chain.threads for awaited in thread.awaits]
            assert [(one.way, one.peers) for one in awaits] == [(WAYS.get(wait, wait), (program.said,))]
            assert [(one.pid, one.state) for one in chain.others] == [(program.said, "S")]
            os.kill(program.said, signal.SIGSTOP)
            until(lambda: look(program), lambda seen: seen is not None and seen.others[0].state == "T")
        finally:
            os.kill(program.said, signal.SIGKILL)


def test_a_chain_of_processes_ends_at_a_pipe_that_nobody_opens(tmp_path: Path) -> None:
    fifo = tmp_path / "shard"
    os.mkfifo(fifo)
    run = """
p = subprocess.Popen(["sh", "-c", "cat $0; true", sys.argv[1]], stdout=subprocess.PIPE); say(p.pid); p.stdout.read()"""
    with started("-c", HEAD + run, str(fifo)) as program:
        chain = until(lambda: look(program), lambda seen: seen is not None and len(seen.others) == 2)
        assert chain is not None
        shell, cat = sorted(chain.others, key=lambda one: one.command.split()[0] == "cat")
        assert (shell.pid, shell.awaits) == (program.said, (Awaited("child", peers=(cat.pid,)),))
        assert cat.awaits == (Awaited("fifo", str(fifo), ()),)
        assert chain.threads[0].awaits[0].peers == (shell.pid, cat.pid)
        os.kill(cat.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "code",
    [
        "say(0); time.sleep(99)",
        "lock = threading.Lock(); lock.acquire(); say(0); lock.acquire()",
        "a, b = os.pipe(); say(0); q = select.poll(); q.register(a); q.poll()",  # an event loop's own
        "async def nothing(): await asyncio.sleep(99)\nsay(0); asyncio.run(nothing())",
    ],
)
def test_a_wait_for_nothing_outside(code: str) -> None:
    with started("-c", HEAD + code) as program:
        assert look(program) is None


def test_a_lock_stays_with_a_process_that_was_forked_while_it_was_held(tmp_path: Path) -> None:
    """The kernel names the process that took the lock, which has closed the file; the forked one has it."""
    path = tmp_path / "lock"
    path.touch()
    waits = "f = open(sys.argv[1]); fcntl.flock(f, 2); pid = os.fork()\nif not pid: time.sleep(99)\n"
    waits += "f.close(); say(pid); f = open(sys.argv[1]); fcntl.flock(f, 2)"
    with started("-c", HEAD + waits, str(path)) as program:
        try:
            chain = look(program)
            assert chain is not None
            assert chain.threads[0].awaits == (Awaited("lock", str(path), (program.said,), inherited=True),)
        finally:
            os.kill(program.said, signal.SIGKILL)


def test_a_server_waits_for_its_clients() -> None:
    serve = """
server = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(server.getsockname()); s, _ = server.accept()
say(0); select.select([server, s], [], [])"""
    with started("-c", HEAD + serve) as program:
        chain = look(program)
        assert chain is not None
        assert [one.way for one in chain.threads[0].awaits] == ["clients", "clients"]


def test_a_connection_that_nobody_accepts() -> None:
    ask = """
server = socket.create_server(("127.0.0.1", 0))
s = socket.create_connection(server.getsockname()); say(0); s.recv(1)"""
    with started("-c", HEAD + ask) as program:
        chain = look(program)
        assert chain is not None
        (awaited,) = chain.threads[0].awaits
        assert (awaited.way, awaited.peers, awaited.accepted) == ("tcp", (program.pid,), False)


def test_a_thread_that_has_run_is_not_followed() -> None:
    with started("-c", HEAD + WAITS["child"]) as program:
        try:
            at_rest(program.pid)
            cpu = process_of(program)
            works = replace(cpu, threads=tuple(replace(one, state="R") for one in cpu.threads))
            assert look(program, process=works) is None
        finally:
            os.kill(program.said, signal.SIGKILL)


def test_an_ended_process_is_no_error() -> None:
    with started("-c", HEAD + "say(0); time.sleep(99)") as program:
        cpu = process_of(program)
    records = {program.pid: {"cpu": cpu, "stacks": Stacks((Stack(program.pid, "MainThread", ()),))}}
    assert ChainProbe().observe(Request([program.target()], Tier.LOOK, records=records)).by_pid == {}
