"""The daemon as a service: jobs come and go, it is killed and started again, and told to change its mind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangdoc.incident.store import IncidentStore
from tests.support.cli import HANGDOC
from tests.support.daemon import Receiver, daemon, job
from tests.support.paths import ROOT
from tests.support.polling import until


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


@pytest.mark.slow("two stalls, and a daemon that starts twice: 50 s")
def test_a_killed_daemon_continues_its_incidents(tmp_path: Path, receiver: Receiver) -> None:
    """One job recovers while no daemon runs, the other ends: each incident has one alert and one end."""
    config = f'[alerts.webhook]\nurl = "{receiver.url}"\n[metrics]\nport = 0\n'
    with daemon(tmp_path, config) as start, job(tmp_path) as recovers, job(tmp_path, 3) as ends:
        first = start()
        for one in (recovers, ends):
            first.says(f"job {one.name}: healthy")
        for one in (recovers, ends):
            os.kill(one.ranks[1].pid, signal.SIGSTOP)
        for one in (recovers, ends):
            first.says(f"job {one.name}: ", "stopped by a signal")
        until(lambda: len(receiver.kinds()) == 2)
        first.end(signal.SIGKILL)
        os.kill(recovers.ranks[1].pid, signal.SIGCONT)
        for rank in ends.ranks:
            rank.kill()
            rank.wait()
        second = start()
        until(lambda: [one["resolved"] for one in receiver.kinds().values()] == [1, 1], within_s=90)
        assert second.end() == 0
    assert [one["fired"] for one in receiver.kinds().values()] == [1, 1]
    records = IncidentStore(tmp_path / "state").list()
    assert {record.id for record in records} == set(receiver.kinds())
    outcomes = {record.job: record.outcome.kind for record in records if record.outcome}
    assert outcomes == {recovers.name: "recovered", ends.name: "lost"}


def answered(url: str) -> bytes | None:
    """What a page says; None: the server refuses it for now."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError:
        return None


@pytest.mark.slow("a daemon that starts and searches: 15 s")
def test_a_daemon_obeys_its_signals_and_leaves_jobs_alone_that_opt_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = f"[metrics]\nport = {port}\n"
    with daemon(tmp_path, config) as start, job(tmp_path, HANGDOC="off") as private, job(tmp_path) as watched:
        running = start()
        running.says(f"job {watched.name}: watching 2 ranks")
        health = f"http://127.0.0.1:{port}/healthz"
        until(lambda: answered(health), lambda answer: answer == b"ok\n")  # once a round has ended
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            assert b"hangdoc_last_round_timestamp_seconds" in answer.read()

        second = subprocess.run(
            [*HANGDOC, "daemon", "--state", str(tmp_path / "state")],
            cwd=ROOT, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert second.returncode == 3
        assert f"PID {running.process.pid} uses" in second.stderr

        (tmp_path / "hangdoc.toml").write_text("[budget]\ncpu_percent = 0\n")
        running.process.send_signal(signal.SIGHUP)
        running.says("the old one stays in effect")
        (tmp_path / "hangdoc.toml").write_text(f"[budget]\ncpu_percent = 2\n{config}")
        running.process.send_signal(signal.SIGHUP)
        running.says("is in effect")
        assert running.end(within_s=5) == 0
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(health, timeout=5)
    assert not [line for line in running.lines if private.name in line]
    errors = [line for line in running.lines if " error: " in line]
    assert all("cpu_percent" in line or "SIGHUP" in line for line in errors)
