"""The daemon of a head node: a job on three hosts, reached by a real ssh, that hangs and recovers while a host goes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hangdoc.system.netns import call_inside, namespace
from tests.support.daemon import Daemon, Receiver
from tests.support.paths import HEALTHY
from tests.support.polling import until
from tests.support.testbeds import ssh
from tests.support.testbeds.ssh import SshTestbed

JOB, BROKEN = "steady.py", 1  # the host that is broken, counted from 0


@contextmanager
def receiver(bed: SshTestbed) -> Iterator[Receiver]:
    """A receiver of alerts beside the daemon."""
    inside = bed.start("sleep", "infinity")
    until(lambda: namespace(inside.pid) != namespace("self"))
    made = call_inside(inside.pid, Receiver)
    yield made
    made.close()


@contextmanager
def daemon(bed: SshTestbed, folder: Path, url: str) -> Iterator[Daemon]:
    (folder / "hangdoc.toml").write_text(
        f'[fleet]\nnodes = "node-[1-3]"\n[alerts.webhook]\nurl = "{url}"\n[metrics]\nport = 0\n'
    )
    running = Daemon(folder, bed.environment(), bed.collector.command())
    try:
        yield running
    finally:
        print("\n".join(running.lines))
        running.process.kill()
        running.process.wait()


@contextmanager
def node_daemon(bed: SshTestbed, index: int, folder: Path) -> Iterator[tuple[Daemon, Receiver]]:
    """The daemon of one host, which sees the ranks of that host only, and a receiver of its alerts beside it."""
    host = bed.hosts[index]
    assert host.first is not None
    alerts = call_inside(host.first, Receiver)
    folder.mkdir()
    (folder / "hangdoc.toml").write_text(f'[alerts.webhook]\nurl = "{alerts.url}"\n[metrics]\nport = 0\n')
    running = Daemon(folder, bed.environment(), host.command())
    try:
        yield running, alerts
    finally:
        print("\n".join(running.lines))
        running.process.kill()
        running.process.wait()
        alerts.close()


def rank_of(bed: SshTestbed, index: int, ranks: list[int]) -> int:
    """The PID, as seen from here, of the rank on a host."""
    first = bed.hosts[index].first
    assert first is not None
    (found,) = [pid for pid in ranks if namespace(pid, "pid") == namespace(first, "pid")]
    return found


def test_a_job_on_three_hosts(tmp_path: Path) -> None:
    ssh.require()
    with ssh.ssh_testbed() as bed, receiver(bed) as alerts, daemon(bed, tmp_path, alerts.url) as running:
        with bed.job(HEALTHY / JOB) as trial:
            until(lambda: len(trial.rank_pids()) == 3, within_s=60)
            stopped = rank_of(bed, BROKEN, trial.rank_pids())
            running.says("healthy", within_s=90)

            os.kill(stopped, signal.SIGSTOP)
            running.says("stalled: A rank is stopped by a signal")
            until(lambda: len(alerts.kinds()) == 1)
            os.kill(stopped, signal.SIGCONT)
            until(lambda: all(kinds["resolved"] for kinds in alerts.kinds().values()))
            (first,) = alerts.kinds()

            bed.stop(BROKEN)
            running.says("host node-2 is lost")
            bed.serve(BROKEN)
            seen = len(running.lines)
            running.says("node-2 is back")
            os.kill(stopped, signal.SIGSTOP)
            until(lambda: any("stalled: A rank is stopped" in line for line in running.lines[seen:]), within_s=90)
            until(lambda: len(alerts.kinds()) == 2)
        until(lambda: all(kinds["resolved"] for kinds in alerts.kinds().values()))
        assert {(one["fired"], one["resolved"]) for one in alerts.kinds().values()} == {(1, 1)}
        assert first in alerts.kinds()
        told = [event["data"] for event in alerts.events if event["type"].endswith("fired")]
        assert all("node-2" in str(data) for data in told), told
        assert running.end() == 0


def test_the_daemon_of_a_node_goes_on_without_the_head_node(tmp_path: Path) -> None:
    """It alerts on what it can judge alone."""
    ssh.require()
    with (
        ssh.ssh_testbed() as bed,
        receiver(bed) as alerts,
        daemon(bed, tmp_path, alerts.url) as hub,
        node_daemon(bed, BROKEN, tmp_path / "node") as (node, alerts_of_node),
        bed.job(HEALTHY / JOB) as trial,
    ):
        until(lambda: len(trial.rank_pids()) == 3, within_s=60)
        hub.says("healthy", within_s=90)
        node.says("healthy", within_s=90)
        hub.end(signal.SIGKILL)
        os.kill(rank_of(bed, BROKEN, trial.rank_pids()), signal.SIGSTOP)
        node.says("stalled: A rank is stopped by a signal", within_s=90)
        until(lambda: [kinds["fired"] for kinds in alerts_of_node.kinds().values()] == [1])  # an update may follow
        assert alerts.kinds() == {}
        assert node.process.poll() is None
