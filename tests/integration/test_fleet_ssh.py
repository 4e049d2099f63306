"""`watch --nodes` over a real ssh to three hosts of their own, on real torchrun jobs; hosts are lost, and come back."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import expectations
import live
import sshbed
from hangdoc import demo
from jobs import HEALTHY, Trial
from sshbed import SshBed

NAMED_S = 5.0  # a host that is lost is named within
BACK_S = 30.0  # and is seen again, when it is there again, within
LOOKS_S = 4.0  # the live watch looks at least so often
LOST, OTHERS = "10.77.0.2", ("10.77.0.1", "10.77.0.3")

# What keeps the second host from answering, and the end of it.
FAULTS: dict[str, tuple[Callable[[SshBed], None], Callable[[SshBed], None]]] = {
    "dies": (lambda bed: bed.stop(1), lambda bed: bed.serve(1)),
    "hangs": (lambda bed: bed.freeze(1), lambda bed: bed.thaw(1)),
    "unreachable": (lambda bed: bed.block(1), lambda bed: bed.unblock(1)),
}


def three_ranks(job: demo.Broken, culprits: list[int]) -> demo.Broken:
    """The same job with a rank on each of three hosts."""
    expect = job.told.expect.model_copy(update={"culprits": culprits})
    return replace(job, told=job.told.model_copy(update={"ranks": 3, "expect": expect}))


def uneven() -> demo.Broken:
    return three_ranks(expectations.broken("uneven-batches"), [2])


def mixed_bf16() -> demo.Broken:
    job = next(job for job in expectations.variants("bf16-on-cpu") if job.variant == "mixed")
    return three_ranks(job, [1, 2])


def judged(bed: SshBed, trial: Trial, job: demo.Broken) -> live.Result:
    """What `watch --nodes --once` says of the job; where PIDs are shared others' jobs are seen too."""
    started = time.monotonic()
    done = bed.hangdoc("watch", "--nodes", bed.nodes, "--once", "--json", timeout=120)
    seconds = time.monotonic() - started
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    ours = [verdict for verdict in verdicts if verdict["job"]["id"] == trial.mark]
    assert len(ours) == 1, done
    code = done.returncode if len(verdicts) == 1 else live.EXIT[ours[0]["status"]]
    return live.Result(job, ours[0], code, seconds)


