"""A fleet of which one agent is hostile: the real `hangdoc watch --nodes`, and a program in place of an agent."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.other_user import hangdoc, peak_rss_bytes, stranger
from tests.support.paths import ROOT

pytestmark = pytest.mark.quiet  # a target that eats what it can get leaves nothing to others

SLEEPER = "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"
RANK = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "10.9.8.7",
    "MASTER_PORT": "29881",
    "TORCHELASTIC_RUN_ID": "honest-fleet",
}
# The agent of n2 sees the rank for real (it is root on this very kernel), and says that it has ended.
LIAR = """
import sys
from dataclasses import replace
from hangdoc.watch.agent import ProcessIds, boot_id
from hangdoc.discovery.ranks import discover
from hangdoc.evidence import RankEvidence, Snapshot
from hangdoc.fleet import protocol
from hangdoc.fleet.encoder import Encoder

def say(message):
    sys.stdout.buffer.write(protocol.line(message))
    sys.stdout.buffer.flush()

say(protocol.Hello(token="0123456789ab", boot=boot_id()))
(target,), writer, about = discover([int(sys.argv[1])]).targets, Encoder(), ProcessIds()
process, _ = about.process(target)
for line in sys.stdin.buffer:
    if line == protocol.PING:
        say(protocol.Pong())
        continue
    command = protocol.parse(line, protocol.Command)
    if command.do == "peers":
        say(protocol.PeersAnswer(next(iter(command.own.values())).peers))
        continue
    seen = (RankEvidence(target, False, {}, "signal 9 (SIGKILL)"),)
    say(writer.answer(command.id, Snapshot("n1", 1.0, "", seen, tier="look"), {target: (process, 999)}))
"""
FLOODS = {
    "a line without end": "exec tr '\\\\0' x < /dev/zero",
    "lines": "exec yes",
    "a line without end on stderr": "exec tr '\\\\0' x < /dev/zero >&2",
}
ATTEMPTS = 3
LIMIT_BYTES = 150 << 20  # of the collector; with honest agents alone it takes 75 MB


def agents(folder: Path, other: str) -> str:
    """The agent command: on n1 the real one, on n2 another program."""
    command = os.environ.get("HANGDOC") or str(Path(sys.executable).parent / "hangdoc")
    script = folder / "agent.sh"
    script.write_text(f'case "$1" in n1) exec {command} agent;; *) {other};; esac\n')
    return f"sh {script} %h"


def of_job(said: str) -> dict[str, Any]:
    """The verdict on the honest job, without what differs from one look to the next."""
    found = [verdict for line in said.splitlines() if (verdict := json.loads(line))["job"]["id"] == "honest-fleet"]
    (verdict,) = found
    return {name: verdict[name] for name in ("status", "job", "findings", "note")} | {
        "unseen": [lack for lack in verdict["unseen"] if lack["probe"] not in ("fleet", "agent")]
    }


def judged(folder: Path, other: str, nodes: str = "n1,n2") -> subprocess.CompletedProcess[str]:
    words = ["watch", "--once", "--json", "--nodes", nodes, "--via", "local"]
    return hangdoc(*words, "--agent-command", agents(folder, other))


def test_an_agent_that_claims_the_rank_of_another_host(tmp_path: Path) -> None:
    liar = tmp_path / "liar.py"
    liar.write_text(LIAR)
    with stranger(SLEEPER, environment=RANK) as rank:
        alone = judged(tmp_path, "", "n1")
        other = f"exec env PYTHONPATH={ROOT} {sys.executable} {liar} {rank.pid}"
        beside = judged(tmp_path, other)
        assert of_job(beside.stdout) == of_job(alone.stdout), beside.stderr
        told = [lack["why"] for line in beside.stdout.splitlines() for lack in json.loads(line)["unseen"]]
        assert any(why.startswith("n2 claims") for why in told), told


@pytest.mark.parametrize("flood", FLOODS)
def test_an_agent_that_writes_as_fast_as_it_can(flood: str, tmp_path: Path) -> None:
    with stranger(SLEEPER, environment=RANK):
        for _ in range(ATTEMPTS):
            with watching(tmp_path, FLOODS[flood]) as process:
                events = list(itertools.islice(seen(process), 1))
                if events or "has not answered" not in (tmp_path / "progress").read_text():
                    flooded(itertools.chain(events, seen(process)), process.pid)
                    return
        pytest.skip("this machine is too busy: the honest agent did not start in time")


def flooded(events: Iterator[dict[str, Any]], pid: int) -> None:
    """The flooder is named, the other host is judged, and the collector stays small."""
    lost = next(event for event in events if event["event"] == "node_lost")
    assert (lost["host"], "it was cut off" in lost["why"]) == ("n2", True)
    assert any(event["event"] == "healthy" and event["job"] == "honest-fleet" for event in events)
    assert peak_rss_bytes(pid) < LIMIT_BYTES


def test_an_agent_that_starts_slowly(tmp_path: Path) -> None:
    """As on a busy host: its first answer comes when the first round is long over."""
    command = os.environ.get("HANGDOC") or str(Path(sys.executable).parent / "hangdoc")
    with stranger(SLEEPER, environment=RANK):
        done = judged(tmp_path, f"sleep 6; exec {command} agent", "n2")
        assert of_job(done.stdout)["job"]["hosts"] == ["n2"], done.stderr


def seen(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """The events of a live watch."""
    assert process.stdout is not None
    return map(json.loads, process.stdout)


@contextmanager
def watching(folder: Path, other: str) -> Iterator[subprocess.Popen[str]]:
    command = os.environ.get("HANGDOC") or str(Path(sys.executable).parent / "hangdoc")
    words = [command, "watch", "--json", "--nodes", "n1,n2", "--via", "local"]
    with (folder / "progress").open("w") as progress:
        process = subprocess.Popen(
            [*words, "--agent-command", agents(folder, other)], stdout=subprocess.PIPE, stderr=progress, text=True
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10)
