"""Time that ranks wait for data, and the code that makes the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hangdoc.analysis.data.dataloading import DataLoadingFacts
from hangdoc.evidence import ChildProcess, Connection, Frame, Process, Sockets, Stack, Stacks, ThreadCpu
from tests.support.synthetic_evidence import LIB, At, Stage, in_backward, in_c10d, number

SCRIPT = """\
def clean(sample):
    return rub(sample)

def train(loader):
    for step, batch in enumerate(loader):
        train_on(batch)

def rub(sample):
    return sample * 2

def ahead(queue):
    while True:
        yield queue.get()

def serve(queue):
    while True:
        answer(queue.get())
"""
STDLIB = "/usr/lib/python3.11"
DATA = f"{LIB}/utils/data"
WAITS = (("_try_get_data", f"{DATA}/dataloader.py"), ("__next__", f"{DATA}/dataloader.py"))
FETCHES = (("fetch", f"{DATA}/_utils/fetch.py"), ("__next__", f"{DATA}/dataloader.py"))
STARTS = (("Popen", f"{STDLIB}/multiprocessing/popen_fork.py"), ("__init__", f"{DATA}/dataloader.py"))
ENDS = (("join", f"{STDLIB}/multiprocessing/process.py"), ("_shutdown_workers", f"{DATA}/dataloader.py"), *WAITS[1:])
TAKES = (("wait", f"{STDLIB}/threading.py"), ("get", f"{STDLIB}/queue.py"))
MAPS = (("_map_single", "/v/lib/python3.11/site-packages/datasets/arrow_dataset.py"),)
TOKENISES = (("wait", f"{STDLIB}/threading.py"), ("map", f"{STDLIB}/multiprocessing/pool.py"))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


def waiting(step: int = 0, inner: Sequence[tuple[str, str]] = WAITS) -> At:
    return At((("train", 5),), inner, {"train": [number("step", step)]})


def training(step: int = 0) -> At:
    return in_backward(("train", 6), variables={"train": [number("step", step)]})


def seen(stage: Stage, looks: Sequence[At], every_s: float = 1.0) -> DataLoadingFacts:
    """Facts of rank 1; rank 0 waits for it."""
    other = in_c10d("all_reduce", ("train", 6))
    facts = stage.facts(*([other, look] for look in looks), every_s=every_s).ranks[1].dataloading
    assert isinstance(facts, DataLoadingFacts)
    return facts


@pytest.mark.parametrize(
    ("looks", "share", "prepares"),
    [
        ([waiting(), *[waiting(inner=ENDS)] * 3], 0.25, 0.0),  # an epoch ends, and its workers with it
        ([waiting()] * 4, 1.0, 0.0),
        ([waiting(), training(), training(), training()], 0.25, 0.0),
        ([waiting(inner=FETCHES), training()], 0.5, 0.0),
        ([waiting(inner=STARTS)] * 3 + [waiting()], 0.25, 0.0),  # an epoch begins: its workers start
        ([waiting(inner=MAPS)] * 3 + [training()], 0.0, 0.75),
        ([waiting(inner=TOKENISES)] * 4, 0.0, 1.0),
        ([training()] * 4, 0.0, 0.0),
        ([At((("train", 5), ("ahead", 13)), TAKES), training()], 0.5, 0.0),
        ([At((("train", 5),), TAKES)] * 4, 1.0, 0.0),  # iter(queue.get, None)
        ([At((("train", 6), ("ahead", 13)), TAKES)] * 4, 0.0, 0.0),  # not in the header of the loop
        ([At((("serve", 17),), TAKES)] * 4, 0.0, 0.0),  # a server that waits for a request
    ],
)
def test_share_of_looks_in_the_loader(stage: Stage, looks: Sequence[At], share: float, prepares: float) -> None:
    facts = seen(stage, looks)
    assert (facts.share, facts.prepare_share) == (share, prepares)


def test_batch_time_from_the_counter(stage: Stage) -> None:
    assert seen(stage, [waiting(step) for step in (7, 7, 8, 8, 9)], every_s=2.0).batch_s == 4.0
    assert seen(stage, [waiting(step) for step in (98, 99, 0, 1, 2)], every_s=1.5).batch_s == 2.0  # the next epoch
    assert seen(stage, [waiting(7)] * 4).batch_s is None


def at(here: int, there: int, age_s: float, look: At) -> At:
    addresses = ("127.0.0.1", here, "127.0.0.1", there)
    one = Connection(*addresses, "established", last_send_s=age_s, last_receive_s=age_s + 1, bytes_sent=9)
    return replace(look, records={"sockets": Sockets((one,), 1)})


def test_starved_time_from_connections(stage: Stage) -> None:
    waits = in_c10d("all_reduce", ("train", 6))
    ages = [(0.3, waiting()), (2.5, waiting()), (9.0, training()), (0.1, waiting())]
    looks = [[at(5000, 4000, age, waits), at(4000, 5000, age, look)] for age, look in ages]
    assert stage.facts(*looks).ranks[1].dataloading.starved_s == 2.5  # training time does not count


@pytest.mark.parametrize(
    ("gaps", "worker_s", "starved_s"),
    [
        ([0.2, 1.2, 2.2, 3.2], 0.2, 0.0),  # the first batch of new workers
        ([0.2, 1.2, 2.2, 3.2], 60.0, 3.2),
        ([1.2, 2.2, 0.9, 1.9], 1.0, 1.9),  # the second batch
        ([1.2, 2.2, 0.1, 0.1], 1.0, 0.1),
        ([2.2, 3.2, 4.2, 5.2], None, 0.0),  # no workers, and no counter: the start is unknown
        ([3.2, 0.9, 1.9, 2.9], None, 3.2),
    ],
)
def test_first_batch_does_not_count(
    stage: Stage, gaps: Sequence[float], worker_s: float | None, starved_s: float
) -> None:
    looks = []
    for i, age in enumerate(gaps):
        made = [ChildProcess(201, "w", ("python",), "S", 1.0, age_s=worker_s + i)] if worker_s is not None else []
        process = Process(101, 1, 0, "S", ("python",), None, None, 10.0, 1.0, 1, (), children=tuple(made))
        other = at(5000, 4000, age, in_c10d("all_reduce", ("train", 6)))
        mine = at(4000, 5000, age, At((("train", 5),), WAITS))
        looks.append([other, replace(mine, records={**mine.records, "cpu": process})])
    assert stage.facts(*looks).ranks[1].dataloading.starved_s == starved_s


def test_site_in_the_rank_itself(stage: Stage) -> None:
    frames = [Frame(name, file, 1) for name, file in FETCHES]
    own = [Frame(name, str(stage.path), line, stage.path.name) for name, line in (("rub", 9), ("clean", 2))]
    main = [Frame("train", str(stage.path), 5, stage.path.name)]
    facts = seen(stage, [_standing(stage, [*own, *frames, *main])] * 4)
    assert (facts.where, facts.text, facts.worker) == (
        "rub (job.py:9)",
        "return sample * 2",
        None,
    )


def _standing(stage: Stage, frames: Sequence[Frame]) -> At:
    """A rank with user frames on both sides of the loader's frames."""
    found = waiting()
    lines = [("f", frame.line or 0) for frame in frames if frame.file == str(stage.path)]
    return replace(found, calls=lines, records={"stacks": Stacks((Stack(101, "MainThread", tuple(frames)),))})


