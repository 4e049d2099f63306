"""`srun hangdoc watch -- COMMAND` in a real Slurm: the watches of one step keep one incident, judged as a whole."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangdoc.incident.step import turn
from hangdoc.incident.store import IncidentStore
from tests.support.paths import HUNG
from tests.support.polling import until
from tests.support.testbeds.slurm import Slurm, require_slurm, slurm_testbed

pytestmark = pytest.mark.slow("Slurm starts, and a stall is recognised twice: 60 s")

UNEVEN = HUNG / "leaves_early.py"  # the last rank has left the loop, and waits in a barrier


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    require_slurm()
    with slurm_testbed() as slurm:
        yield slurm


@pytest.mark.parametrize("hosts", ["two nodes", "two tasks of one node"])
def test_the_tasks_of_a_step_keep_one_incident(slurm: Slurm, tmp_path: Path, hosts: str) -> None:
    """Both nodes are on this kernel; a name of its own makes each a host."""
    job = slurm.allocate()
    command = ["hangdoc", "watch", "--incidents", str(tmp_path), "--on-hang", f"echo x >> {tmp_path}/called", "--"]
    command += [sys.executable, str(HUNG / "started_by_srun.py"), str(UNEVEN)]
    if hosts == "two nodes":
        command = ["unshare", "--uts", "sh", "-c", 'hostname $SLURMD_NODENAME; exec "$@"', "sh", *command]
    with (tmp_path / "log").open("wb") as log:
        srun = slurm.start(
            "srun", "--jobid", str(job), "--nodes", "2", "--ntasks-per-node", "1", "--unbuffered", *command,
            env={"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    store = IncidentStore(tmp_path)

    def members() -> list[int]:
        found = []
        for one in store.list():
            with turn(store.folder, one.step) as step:
                found += [len(step.members(one.id))] if one.verdicts else []
        return found

    try:
        until(lambda: members() == [2], within_s=120)
        (record,) = store.list()
        assert record.id.split("-", 1)[1].startswith(f"slurm-{job}.")
        assert (record.status, record.ended, record.slurm_job) == ("stalled", None, str(job))
        assert store.entries()[0].open
        until(lambda: (tmp_path / "called").exists())

        done = slurm.run("hangdoc", "report", str(store.path(record.id)), "--json", timeout=120)
        (verdict,) = [json.loads(line) for line in done.stdout.splitlines()]
        assert sorted(line["rank"] for line in verdict["job"]["ranks"]) == [0, 1], done
        best = verdict["findings"][0]
        assert (best["playbook"], [one["rank"] for one in best["culprits"]]) == ("uneven-batches", [1]), done
        shown = slurm.run("hangdoc", "incidents", "show", record.id[:16], "--dir", str(tmp_path), timeout=120)
        assert "uneven-batches" in shown.stdout, shown
    finally:
        slurm.run("scancel", "--signal=TERM", str(job))
        srun.wait(60)
        print((tmp_path / "log").read_text())
    (record,) = store.list()
    assert record.outcome is not None
    assert record.ended
    assert members() == [0]
    assert not store.entries()[0].open
    assert (tmp_path / "called").read_text() == "x\n", "one call for the step"
