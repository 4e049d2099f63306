"""Every shipped reproducer, run live, gets its own diagnosis; the variants are run by `make matrix`.

Who is to blame stands in the playbook (`reproducer: expect:`), the telling evidence in `tests/data/expected`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest

import pytest

from hangdoc import demo
from hangdoc.trial import carrying
from tests.support import reproducers
from tests.support.cli import hangdoc
from tests.support.testbeds import network

STOPS = "stopped-process"  # the only one that stops a rank by itself


SLOW = [id for id in demo.ids() if reproducers.broken(id).goes_on]
STUCK = [id for id in demo.ids() if id not in SLOW]
BY_A_LINK = [id for id in SLOW if reproducers.broken(id).cls == "network"]


def two_by_two(ids: Sequence[str]) -> pytest.MarkDecorator:
    """To save time."""
    half = (len(ids) + 1) // 2
    pairs = list(zip_longest(ids[:half], ids[half:]))
    return pytest.mark.parametrize("ids", pairs, ids=lambda pair: " ".join(filter(None, pair)))


@two_by_two(STUCK)
def test_job_that_stands_still_is_diagnosed(ids: tuple[str | None, ...]) -> None:
    side_by_side(ids)


@two_by_two(BY_A_LINK)
def test_job_whose_pace_a_link_sets_is_diagnosed(ids: tuple[str | None, ...]) -> None:
    """They leave the cores to one another."""
    side_by_side(ids)


@pytest.mark.parametrize("id", [id for id in SLOW if id not in BY_A_LINK])
def test_job_that_goes_on_is_diagnosed(id: str) -> None:
    """Its pace is judged: it runs alone."""
    diagnosed(id)


def side_by_side(ids: Iterable[str | None]) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(diagnosed, filter(None, ids)))


def diagnosed(id: str) -> None:
    job = reproducers.broken(id)
    if job.cls == "network":
        network.require()
    with job.running() as trial:
        trial.wait_log(r"loss", 90)
        result = reproducers.diagnose(job, trial)
        assert result.problems() == {}, result.told()
        assert result.best["links"] or not names_links(job), result.told()
        ranks = set(trial.rank_pids())
        states = [process.status() for process in trial.processes() if process.pid in ranks]
        assert "stopped" not in states or id == STOPS, "the job was left stopped"


def names_links(job: demo.Broken) -> bool:
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