def test_most_frequent_function_with_its_line_and_worker(stage: Stage) -> None:
    made = Frame("_bootstrap", f"{STDLIB}/multiprocessing/process.py", 1)

    def look(pid: int, line: int, function: str = "clean") -> At:
        frames = (Frame(function, str(stage.path), line, stage.path.name), made)
        return replace(waiting(), children=[(pid, (Stack(pid, "MainThread", frames),))])

    facts = seen(stage, [look(201, 2), look(202, 2), look(202, 2), look(202, 9, "rub")])
    assert (facts.worker, facts.where, facts.text) == (
        202,
        "clean (job.py:2)",
        "return rub(sample)",
    )


def test_thread_that_fills_the_queue(stage: Stage) -> None:
    path = str(stage.path)

    def thread(tid: int, *frames: tuple[str, str]) -> Stack:
        return Stack(tid, f"Thread-{tid}", tuple(Frame(name, file, 9, Path(file).name) for name, file in frames))

    fills, full = thread(7, ("rub", path)), thread(8, ("wait", f"{STDLIB}/threading.py"), ("clean", path))
    look = At((("train", 5), ("ahead", 13)), TAKES, extra=(fills, full))
    elsewhere = replace(training(), extra=(thread(7, ("serve", path)),))  # what it does while the rank trains
    facts = seen(stage, [look, elsewhere, elsewhere, elsewhere])
    assert (facts.where, facts.worker) == ("rub (job.py:9)", None)


def test_importing_worker_makes_no_data(stage: Stage) -> None:
    path = str(stage.path)
    frames = (Frame("exec_module", "<frozen importlib._bootstrap_external>", 940), Frame("<module>", path, 1, "job.py"))
    look = replace(waiting(), children=[(201, (Stack(201, "MainThread", frames),))])
    assert seen(stage, [look] * 4).where is None


@pytest.mark.parametrize(
    ("wchan", "advancing"), [("hrtimer_nanosleep", True), ("futex_wait_queue", None), (None, None)]
)
def test_timed_sleep_in_the_loader_advances(stage: Stage, wchan: str | None, advancing: bool | None) -> None:
    threads = (ThreadCpu(101, "python", "S", 0.1, wchan=wchan),)
    process = Process(101, 1, 0, "S", ("python",), None, None, 10.0, 1.0, 1, threads)
    assert seen(stage, [replace(waiting(inner=FETCHES), records={"cpu": process})] * 4).advancing is advancing
    assert seen(stage, [replace(training(), records={"cpu": process})] * 4).advancing is None


def test_unknown_for_a_dead_rank(tmp_path: Path) -> None:
    gone = At((("train", 5),), alive=False)
    assert Stage(SCRIPT, tmp_path).facts([waiting(), gone]).ranks[1].dataloading == DataLoadingFacts()
