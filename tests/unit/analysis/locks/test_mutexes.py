"""Deadlocks, and waits for a lock that will end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from hangdoc.analysis.locks.mutexes import MutexFacts
from hangdoc.evidence import Frame, Process, Source, Stack, ThreadCpu
from hangdoc.evidence.locks import Holding, Locks, LockWait
from tests.support.synthetic_evidence import At, Stage, in_c10d

SCRIPT = """\
def train():
    with self.lock:
        pass

def export():
    with self.guard:
        pass

def beat():
    while True:
        time.sleep(1)

def upload():
    time.sleep(99)
    self.lock.release()
"""
MAIN, OTHER, THIRD = 100, 101, 102  # threads of rank 0
LOCK, GUARD = 0xA0, 0xB0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("locks"))


def source(stage: Stage) -> Source:
    lines = (2, 6, 11, 14)
    return Source({f"{stage.path}:{line}": place for line in lines if (place := stage.module.place(line))})


def wait(tid: int, semaphore: int, name: str = "self.lock", **more: Any) -> LockWait:
    return LockWait(tid, semaphore, name, **{"found": True, "reentrant": False, **more})


def held(tid: int, semaphore: int, found: bool = True) -> Holding:
    return Holding(tid, semaphore, "self.lock", "put", "cache.py", 20, found)


def thread(stage: Stage, tid: int, function: str, line: int, active: bool = False) -> Stack:
    return Stack(tid, function, (Frame(function, str(stage.path), line, "job.py"),), active=active)


def parked(tid: int) -> Stack:
    return Stack(tid, "pool", (Frame("wait", "/usr/lib/python3.11/threading.py", 320),))


def judged(
    stage: Stage,
    locks: Locks,
    extra: Sequence[Stack] = (),
    looks: int = 4,
    switches: Sequence[int] = (5,) * 9,
    others: Sequence[int] = (1,) * 9,
    inner: Sequence[tuple[str, str]] = (),
) -> MutexFacts:
    """The main thread of rank 0 waits in `train`; rank 1 waits for rank 0.

    `switches`: context switches of the main thread, by look, and of each other thread. `inner`: library frames that the
    main thread is in.
    """
    shown = []
    for number in range(looks):
        threads = tuple(
            ThreadCpu(tid, "t", "S", 0.1, voluntary=switches[number] if tid == MAIN else others[number])
            for tid in (MAIN, OTHER, THIRD, THIRD + 1)
        )
        cpu = Process(MAIN, 1, 0, "S", ("python",), None, None, 10.0, 1.0, 1, threads)
        at = At([("train", 2)], inner, extra=extra, records={"locks": locks, "cpu": cpu, "source": source(stage)})
        shown.append([at, in_c10d("all_reduce", ("train", 3))])
    facts = stage.facts(*shown).ranks[0].locks
    assert isinstance(facts, MutexFacts)
    return facts


def test_ring(stage: Stage) -> None:
    waits = (wait(MAIN, LOCK), wait(OTHER, GUARD, "self.guard", reentrant=True, owner=MAIN))
    extra = [thread(stage, OTHER, "export", 6)]
    facts = judged(stage, Locks((MAIN, OTHER), waits, (held(OTHER, LOCK),)), extra)
    assert facts == MutexFacts(
        True,
        "ring",
        "self.lock",
        False,
        True,
        (
            "MainThread waits for self.lock at train (job.py:2), held by export since put (cache.py:20)",
            "export waits for self.guard at export (job.py:6), held by MainThread",
        ),
    )


STUCK = {
    "itself": Locks((MAIN,), (wait(MAIN, LOCK),), (held(MAIN, LOCK),)),
    "nobody": Locks((MAIN,), (wait(MAIN, LOCK, reentrant=True, owner=0),)),
}


@pytest.mark.parametrize("how", STUCK)
def test_single_thread_deadlock(stage: Stage, how: str) -> None:
    facts = judged(stage, STUCK[how], [thread(stage, OTHER, "upload", 14)])
    assert (facts.stuck, facts.how, facts.sure) == (True, how, True)


@pytest.mark.parametrize(
    ("other", "stuck"),
    [
        ("parked", True),  # in the pool's queue: waits for its own process
        ("beats", True),
        ("uploads", False),  # it releases a lock when it is done
        ("runs", False),
        ("sleeps elsewhere", False),
    ],
)
def test_lock_without_a_known_holder(stage: Stage, other: str, stuck: bool) -> None:
    extra = {
        "parked": parked(OTHER),
        "beats": thread(stage, OTHER, "beat", 11),
        "uploads": thread(stage, OTHER, "upload", 14),
        "runs": Stack(OTHER, "t", (Frame("run", "/v/site-packages/lib.py", 1),), active=True),
        "sleeps elsewhere": Stack(OTHER, "t", (Frame("run", "/home/me/other.py", 7),)),
    }[other]
    facts = judged(stage, Locks((MAIN, OTHER), (wait(MAIN, LOCK),)), [extra])
    assert facts.stuck is stuck
    if stuck:
        assert (facts.how, facts.sure) == ("nobody", False)


def test_main_thread_waits_for_deadlocked_workers(stage: Stage) -> None:
    """A pool's workers are in a ring; the main thread waits for their result."""
    waits = (wait(OTHER, LOCK), wait(THIRD, GUARD))
    locks = Locks((MAIN, OTHER, THIRD), waits, (held(OTHER, GUARD), held(THIRD, LOCK)))
    shown = [
        At(
            [("export", 7)],
            [("result", "/usr/lib/python3.11/concurrent/futures/_base.py")],
            extra=[thread(stage, OTHER, "train", 2), thread(stage, THIRD, "train", 2)],
            records={
                "locks": locks,
                "cpu": Process(
                    MAIN, 1, 0, "S", (), None, None, 1.0, 1.0, 1,
                    tuple(ThreadCpu(tid, "t", "S", 0.1, 1) for tid in (MAIN, OTHER, THIRD)),
                ),
            },
        ),
        in_c10d("all_reduce", ("train", 3)),
    ]  # fmt: skip
    facts = stage.facts(shown).ranks[0].locks
    assert (facts.stuck, facts.how) == (True, "ring")


