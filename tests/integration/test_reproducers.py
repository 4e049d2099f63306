"""Every shipped reproducer, run live, gets its own diagnosis; the variants are run by `make matrix`.

Who is to blame stands in the playbook (`reproducer: expect:`), the telling evidence in `tests/expected`.
"""

from __future__ import annotations

import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest

import pytest

import expectations
import live
import netbed
from hangdoc import demo
from hangdoc.trial import carrying
from watching import hangdoc

STOPS = "stopped-process"  # the only one that stops a rank by itself


def beside_one_another() -> list[tuple[str, ...]]:
    """Jobs that stand still two by two, to save time; those that go on, whose pace is judged, alone."""
    ids = demo.ids()
    slow = [id for id in ids if expectations.broken(id).goes_on]
    stuck = [id for id in ids if id not in slow]
    half = (len(stuck) + 1) // 2
    return [*zip(slow), *zip_longest(stuck[:half], stuck[half:])]


@pytest.mark.parametrize("ids", beside_one_another(), ids=lambda ids: " ".join(filter(None, ids)))
def test_reproducer_is_diagnosed(ids: tuple[str, ...]) -> None:
    with ThreadPoolExecutor(len(ids)) as pool:
        list(pool.map(diagnosed, filter(None, ids)))


def diagnosed(id: str) -> None:
    job = expectations.broken(id)
    if job.cls == "network":
        netbed.require()
    with job.running() as trial:
        trial.wait_log(r"loss", 90)
        result = live.diagnose(job, trial)
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
