"""Jobs with one rank on each of three ssh hosts: their expected verdicts, and the faults that lose a host."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hangdoc.demo import reproducer
from hangdoc.demo.harness import Trial
from tests.support import reproducers
from tests.support.testbeds.ssh import SshTestbed

LOST, OTHERS = "10.77.0.2", ("10.77.0.1", "10.77.0.3")

# What keeps the second host from answering, and the end of it.
FAULTS: dict[str, tuple[Callable[[SshTestbed], None], Callable[[SshTestbed], None]]] = {
    "dies": (lambda bed: bed.stop(1), lambda bed: bed.serve(1)),
    "hangs": (lambda bed: bed.freeze(1), lambda bed: bed.thaw(1)),
    "unreachable": (lambda bed: bed.block(1), lambda bed: bed.unblock(1)),
}


def three_ranks(job: reproducer.BrokenJob, culprits: list[int]) -> reproducer.BrokenJob:
    """The same job with a rank on each of three hosts."""
    expect = job.spec.expect.model_copy(update={"culprits": culprits})
    return replace(job, spec=job.spec.model_copy(update={"ranks": 3, "expect": expect}))


def uneven() -> reproducer.BrokenJob:
    return three_ranks(reproducers.broken("uneven-batches"), [2])


def mixed_bf16() -> reproducer.BrokenJob:
    job = next(job for job in reproducers.variants("bf16-on-cpu") if job.variant == "mixed")
    return three_ranks(job, [1, 2])


def judged(bed: SshTestbed, trial: Trial, job: reproducer.BrokenJob) -> reproducers.Result:
    """What `watch --nodes --once` says of the job; where PIDs are shared others' jobs are seen too."""
    started = time.monotonic()
    done = bed.hangdoc("watch", "--nodes", bed.nodes, "--once", "--json", timeout=120)
    seconds = time.monotonic() - started
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    ours = [verdict for verdict in verdicts if verdict["job"]["id"] == trial.mark]
    assert len(ours) == 1, done
    code = done.returncode if len(verdicts) == 1 else reproducers.EXIT[ours[0]["status"]]
    return reproducers.Result(job, ours[0], code, seconds)


def lost_hosts(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    return [lack for lack in verdict["unseen"] if lack["probe"] == "agent"]


def whole(result: reproducers.Result, culprits: dict[int, str]) -> None:
    """The verdict has every rank once, on its own host, and blames the ranks on theirs."""
    ranks = {line["rank"]: line["host"] for line in result.verdict["job"]["ranks"]}
    assert result.problems() == {}, result.told()
    assert ranks == {0: "10.77.0.1", 1: "10.77.0.2", 2: "10.77.0.3"}, result.told()
    assert {blamed["rank"]: blamed["host"] for blamed in result.best["culprits"]} == culprits, result.told()
    assert lost_hosts(result.verdict) == [], result.told()