def lost_hosts(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    return [lack for lack in verdict["unseen"] if lack["probe"] == "agent"]


def whole(result: live.Result, culprits: dict[int, str]) -> None:
    """The verdict has every rank once, on its own host, and blames the ranks on theirs."""
    ranks = {line["rank"]: line["host"] for line in result.verdict["job"]["ranks"]}
    assert result.problems() == {}, result.told()
    assert ranks == {0: "10.77.0.1", 1: "10.77.0.2", 2: "10.77.0.3"}, result.told()
    assert {blamed["rank"]: blamed["host"] for blamed in result.best["culprits"]} == culprits, result.told()
    assert lost_hosts(result.verdict) == [], result.told()


def test_hosts_that_see_one_another_count_each_rank_once() -> None:
    """Three agents see the three ranks each: every rank belongs to the host whose network it is in.

    First in this module: the jobs of the others would be seen as well.
    """
    sshbed.require()
    job = uneven()
    with sshbed.sshbed(apart=False) as bed, bed.job(job.script, *job.told.args, env=job.told.env) as trial:
        trial.wait_log("loss", 90)
        trial.wait_still(3)
        whole(judged(bed, trial, job), {2: "10.77.0.3"})


@pytest.fixture(scope="module")
def stuck() -> Iterator[tuple[SshBed, Trial]]:
    """Hosts of their own under a job that stands still: the third host's rank has left the loop."""
    sshbed.require()
    job = uneven()
    with sshbed.sshbed() as bed, bed.job(job.script, *job.told.args, env=job.told.env) as trial:
        trial.wait_log("loss", 90)
        trial.wait_still(3)
        yield bed, trial


def test_rank_on_a_remote_host_is_blamed(stuck: tuple[SshBed, Trial]) -> None:
    whole(judged(*stuck, uneven()), {2: "10.77.0.3"})


@pytest.mark.parametrize("fault", FAULTS)
def test_host_that_is_not_there_is_named_and_the_rest_judged(stuck: tuple[SshBed, Trial], fault: str) -> None:
    bed, trial = stuck
    begin, end = FAULTS[fault]
    begin(bed)
    try:
        result = judged(bed, trial, uneven())
    finally:
        end(bed)
    assert [lack["host"] for lack in lost_hosts(result.verdict)] == [LOST], result.told()
    assert result.said == "uneven-batches", result.told()
    assert [blamed["host"] for blamed in result.best["culprits"]] == ["10.77.0.3"], result.told()
    assert {line["host"] for line in result.verdict["job"]["ranks"] if line["pid"]} == set(OTHERS), result.told()


def test_slow_rank_on_a_remote_host_is_blamed() -> None:
    sshbed.require()
    job = mixed_bf16()
    with sshbed.sshbed() as bed, bed.job(job.script, *job.told.args, env=job.told.env) as trial:
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

    def wait_progress(self, text: str, times: int) -> None:
        """Wait until it has said so often on stderr."""
        limit = time.monotonic() + BACK_S
        while (said := self._progress.read_text()).count(text) < times:
            assert time.monotonic() < limit, f"not said {times} times: {text}\n{said}"
            time.sleep(0.1)


@contextmanager
def watching(bed: SshBed, seconds: float) -> Iterator[Watch]:
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
    left = time.monotonic() + 5
    while agents := [session for index in range(3) for session in bed.sessions(index)]:
        assert time.monotonic() < left, agents
        time.sleep(0.1)


def test_host_that_dies_hangs_or_is_cut_off_is_named_and_comes_back() -> None:
    sshbed.require()
    with sshbed.sshbed() as bed, bed.job(HEALTHY / "steady.py", "--seconds", "200") as trial:
        trial.wait_log("loss", 90)
        with watching(bed, 170) as watch:
            watch.until("started")
            for times, (fault, (begin, end)) in enumerate(FAULTS.items(), 1):
                since = time.monotonic()
                begin(bed)
                lost = watch.until("node_lost")
                print(fault, round(time.monotonic() - since, 1), lost["why"])
                assert lost["host"] == LOST, fault
                assert time.monotonic() - since < NAMED_S + 0.5, f"{fault}: {lost}"
                end(bed)
                watch.wait_progress(f"{LOST} is back", times)
                time.sleep(LOOKS_S)
            # What happens there now is seen as if nothing had been.
            ranks = trial.rank_pids()
            psutil.Process(ranks[1]).kill()
            # Its peers end with it, on hosts whose clocks are not compared: one look may see them all gone.
            exits = iter(lambda: watch.until("rank_exited"), None)
            assert next(died["host"] for died in exits if died["rank"] == 1) == LOST


def test_doctor_says_which_hosts_are_reached() -> None:
    sshbed.require()
    with sshbed.sshbed() as bed:
        done = bed.hangdoc("doctor", "--nodes", bed.nodes, "--json")
        (seen,) = map(json.loads, done.stdout.splitlines())
        assert (seen["name"], seen["ok"], done.returncode) == (bed.nodes, True, 0), done
        bed.stop(1)
        done = bed.hangdoc("doctor", "--nodes", bed.nodes, "--json")
        told = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
        assert {name: line["ok"] for name, line in told.items()} == {"10.77.0.[1,3]": True, LOST: False}, done
        assert "refused" in told[LOST]["detail"], done
        assert done.returncode == 3


def test_a_tree_where_the_site_asks_for_one() -> None:
    """The second and third host are reached through the first, as a topology file of ClusterShell says."""
    sshbed.require()
    job = uneven()
    with sshbed.sshbed() as bed, bed.job(job.script, *job.told.args, env=job.told.env) as trial:
        trial.wait_log("loss", 90)
        trial.wait_still(3)
        folder = bed.folder / "clustershell"
        folder.mkdir()
        here = platform.node().partition(".")[0]
        (folder / "topology.conf").write_text(f"[routes]\n{here}: node-1\nnode-1: node-[2-3]\n")
        site = {"CLUSTERSHELL_CFGDIR": str(folder), "CLUSTERSHELL_GW_PYTHON_EXECUTABLE": sys.executable}
        command = bed.collector.command("hangdoc", "watch", "--nodes", "node-[1-3]", "--once", "--json")
        watch = subprocess.Popen(command, env=bed.environment() | site, stdout=subprocess.PIPE, text=True)
        through = ""  # what runs on the gateway
        while watch.poll() is None:
            with suppress(psutil.NoSuchProcess):  # it ended while we looked
                through += "".join(" ".join(one.cmdline()) + "\n" for one in bed.sessions(0))
            time.sleep(0.3)
        assert watch.stdout is not None
        verdict = json.loads(watch.stdout.read())
    assert "ClusterShell.Gateway" in through, through
    assert lost_hosts(verdict) == []
    assert {line["rank"]: line["host"] for line in verdict["job"]["ranks"]} == {0: "node-1", 1: "node-2", 2: "node-3"}
    assert [(one["rank"], one["host"]) for one in verdict["findings"][0]["culprits"]] == [(2, "node-3")]