RING = Locks((MAIN, OTHER), (wait(MAIN, LOCK), wait(OTHER, GUARD)), (held(OTHER, LOCK), held(MAIN, GUARD)))


@pytest.mark.parametrize(
    ("locks", "more"),
    [
        pytest.param(RING, {"looks": 3}, id="too few looks"),
        pytest.param(RING, {"switches": (5, 5, 6, 6)}, id="it was woken"),
        pytest.param(replace(RING, waits=RING.waits[:1]), {}, id="the owner does not wait for a lock"),
        pytest.param(replace(RING, waits=()), {}, id="nobody waits"),
        pytest.param(Locks((MAIN,), (wait(MAIN, LOCK, found=False),)), {}, id="the lock was not found"),
    ],
)
def test_not_stuck_without_proof(stage: Stage, locks: Locks, more: dict[str, Any]) -> None:
    assert judged(stage, locks, [thread(stage, OTHER, "upload", 14)], **more).stuck is False


def test_too_few_undisturbed_looks_leave_a_suspicion(stage: Stage) -> None:
    """Such as while another watch examines the rank: no proof of a deadlock, nor of progress."""
    upload = [thread(stage, OTHER, "upload", 14)]
    assert judged(stage, RING, upload, switches=(5, 5, 6, 6)).suspected is True
    assert judged(stage, replace(RING, waits=()), upload).suspected is False


def test_threads_woken_by_a_debugger_are_still_parked(stage: Stage) -> None:
    """py-spy stops every thread of a process and resumes it."""
    extra = [thread(stage, OTHER, "upload", 14)]
    assert judged(stage, RING, extra, 5, (5, 5, 8, 8, 8), (1, 1, 4, 4, 4)).stuck is True
    assert judged(stage, RING, extra, 5, (5, 6, 7, 8, 9), (1, 2, 3, 4, 5)).stuck is False, "it may be so busy"


def test_unknown_without_records(stage: Stage) -> None:
    assert stage.facts([At([("train", 2)])]).ranks[0].locks == MutexFacts()


QUEUE = [("wait", "/usr/lib/python3.11/threading.py"), ("get", "/usr/lib/python3.11/queue.py")]
EVENT = [QUEUE[0], ("wait", "/usr/lib/python3.11/threading.py")]


@pytest.mark.parametrize(
    ("inner", "sleeping", "extra", "stuck"),
    [
        (QUEUE, (MAIN,), [], True),
        (QUEUE, (MAIN, THIRD), [parked(THIRD)], True),  # an idle thread of a pool
        (QUEUE, (THIRD,), [parked(THIRD)], True),  # with a timeout, again and again
        (EVENT, (THIRD,), [parked(THIRD)], False),  # it may look at something else between two waits
        (QUEUE, (MAIN,), ["upload"], False),  # a thread that sleeps may still fill it
        ([], (MAIN,), [], False),  # native code, which may have threads of its own
    ],
)
def test_a_wait_for_threads_of_which_none_runs(
    stage: Stage, inner: Sequence[tuple[str, str]], sleeping: tuple[int, ...], extra: Sequence[Any], stuck: bool
) -> None:
    """An empty queue, an event: nobody is left to provide it."""
    threads = [thread(stage, OTHER, "upload", 14) if one == "upload" else one for one in extra]
    facts = judged(stage, Locks(sleeping), threads, looks=6, inner=inner)
    assert (facts.stuck, facts.how) == (stuck, "asleep" if stuck else None)


def test_a_thread_that_stops_its_own_event_loop_says_so(stage: Stage) -> None:
    asyncio = "/usr/lib/python3.11/asyncio"
    frames = (
        Frame("wait", "/usr/lib/python3.11/threading.py", 320),
        Frame("result", "/usr/lib/python3.11/concurrent/futures/_base.py", 451),
        Frame("upload", str(stage.path), 14, "job.py"),
        Frame("_run", f"{asyncio}/events.py", 80),
        Frame("run_forever", f"{asyncio}/base_events.py", 607),
    )
    facts = judged(stage, Locks((MAIN, OTHER)), [Stack(OTHER, "loop", frames)], looks=6, inner=QUEUE)
    assert facts.lines[1] == "loop waits at upload (job.py:14), and its event loop runs no other task meanwhile"
