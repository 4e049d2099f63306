"""`watch --via srun` in a real Slurm of two nodes: ranks that srun started itself, and ranks of torchrun under srun.

Both nodes are on this machine's kernel, so each of the two agents sees the ranks of both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from hangdoc.demo.harness import Trial
from tests.support.paths import HUNG
from tests.support.testbeds.hosts import of_job
from tests.support.testbeds.slurm import Slurm, require_slurm, slurm_testbed

UNEVEN = HUNG / "leaves_early.py"  # the last rank has left the loop, and waits in a barrier


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    require_slurm()
    with slurm_testbed() as slurm:
        yield slurm


def started(slurm: Slurm, job: int, launcher: str) -> AbstractContextManager[Trial]:
    return slurm.torchrun(job, UNEVEN) if launcher == "torchrun" else slurm.ranks(job, UNEVEN)


def verdict(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(verdicts) == 1, done
    said: dict[str, Any] = verdicts[0]
    return said


@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_each_rank_counts_once_and_the_one_on_the_second_node_is_blamed(slurm: Slurm, launcher: str) -> None:
    job = slurm.allocate()
    with started(slurm, job, launcher) as trial:
        trial.wait_log("step 10", 90)
        done = slurm.run("hangdoc", "watch", "--via", "srun", "--jobid", str(job), "--once", "--json", timeout=120)
        said = verdict(done)
        assert done.returncode == 2, done
        assert {line["rank"]: line["host"] for line in said["job"]["ranks"]} == {0: "n1", 1: "n2"}, done
        (best, *_) = said["findings"]
        assert (best["playbook"], best["class"]) == ("uneven-batches", "collective_wait"), done
        assert [(blamed["rank"], blamed["host"]) for blamed in best["culprits"]] == [(1, "n2")], done
        assert [lack for lack in said["unseen"] if lack["probe"] == "agent"] == [], done
        trial.check()
        steps = slurm.run("squeue", "--steps", "--noheader", "--jobs", str(job), "--format", "%i").stdout.split()
        assert steps == [f"{job}.0"], "an agent's step is left"


def test_within_the_job_no_option_is_needed(slurm: Slurm) -> None:
    job = slurm.allocate()
    with slurm.ranks(job, UNEVEN) as trial:
        trial.wait_log("step 10", 90)
        done = slurm.run("hangdoc", "watch", "--via", "srun", "--once", "--json", timeout=120, SLURM_JOB_ID=str(job))
        assert verdict(done)["job"]["hosts"] == ["n1", "n2"], done


def test_job_without_ranks_and_job_that_is_not_there_are_said(slurm: Slurm) -> None:
    idle = slurm.run("hangdoc", "watch", "--via", "srun", "--jobid", str(slurm.allocate()), "--once")
    assert (idle.returncode, "no training rank on 2 hosts" in idle.stderr) == (3, True), idle
    missing = slurm.run("hangdoc", "watch", "--via", "srun", "--jobid", "987654", "--once")
    assert missing.returncode in (3, 64), missing
    assert "987654" in missing.stderr, missing


def test_a_command_of_the_batch_script_is_watched_on_both_nodes(slurm: Slurm, tmp_path: Path) -> None:
    """`hangdoc watch --via srun -- srun ...`: one verdict on the ranks of both nodes, and the exit code of srun."""
    job = str(slurm.allocate())
    step = ("srun", "--jobid", job, "--nodes", "2", "--ntasks-per-node", "1", "--unbuffered")
    script = (sys.executable, str(HUNG / "started_by_srun.py"), str(UNEVEN))
    hook = f"echo culprits: $HANGDOC_CULPRITS; scancel {job}"
    done = slurm.run(
        *("hangdoc", "watch", "--via", "srun", "--jobid", job, "--on-hang", hook, "--", *step, *script),
        timeout=150,
        HANGDOC_STATE=str(tmp_path),
        **of_job("watched-command", str(tmp_path), "lo"),
    )
    assert "step 10 loss" in done.stdout, done
    assert done.stderr.count("STALLED") == 1, done
    assert "hangdoc: on-hang: culprits: rank 1 on n2\n" in done.stderr, done
    assert done.returncode not in (0, 3, 64), done  # srun's, of a job that was cancelled
    assert len(list(tmp_path.glob("incidents/*/incident.json"))) == 1, done
