"""Which thread represents a rank."""

from __future__ import annotations

import pytest

from hangdoc.evidence import Frame, Stack
from tests.support.synthetic_evidence import BACKWARD, C10D, At, Stage

SCRIPT = """\
def fit(model):
    for step in range(9):
        prepare()
        loss.backward()
        time.sleep(1)

def main(pool):
    pool.submit(fit).result()
    time.sleep(5)
"""
PY = "/usr/lib/python3.11"
RAY = "/v/lib/python3.11/site-packages/ray/_private/worker.py"
SERVES = At([], [("main_loop", RAY)])
AWAITS = ([("main", 8)], [("wait", f"{PY}/threading.py"), ("result", f"{PY}/concurrent/futures/_base.py")])


@pytest.fixture
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


def thread(stage: Stage, line: int, *inner: tuple[str, str], name: str = "fit", tid: int = 500) -> Stack:
    """A thread in `fit`."""
    frames = [Frame(function, file, 1) for function, file in inner]
    roots = [Frame("run", f"{PY}/threading.py", 982), Frame("_bootstrap", f"{PY}/threading.py", 1002)]
    return Stack(tid, name, (*frames, Frame("fit", str(stage.path), line, "job.py"), *roots))


def at(main: At, *extra: Stack, state: str = "S") -> At:
    return At(main.calls, main.inner, state=state, extra=extra)


def test_a_main_thread_that_runs_no_user_code_does_not_train(stage: Stage) -> None:
    facts = stage.facts([at(SERVES, thread(stage, 3)), at(SERVES, thread(stage, 4, *BACKWARD))])
    assert [rank.stack.site for rank in facts.ranks] == ["fit (job.py:3)", "fit (job.py:4)"]
    assert [rank.stack.waits for rank in facts.ranks] == [False, True]


@pytest.mark.parametrize(("line", "inner"), [(3, ()), (4, BACKWARD), (5, ())])
def test_the_thread_that_main_awaits_trains_whatever_it_does_now(
    stage: Stage, line: int, inner: tuple[tuple[str, str], ...]
) -> None:
    """Also while it computes, when the process as a whole is busy, and while it sleeps."""
    before = at(At(*AWAITS), thread(stage, 4, *BACKWARD))
    for state in "SR":
        now = at(At(*AWAITS), thread(stage, line, *inner), state=state)
        facts = stage.facts(*[[before]] * 2, *[[now]] * 2)
        assert facts.ranks[0].stack.site == f"fit (job.py:{line})"


def test_a_thread_beside_a_main_thread_that_trains_does_not(stage: Stage) -> None:
    """Main trains and sleeps now; the thread, which once computed a metric, is in its own code."""
    trains, sleeps = At([("main", 9)], [("all_reduce", C10D)]), At([("main", 9)])
    looks = [at(trains, thread(stage, 4, *BACKWARD))], [at(sleeps, thread(stage, 3))]
    assert stage.facts(*looks).ranks[0].stack.thread == "MainThread"


def test_a_new_thread_that_starts_in_the_same_function_continues_the_old_one(stage: Stage) -> None:
    reader = Stack(400, "reader", (Frame("read", f"{PY}/queue.py", 1),))
    looks = [
        [At(AWAITS[0], AWAITS[1], extra=[reader, thread(stage, line, *BACKWARD, name=f"pool-{line}", tid=500 + line)])]
        for line in (3, 4, 5)
    ]
    progress = stage.facts(*looks).ranks[0].progress
    assert (progress.sites, progress.wait_share) == (3, 1.0)
