"""The agent as a process: it answers while its input lasts, and leaves with it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import pytest

from hangdoc.evidence import Target
from hangdoc.fleet import protocol
from hangdoc.system.procfs import stat
from hangdoc.watch.agent import ProcessIds, newest
from tests.support.cli import HANGDOC
from tests.support.paths import ROOT
from tests.support.polling import until

COMMAND = [*HANGDOC, "agent"]


@contextmanager
def agent(command: Sequence[str] = COMMAND) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def ask(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    process.stdin.flush()
    return process.stdout.readline()


def hello(process: subprocess.Popen[bytes]) -> protocol.Hello:
    assert process.stdout is not None
    return protocol.parse(process.stdout.readline(), protocol.Hello)


def test_it_sends_a_hello_answers_and_ends_with_its_input() -> None:
    with agent() as process:
        assert hello(process).schema == protocol.SCHEMA
        answer = protocol.parse(ask(process, protocol.line(protocol.Command("look", 7))), protocol.Answer)
        assert (answer.to, answer.tier) == (7, "look")
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0


def test_it_answers_pings_while_it_is_busy() -> None:
    """A ping overtakes the command before it."""
    with agent() as process:
        hello(process)
        assert ask(process, protocol.line(protocol.Command("inspect", 1)) + protocol.PING).startswith(b'{"pong"')


def test_it_answers_only_the_last_of_several_waiting_questions() -> None:
    """An agent that shares its input with others may be asked again before it has answered."""
    with agent() as process:
        hello(process)
        answers = [
            protocol.parse(
                ask(process, b"".join(protocol.line(protocol.Command("look", n)) for n in range(20))), protocol.Answer
            )
        ]
        assert process.stdout is not None
        while answers[-1].to != 19:
            answers.append(protocol.parse(process.stdout.readline(), protocol.Answer))
        assert len(answers) < 10


def test_a_collector_that_never_pauses_gets_answers() -> None:
    """Commands that arrive while the agent takes the newest one wait for the next round."""

    class Flood(SimpleQueue[bytes]):
        """Each command read is followed by two more."""

        def get(self, block: bool = True, timeout: float | None = None) -> bytes:
            self.put(b"later")
            self.put(b"later")
            return super().get(block, timeout)

    waiting = Flood()
    for line in (b"first", b"last"):
        waiting.put(line)
    assert newest(waiting)


def test_stop_ends_it() -> None:
    with agent() as process:
        hello(process)
        assert ask(process, protocol.line(protocol.Command("stop"))) == b""
        assert process.wait(10) == 0


def test_when_it_gives_up_its_dumps_end_too(tmp_path: Path) -> None:
    """A native dump would keep its rank paused."""
    begun = tmp_path / "begun"
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\necho $$ >> {begun}\nexec sleep 60\n")
    spy.chmod(0o755)
    script = (
        "import sys; from hangdoc import cli; from hangdoc.introspect import py_spy; from hangdoc.watch import agent;"
        "agent.GRACE_S = 0.3; py_spy.TIMEOUT_S = 60; sys.argv = ['hangdoc', 'agent'];"
        f"sys.executable = {str(tmp_path / 'python')!r}; cli.main()"
    )
    rank = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, "RANK": "0", "WORLD_SIZE": "2"}
    )
    try:
        with agent([sys.executable, "-c", script]) as process:
            hello(process)
            assert process.stdin is not None
            process.stdin.write(protocol.line(protocol.Command("look", 1)))
            process.stdin.flush()
            until(lambda: begun.exists() and begun.read_text())
            process.stdin.close()
            process.wait(20)
        dumps = begun.read_text().split()
        assert dumps
        assert [pid for pid in dumps if (found := stat(int(pid))) and found.state != "Z"] == []
    finally:
        rank.kill()
        rank.wait()


def test_an_invalid_command_ends_it_with_an_error() -> None:
    process = subprocess.run(COMMAND, cwd=ROOT, input=b"rm -rf /\n", capture_output=True, timeout=30, check=False)
    assert process.returncode == 3
    assert process.stderr.startswith(b"hangdoc: ")


@pytest.fixture
def sleeper() -> Iterator[Target]:
    process = subprocess.Popen(["sleep", "60"])
    found = stat(process.pid)
    assert found is not None
    try:
        yield Target(process.pid, found.start_ticks, "here", 0)
    finally:
        process.kill()
        process.wait()


def test_a_process_is_the_same_from_within_its_pid_namespace(tmp_path: Path) -> None:
    """What an agent in a pod and one on its host say of one process."""
    told = tmp_path / "told"
    script = (
        "import sys, os, time; from hangdoc.watch.agent import ProcessIds; from hangdoc.evidence import Target;"
        "from hangdoc.system.procfs import stat; p = os.getpid();"
        "text = ProcessIds().process(Target(p, stat(p).start_ticks, 'pod', 0))[0];"
        f"open({str(told)!r}, 'w').write(text + '\\n'); time.sleep(60)"
    )
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", script]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
    try:
        until(lambda: process.poll() is not None or (told.exists() and told.read_text().endswith("\n")))
        if process.poll() is not None:
            pytest.skip(f"no PID namespace can be made: {process.communicate()[1].decode()}")
        inner = next(iter(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()))
        seen = stat(int(inner))
        assert seen is not None
        text, near = ProcessIds().process(Target(int(inner), seen.start_ticks, "host", 0))
        assert text == told.read_text().strip()
        assert near == 2  # net and uts are shared; pid and mnt are not
    finally:
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            subprocess.run(["kill", "-9", child], check=False)
        process.kill()
        process.wait()


def test_a_process_of_ours_is_near(sleeper: Target) -> None:
    text, near = ProcessIds().process(sleeper)
    assert str(sleeper.pid) in text
    assert near == 4


def test_a_missing_rank_is_the_same_for_every_agent() -> None:
    gone = [ProcessIds().process(Target(-1 - rank, 0, host, rank)) for host in ("n1", "n2") for rank in (0, 1)]
    assert gone[:2] == gone[2:]
    assert gone[0] != gone[1]
