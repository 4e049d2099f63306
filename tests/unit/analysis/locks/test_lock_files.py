"""Lock files that will be released, and stale ones."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hangdoc.analysis.facts import Facts
from hangdoc.analysis.locks.lock_files import LockFileFacts
from hangdoc.evidence import ChildProcess, Process
from hangdoc.evidence.locks import LockFile, LockFileHolder
from tests.support.synthetic_evidence import At, Stage, in_c10d

SCRIPT = "def build():\n    baton.wait()\n    dist.barrier()\n"
LEFT = LockFile("/cache/lock", "baton", 7, age_s=4000.0, before_s=3900.0, local=True)
COMPILER = LockFileHolder(4711, "c++ -O3 main.cpp", 9.0)
GONE = LockFile()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("lockfile"))


def facts(stage: Stage, *looks: LockFile) -> Facts:
    """Facts after these looks at a lock file that rank 0 waits for; rank 1 waits for rank 0."""
    waits = [At([("build", 2)], records={"lockfile": look}) for look in (looks if len(looks) > 1 else looks * 4)]
    return stage.facts(*[[at, in_c10d("barrier", ("build", 3))] for at in waits])


def judged(stage: Stage, *looks: LockFile) -> LockFileFacts:
    found = facts(stage, *looks).ranks[0].lockfile
    assert isinstance(found, LockFileFacts)
    return found


def test_stale_file(stage: Stage) -> None:
    seen = judged(stage, replace(LEFT, named_pid=12, named_alive=False))
    assert seen == LockFileFacts(
        stuck=True, advancing=False, path="/cache/lock", kind="baton", age_s=4000.0,
        named="pid 12, no longer running", sure=True, before=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "stuck", "sure"),
    [
        ({}, True, True),
        ({"before_s": -5.0}, True, True),
        ({"kind": "filelock", "before_s": -5.0}, True, True),
        ({"kind": "loop"}, True, False),  # its creator may have closed it
        ({"kind": "loop", "before_s": -5.0}, False, False),
        ({"kind": "loop", "before_s": -5.0, "named_pid": 12, "named_alive": False}, True, True),
        ({"kind": "kernel"}, False, False),
        ({"local": False}, True, False),
        ({"local": False, "before_s": 30.0}, False, False),
        ({"hidden": 3, "before_s": 0.0}, False, False),
        ({"named_pid": 12, "named_host": "elsewhere", "before_s": 0.0}, False, False),
    ],
    ids=str,
)
def test_no_living_holder(stage: Stage, changes: dict[str, Any], stuck: bool, sure: bool) -> None:
    seen = judged(stage, replace(LEFT, **changes))
    assert (seen.stuck, seen.sure, seen.advancing) == (stuck, sure, False)


@pytest.mark.parametrize(
    ("changes", "holder"),
    [
        ({"holders": (COMPILER,)}, "pid 4711 (c++ -O3 main.cpp)"),
        ({"named_pid": 12, "named_alive": True}, "pid 12"),
    ],
    ids=["open", "named"],
)
def test_held_by_a_living_process(stage: Stage, changes: dict[str, Any], holder: str) -> None:
    found = facts(stage, replace(LEFT, **changes))
    seen = found.ranks[0].lockfile
    assert (seen.stuck, seen.advancing, seen.holder) == (False, True, holder)
    assert not found.job.stall.stalled


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param([LEFT, LEFT], id="twice"),
        pytest.param([replace(LEFT, inode=6), replace(LEFT, inode=6), LEFT, LEFT], id="another file a moment ago"),
        pytest.param([LEFT, replace(LEFT, holders=(COMPILER,)), LEFT, LEFT], id="somebody had it a moment ago"),
    ],
)
def test_too_early_to_prove(stage: Stage, looks: list[LockFile]) -> None:
    assert judged(stage, *looks).stuck is False


def test_looks_between_two_attempts_are_skipped(stage: Stage) -> None:
    assert judged(stage, LEFT, LEFT, GONE, LEFT, LEFT, GONE).stuck


def test_holder_waits_for_its_peers(stage: Stage) -> None:
    found = facts(stage, replace(LEFT, holders=(LockFileHolder(101, "python train.py", 1.0),)))
    waits, has = (rank.lockfile for rank in found.ranks)
    assert (waits.stuck, waits.advancing, waits.holder) == (True, None, "rank 1")
    assert has.blocks == (0,)
    assert found.job.stall.stalled


def test_no_lock_file(stage: Stage) -> None:
    assert judged(stage, GONE) == LockFileFacts()


WORKER = LockFileHolder(4711, "python train.py", 0.2)


@pytest.mark.parametrize(
    ("kind", "child", "cpu_s", "inherited"),
    [
        ("kernel", True, [0.2, 0.2, 0.2, 0.21], True),
        ("kernel", True, [0.2, 1.1, 2.0, 2.9], False),  # it works, perhaps for what the rank waits for
        ("kernel", False, [0.2, 0.2, 0.2, 0.2], False),  # another program, which may release it
        ("filelock", True, [0.2, 0.2, 0.2, 0.2], False),  # who has the file open need not have the lock
    ],
)
def test_held_by_a_forked_process(stage: Stage, kind: str, child: bool, cpu_s: list[float], inherited: bool) -> None:
    children = (ChildProcess(4711, "python", ("python", "train.py"), "S", 0.2),) if child else ()
    held = [replace(LEFT, kind=kind, holders=(replace(WORKER, cpu_s=used),)) for used in cpu_s]
    cpu = Process(100, 1, 0, "S", ("python",), None, None, 10.0, 1.0, 1, (), children=children)
    waits = [At([("build", 2)], records={"lockfile": look, "cpu": cpu}) for look in held]
    found = stage.facts(*[[at, in_c10d("barrier", ("build", 3))] for at in waits])
    seen = found.ranks[0].lockfile
    assert (seen.inherited, seen.stuck, seen.advancing) == (inherited, inherited, not inherited)
    assert found.job.stall.stalled is inherited


def test_held_by_a_process_that_another_rank_has_forked(stage: Stage) -> None:
    children = (ChildProcess(4711, "python", ("python", "train.py"), "S", 0.2),)
    parent = Process(101, 1, 0, "S", ("python",), None, None, 10.0, 1.0, 1, (), children=children)
    held = replace(LEFT, kind="kernel", holders=(WORKER,))
    looks = [
        [At([("build", 2)], records={"lockfile": held}), in_c10d("barrier", ("build", 3), records={"cpu": parent})]
    ]
    waiting, started = (rank.lockfile for rank in stage.facts(*(looks * 4), every_s=3.0).ranks)
    assert (waiting.inherited, waiting.idle, waiting.started_holder, waiting.stuck) == (True, False, False, True)
    assert (started.started_holder, started.path) == (True, None)


@pytest.mark.parametrize(
    ("cpu_s", "every_s", "idle"),
    [
        ([0.2, 0.2, 0.2, 0.21], 3.0, True),
        ([0.2, 0.2, 0.2, 0.2], 1.0, False),  # not watched for long enough
        ([0.2, 0.3, 0.4, 0.5], 3.0, False),  # it may wait for data most of the time
    ],
)
def test_held_by_another_program_that_does_nothing(
    stage: Stage, cpu_s: list[float], every_s: float, idle: bool
) -> None:
    held = [replace(LEFT, kind="kernel", holders=(replace(WORKER, cpu_s=used),)) for used in cpu_s]
    waits = [At([("build", 2)], records={"lockfile": look}) for look in held]
    found = stage.facts(*[[at, in_c10d("barrier", ("build", 3))] for at in waits], every_s=every_s)
    seen = found.ranks[0].lockfile
    assert (seen.idle, seen.stuck, seen.advancing, seen.inherited) == (idle, idle, not idle, False)
    assert found.job.stall.stalled is idle
