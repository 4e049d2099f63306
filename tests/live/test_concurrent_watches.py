"""Several engineers look at one job at the same time: none takes what another's dumps do to it for its fault."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.support import reproducers
from tests.support.started import started

WATCHES = 3


def test_watches_at_once_name_no_other_cause() -> None:
    """Where one may not take its dumps because another does, it may not be able to tell."""
    job = reproducers.broken("lock-deadlock")
    with started(job.running, "loss") as trial:
        trial.wait_still(3)
        with ThreadPoolExecutor(WATCHES) as pool:
            results = list(pool.map(lambda _: reproducers.diagnose(job, trial), range(WATCHES)))
    told = "\n".join(result.told() for result in results)
    assert {result.said for result in results} <= {job.playbook, "(stalled)", "(unknown)"}, told
    assert job.playbook in {result.said for result in results}, told
