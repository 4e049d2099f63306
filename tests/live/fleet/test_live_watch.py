"""Three real hosts on a machine of their own: a slow rank, ranks that several agents see, hosts lost and come back."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
import pytest
from ClusterShell.NodeSet import NodeSet

from tests.support.fleet_jobs import FAULTS, LOST, judged, mixed_bf16, uneven, whole
from tests.support.pace import slowness
from tests.support.paths import HEALTHY
from tests.support.polling import until
from tests.support.testbeds import ssh
from tests.support.testbeds.ssh import SshTestbed

NAMED_S = 5.0  # a host that is lost is named within
BACK_S = 30.0  # and is seen again, when it is there again, within
LOOKS_S = 4.0  # the live watch looks at least so often


@pytest.mark.quiet
def test_hosts_that_see_one_another_count_each_rank_once() -> None:
    """Three agents see the three ranks each: every rank belongs to the host whose network it is in.

    They would see the jobs of other tests as well, and those tests would see ranks held by their dumps.
    """
    ssh.require()
    job = uneven()
    with ssh.ssh_testbed(apart=False) as bed, bed.job(job.script, *job.spec.args, env=job.spec.env) as trial:
        trial.wait_log("loss", 90)
        trial.wait_still(3)
        whole(judged(bed, trial, job), {2: "10.77.0.3"})


@pytest.mark.quiet
def test_slow_rank_on_a_remote_host_is_blamed() -> None:
    ssh.require()
    job = mixed_bf16()
    with ssh.ssh_testbed() as bed, bed.job(job.script, *job.spec.args, env=job.spec.env) as trial:
        trial.wait_log("loss", 90)
        whole(judged(bed, trial, job), {1: "10.77.0.2", 2: "10.77.0.3"})


class Watch:
    """A live watch of the three hosts."""

    def __init__(self, process: subprocess.Popen[str], progress: Path) -> None:
        self.process, self._progress = process, progress

    def until(self, kind: str) -> dict[str, Any]:
        """The next event of this kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == kind:
                return event
        raise AssertionError(f"the watch ended without {kind}:\n{self._progress.read_text()}")

    def unseen(self) -> NodeSet:
        """The hosts that it has called not seen, and not yet back; a slow machine may begin with some."""
        hosts = NodeSet()
        changes = re.findall(r"^hangdoc: (\S+) (?:is|are) (not seen|back)\b", self._progress.read_text(), re.M)
        for named, fate in changes:
            hosts = hosts - NodeSet(named) if fate == "back" else hosts | NodeSet(named)
        return hosts

    def wait_for_hosts(self) -> None:
        """Wait until it sees every host."""
        until(self.unseen, lambda hosts: not hosts, BACK_S, 0.1)


@contextmanager
def watching(bed: SshTestbed, seconds: float) -> Iterator[Watch]:
    """Watch all hosts live, for so many seconds at most; no agent is left then."""
    progress = bed.folder / "progress"
    with progress.open("w") as stderr:
        command = ("hangdoc", "watch", "--nodes", bed.nodes, "--json")
        process = bed.start(*command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    limit = threading.Timer(seconds, process.terminate)
    limit.start()
    try:
        yield Watch(process, progress)
    finally:
        limit.cancel()
        process.terminate()
        process.wait(10)
    until(lambda: [session for index in range(3) for session in bed.sessions(index)], lambda left: not left, 5, 0.1)


def test_host_that_dies_hangs_or_is_cut_off_is_named_and_comes_back() -> None:
    ssh.require()
    with ssh.ssh_testbed() as bed, bed.job(HEALTHY / "steady.py", "--seconds", "280") as trial:
        trial.wait_log("loss", 90)
        with watching(bed, 220) as watch:
            watch.until("started")
            watch.wait_for_hosts()
            for fault, (begin, end) in FAULTS.items():
                began, since = datetime.now(timezone.utc).isoformat(timespec="milliseconds"), time.monotonic()
                begin(bed)
                losses = iter(lambda: watch.until("node_lost"), None)
                lost = next(event for event in losses if event["time"] >= began)  # not one of a slow start
                print(fault, round(time.monotonic() - since, 1), lost["why"])
                assert lost["host"] == LOST, fault
                assert time.monotonic() - since < NAMED_S + 0.5 * slowness(), f"{fault}: {lost}"
                end(bed)
                watch.wait_for_hosts()
                time.sleep(LOOKS_S)
            # What happens there now is seen as if nothing had been.
            ranks = trial.rank_pids()
            psutil.Process(ranks[1]).kill()
            # Its peers end with it, on hosts whose clocks are not compared: one look may see them all gone.
            exits = iter(lambda: watch.until("rank_exited"), None)
            assert next(died["host"] for died in exits if died["rank"] == 1) == LOST
