"""Every shipped reproducer, run live, gets its own diagnosis; the variants are run by `make matrix`.

Who is to blame stands in the playbook (`reproducer: expect:`), the telling evidence in `tests/data/expected`.
"""

from __future__ import annotations

import re
import uuid

import pytest

from hangdoc.demo import reproducer
from hangdoc.demo.harness import carrying
from hangdoc.verdict import CLASSES
from tests.support import reproducers
from tests.support.cli import hangdoc
from tests.support.started import started
from tests.support.testbeds import network

STOPS = "stopped-process"  # the only one that stops a rank by itself


# For a newcomer: every class of failure.
SELECTION = {
    "uneven-batches",
    "conditional-collective",
    "bf16-on-cpu",
    "dead-link",
    "firewall-blocked",
    "blocked-read",
    "stopped-process",
    "lock-deadlock",
    "rank-killed",
    "missing-worker",
    "port-in-use",
    "unequal-batch-size",
}


def marks(id: str) -> list[pytest.MarkDecorator]:
    """A job that is judged by its pace has the machine for itself."""
    job = reproducers.broken(id)
    paced = job.goes_on and job.cls != "silent_divergence"
    holds = {"quiet": paced, "network": job.cls == "network", "selection": id in SELECTION}
    return [getattr(pytest.mark, name) for name, held in holds.items() if held]


@pytest.mark.selection
def test_the_selection_has_every_class() -> None:
    assert set(reproducer.ids()) >= SELECTION
    assert {reproducer.broken(id).cls for id in SELECTION} == set(CLASSES)


@pytest.mark.parametrize("id", [pytest.param(id, marks=marks(id)) for id in reproducer.ids()])
def test_reproducer_is_diagnosed(id: str) -> None:
    job = reproducers.broken(id)
    if job.cls == "network":
        network.require()
    with started(job.running, "loss") as trial:
        result = reproducers.diagnose(job, trial)
        assert result.problems() == {}, result.told()
        assert result.best["links"] or not names_links(job), result.told()
        ranks = set(trial.rank_pids())
        states = [process.status() for process in trial.processes() if process.pid in ranks]
        assert "stopped" not in states or id == STOPS, "the job was left stopped"


def names_links(job: reproducer.BrokenJob) -> bool:
    """Where ranks have not met yet there is no link to name."""
    return "blame_links:" in (job.script.parent / "playbook.yaml").read_text()


def test_demo_ends_what_it_started() -> None:
    """The command itself: exit code 0, the verdict on stdout, the job's log on stderr, no process left."""
    mark = uuid.uuid4().hex
    done = hangdoc("demo", timeout=120, env={"HANGDOC_TEST": mark})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "uneven-batches" in done.stdout
    assert "STALLED" in done.stdout
    assert re.search(r"loss \d", done.stderr)
    assert carrying(f"HANGDOC_TEST={mark}") == []
