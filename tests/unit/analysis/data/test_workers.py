"""State of a rank's helpers, and whether the rank that waits for them is stuck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hangdoc.analysis.data.workers import WorkerFacts
from hangdoc.evidence import ChildProcess, FileCall, Frame, Helper, Io, Process, Stack
from tests.support.synthetic_evidence import LIB, At, Stage, in_c10d

SCRIPT = """\
def make(index):
    return load(index)

def train(loader):
    for step, batch in enumerate(loader):
        train_on(batch)
"""
STDLIB = "/usr/lib/python3.11"
IN_LOADER = (("_try_get_data", f"{LIB}/utils/data/dataloader.py"), ("__next__", f"{LIB}/utils/data/dataloader.py"))
IN_POOL = (("wait", f"{STDLIB}/threading.py"), ("next", f"{STDLIB}/multiprocessing/pool.py"))
IN_CHILD = (("wait", f"{STDLIB}/subprocess.py"),)
MADE = (("_bootstrap", f"{STDLIB}/multiprocessing/process.py"),)
TASK = (("recv_bytes", f"{STDLIB}/multiprocessing/connection.py"), ("get", f"{STDLIB}/multiprocessing/queues.py"))
POOLED = (*TASK, ("worker", f"{STDLIB}/multiprocessing/pool.py"))


@dataclass(frozen=True)
class Does:
    """One helper over the looks."""

    state: str = "S"
    cores: float = 0.0
    bytes_s: int = 0
    sleeps: str | None = "poll"
    locked: bool = False
    inner: Sequence[tuple[str, str]] = TASK  # (function, file), innermost first; (): stack not read
    line: int | None = None  # line of the script that called them
    since: int = 0  # index of the first look that finds it
    reads: str | None = None  # kind of the file in whose read(2) it sleeps
    command: tuple[str, ...] = ("python",)


IDLE = Does()
LOCKED = Does(sleeps="lock", locked=True, inner=(), line=2)
STOPPED = Does("T", inner=(), line=2)
DEAD = Does("Z", inner=())
BUSY = Does("R", 0.9, inner=(), line=2)
ASLEEP = Does(sleeps="time", inner=(), line=2)
READS = Does(sleeps="file", inner=(), line=2, reads="fifo")
PROGRAM = Does(sleeps="poll", inner=(), command=("tar", "x"))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


def seen(
    stage: Stage, workers: Sequence[Does], inner: Sequence[tuple[str, str]], looks: int = 7, every_s: float = 1.0
) -> WorkerFacts:
    """Rank 0 waits in all_reduce, rank 1 in `inner` for `workers`."""
    waits = in_c10d("all_reduce", ("train", 6))
    shots = [[waits, _rank(stage, workers, inner, look)] for look in range(looks)]
    facts = stage.facts(*shots, every_s=every_s).ranks[1].workers
    assert isinstance(facts, WorkerFacts)
    return facts


def _rank(stage: Stage, workers: Sequence[Does], inner: Sequence[tuple[str, str]], look: int) -> At:
    there = {200 + i: does for i, does in enumerate(workers) if does.since <= look}
    children = tuple(ChildProcess(pid, "w", does.command, does.state, look * does.cores) for pid, does in there.items())
    process = Process(101, 1, 0, "S", ("python",), None, None, 10.0, 1.0, 1, (), children=children)
    at = At((("train", 5),), inner, records={"cpu": process, "io": _io(there, look)})
    return replace(at, children=[(pid, _stacks(stage, pid, does)) for pid, does in there.items() if _looked(does)])


def _looked(does: Does) -> bool:
    return bool(does.inner or does.line)


def _io(there: Mapping[int, Does], look: int) -> Io:
    helpers = [
        Helper(pid, "w", d.state, look * d.cores, look * d.bytes_s, 5, d.sleeps, d.locked) for pid, d in there.items()
    ]
    calls = [FileCall(pid, pid, "read", "/x", d.reads, "S", switches=5) for pid, d in there.items() if d.reads]
    return Io(calls=tuple(calls), helpers=tuple(helpers))


def _stacks(stage: Stage, pid: int, does: Does) -> tuple[Stack, ...]:
    own = [Frame("make", str(stage.path), does.line, stage.path.name)] if does.line else []
    frames = [Frame(name, file, 1) for name, file in does.inner]
    made = [Frame(name, file, 1) for name, file in (*MADE, *IN_LOADER)]  # a forked worker keeps its parent's frames
    return (Stack(pid, "MainThread", (*frames, *own, *made)),)


@pytest.mark.parametrize(
    ("workers", "inner", "state", "stuck"),
    [
        ([LOCKED, LOCKED], IN_LOADER, "locked", True),
        ([LOCKED, IDLE], IN_LOADER, "locked", True),
        ([STOPPED, IDLE], IN_LOADER, "stopped", True),
        ([DEAD, IDLE], IN_POOL, "dead", True),
        ([replace(IDLE, inner=POOLED)] * 2, IN_POOL, "lost", True),
        ([LOCKED, BUSY], IN_LOADER, "locked", False),
        ([STOPPED, ASLEEP], IN_LOADER, "stopped", False),
        ([STOPPED, replace(IDLE, since=5)], IN_LOADER, "stopped", False),  # a replacement was started
        ([IDLE, IDLE], IN_LOADER, "idle", False),  # the fate of the task is unknown
        ([BUSY, IDLE], IN_LOADER, "busy", False),
        ([ASLEEP], IN_LOADER, "sleeping", False),
        ([replace(IDLE, bytes_s=4096)], IN_LOADER, "busy", False),
        ([READS, IDLE], IN_LOADER, "blocked", False),  # `storage` decides if that read ends
        ([PROGRAM], IN_CHILD, "other", False),
        ([], IN_POOL, None, False),
    ],
)
def test_stuck(
    stage: Stage, workers: Sequence[Does], inner: Sequence[tuple[str, str]], state: str | None, stuck: bool
) -> None:
    facts = seen(stage, workers, inner)
    assert (facts.state, bool(facts.stuck), facts.waits) == (state, stuck, True)
    assert not (facts.stuck and facts.advancing)


@pytest.mark.parametrize(
    ("worker", "advancing"),
    [
        (BUSY, True),
        (ASLEEP, True),
        (replace(IDLE, bytes_s=4096), True),
        (IDLE, False),
        (LOCKED, False),
        (READS, False),
        (PROGRAM, False),
        (replace(PROGRAM, state="R", cores=0.9), True),
    ],
)
def test_advancing(stage: Stage, worker: Does, advancing: bool) -> None:
    assert seen(stage, [worker], IN_LOADER).advancing is advancing


def test_advancing_until_watched_long_enough(stage: Stage) -> None:
    facts = seen(stage, [LOCKED, LOCKED], IN_LOADER, looks=3)
    assert (facts.stuck, facts.advancing) == (None, True)


def test_looks_that_are_far_apart(stage: Stage) -> None:
    """On a busy host: a window of seconds may hold a single look."""
    assert seen(stage, [LOCKED, IDLE], IN_LOADER, 4, every_s=6.0).stuck is True
    assert not seen(stage, [LOCKED, BUSY], IN_LOADER, 4, every_s=6.0).stuck


def test_training_rank_does_not_wait_for_helpers(stage: Stage) -> None:
    facts = seen(stage, [STOPPED], (("linear", f"{LIB}/nn/functional.py"),))
    assert (facts.waits, facts.stuck, facts.waiting_s) == (False, None, None)


def test_site_of_the_worker_shown(stage: Stage) -> None:
    facts = seen(stage, [IDLE, LOCKED], IN_LOADER)
    assert (facts.pid, facts.process_state) == (201, "S")
    assert (facts.site, facts.text) == ("make (job.py:2)", "return load(index)")
    assert (facts.count, facts.frame, facts.waiting_s) == (2, "_try_get_data (dataloader.py:1)", 6.0)


def test_worker_without_a_stack_is_idle_like_its_peers(stage: Stage) -> None:
    pooled = replace(IDLE, inner=POOLED)
    assert seen(stage, [pooled, replace(IDLE, inner=())], IN_POOL).state == "idle"


def test_unknown_without_io_records(tmp_path: Path) -> None:
    facts = Stage(SCRIPT, tmp_path).facts([At((("train", 5),), IN_LOADER)])
    assert facts.ranks[0].workers == WorkerFacts()
