"""`watch --nodes` over a real ssh to three hosts of their own, on a real torchrun job that stands still."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from hangdoc.demo.harness import Trial
from tests.support.fleet_jobs import FAULTS, LOST, OTHERS, judged, lost_hosts, uneven, whole
from tests.support.testbeds import ssh
from tests.support.testbeds.ssh import SshTestbed


@pytest.fixture(scope="module")
def stuck() -> Iterator[tuple[SshTestbed, Trial]]:
    """Hosts of their own under a job that stands still: the third host's rank has left the loop."""
    ssh.require()
    job = uneven()
    with ssh.ssh_testbed() as bed, bed.job(job.script, *job.spec.args, env=job.spec.env) as trial:
        trial.wait_log("loss", 90)
        trial.wait_still(3)
        yield bed, trial


@pytest.mark.selection
def test_rank_on_a_remote_host_is_blamed(stuck: tuple[SshTestbed, Trial]) -> None:
    whole(judged(*stuck, uneven()), {2: "10.77.0.3"})


@pytest.mark.parametrize("fault", FAULTS)
def test_host_that_is_not_there_is_named_and_the_rest_judged(stuck: tuple[SshTestbed, Trial], fault: str) -> None:
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


def test_doctor_says_which_hosts_are_reached() -> None:
    ssh.require()
    with ssh.ssh_testbed() as bed:
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
    ssh.require()
    job = uneven()
    with ssh.ssh_testbed() as bed, bed.job(job.script, *job.spec.args, env=job.spec.env) as trial:
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
