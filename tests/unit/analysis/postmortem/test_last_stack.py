"""What blocked an absent rank, which ranks left no dump, and whether all ranks had arrived."""

from __future__ import annotations

import pytest

from hangdoc.analysis.facts import Facts, derive, schema
from hangdoc.analysis.postmortem.last_stack import LastStackFacts, LastStackJob, _by_frames, _by_line
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import FlightRecorder, Frame, Place, ProcessGroup, RecordedCall, Source, Stack, Stacks
from hangdoc.evidence.logs import LogEvent, Logs
from hangdoc.evidence.pieces import Piece, ProcessRef
from hangdoc.postmortem.assemble import snapshots

TYPES = schema()
EVERYBODY = (ProcessGroup(1, "", (0, 1, 2)),)
WAITED = LogEvent("gloo_timeout", "Timed out waiting 12000ms for recv operation to complete", "log", 1)
LOST = LogEvent("connection_closed", "Connection closed by peer", "log", 1)
TORCH = "/x/site-packages/torch/"


def dump(calls: int, retired: bool = True) -> FlightRecorder:
    entries = [
        RecordedCall("0", n, "all_reduce", "[[10]]", ("Float",), retired or n < calls) for n in range(1, calls + 1)
    ]
    return FlightRecorder("2.10", tuple(entries), {}, {}, final=True, groups=EVERYBODY)


def facts(*pieces: tuple[int, object]) -> Facts:
    names: dict[type, str] = {FlightRecorder: "recorder", Logs: "logs", Stacks: "stacks", Source: "source"}
    return derive(list(snapshots([Piece(ProcessRef(rank), names[type(one)], one) for rank, one in pieces])), TYPES)


def logs(said: LogEvent) -> Logs:
    return Logs((said,))


@pytest.mark.parametrize("said", [WAITED, LOST])
def test_rank_without_a_dump_is_silent_if_all_peers_are_victims(said: LogEvent) -> None:
    found = facts((0, dump(7)), (1, dump(7)), (0, logs(said)), (1, logs(said)))
    assert [one.rank for one in found.job.last_stack.silent] == [2]
    assert not facts(
        (0, dump(7)), (1, dump(7)), (0, logs(said))
    ).job.last_stack.silent  # one rank may have been healthy


def test_together_if_all_timed_out_in_the_same_collective() -> None:
    waited = [(rank, logs(WAITED)) for rank in range(3)]
    assert facts(*((rank, dump(7)) for rank in range(3)), *waited).job.last_stack.together
    assert not facts((0, dump(7)), (1, dump(7)), (2, dump(6)), *waited).job.last_stack.together
    assert not facts(*((rank, dump(7)) for rank in range(3)), *waited[:2], (2, logs(LOST))).job.last_stack.together


def test_rank_that_awaits_a_rank_beyond_the_world_size() -> None:
    lacks = LogEvent("address_missing", "wait timeout", "log", 1, fields={"missing": "3"})
    found = facts((0, dump(7)), (1, dump(7)), (2, logs(lacks)))
    assert [rank.last_stack.awaits for rank in found.ranks] == [None, None, 3]
    there = LogEvent("address_missing", "wait timeout", "log", 1, fields={"missing": "1"})
    assert facts((0, dump(7)), (2, logs(there))).ranks[-1].last_stack == LastStackFacts()


def test_what_the_absent_rank_was_blocked_in() -> None:
    saving = Stack(1, "MainThread", (Frame("_save", f"{TORCH}serialization.py", 9, "torch/serialization.py"),))
    found = facts((0, dump(7, retired=False)), (1, dump(7, retired=False)), (2, dump(6)), (2, Stacks((saving,))))
    assert [rank.last_stack.blocked_in for rank in found.ranks] == [None, None, "writes"]
    assert [rank.last_stack.absent for rank in found.ranks] == [None, None, True]


def test_rank_that_waits_for_threads_waits_for_their_lock() -> None:
    main = Stack(1, "MainThread", (Frame("result", "/usr/lib/python3.11/concurrent/futures/_base.py", 4, "_base.py"),))
    thread = Stack(2, "pool_0", (Frame("balance", "/job/train.py", 3, "train.py"),))
    behind = (2, dump(6)), (2, Stacks((main, thread)))
    there = [(rank, dump(7, retired=False)) for rank in range(2)]
    assert facts(*there, *behind).ranks[2].last_stack.blocked_in is None  # no source: the line's call is unknown
    source = Source({"/job/train.py:3": Place("with self.locks[b]:", (), (), (), 1, 9)})
    assert facts(*there, *behind, (2, source)).ranks[2].last_stack.blocked_in == "lock"


SITE = "load (train.py:7)"


@pytest.mark.parametrize(
    ("stack", "doing"),
    [
        (StackFacts("idle", "read", SITE, leaf=SITE), "reads"),
        (StackFacts("unknown", None, SITE, leaf=SITE, text="with open(path) as file:"), "reads"),
        (StackFacts("idle", "readinto", SITE, leaf="readinto (socket.py:705)"), None),
        (StackFacts("checkpoint", "load", SITE), "reads"),
        (StackFacts("checkpoint", "save", SITE), "writes"),
        (StackFacts("input", "dataloader", SITE), "input"),
        (StackFacts("idle", None, SITE, leaf=SITE, text="with self.lock:"), "lock"),
        (StackFacts("idle", None, SITE, leaf=SITE, text="self.lock.acquire()"), "lock"),
        (StackFacts("idle", None, SITE, leaf=SITE, text="with torch.no_grad():"), "native"),
        (StackFacts("idle", "wait for a lock file", SITE), "lock file"),
        (StackFacts("compile", "wait for a compile lock", SITE), "lock file"),
        (StackFacts("idle", "pause", SITE, leaf=SITE, text="return self.device.pause()"), "native"),
        (StackFacts("unknown", None, SITE, leaf=SITE, text="device.calibrate(3)"), "native"),
        (StackFacts("unknown", None, SITE, leaf=SITE, text="count += 1"), None),
        (StackFacts("idle", None, SITE, leaf="fetch (client.py:3)", text="client.fetch()"), None),
        (StackFacts("idle", "sleep", SITE, leaf=SITE, text="time.sleep(1)"), None),
        (StackFacts("compute", "forward", SITE), None),
    ],
)
def test_blocked_in(stack: StackFacts, doing: str | None) -> None:
    assert (_by_frames(stack) or _by_line(stack)) == doing


@pytest.mark.parametrize(
    ("native", "text", "doing"),
    [
        ("__futex_abstimed_wait_common <- sem_wait <- PyThread_acquire_lock_timed", "state.update(x)", "lock"),
        ("__open64 <- _io_FileIO___init___impl", "config = Config.of(path)", "reads"),
        ("read <- _Py_read", "parse(file)", "reads"),
        ("wait_for_device <- calibrate", "with lock: calibrate()", "native"),
        ("clock_nanosleep <- time_sleep", "wait_a_bit()", "native"),
        ("_PyEval_EvalFrameDefault <- PyEval_EvalCode", "f(x)", None),
    ],
)
def test_native_frames_come_before_the_source_line(native: str, text: str, doing: str | None) -> None:
    stack = StackFacts("idle", None, SITE, leaf=SITE, text=text, native_leaf=native)
    assert (_by_frames(stack), _by_line(stack)) == (doing, None)


def test_threads_waiting_for_one_another_in_python_wait_for_no_lock() -> None:
    native = "__futex_abstimed_wait_common <- PyThread_acquire_lock_timed"
    stack = StackFacts("idle", "get", SITE, leaf="get (queue.py:171)", native_leaf=native)
    assert (_by_frames(stack), _by_line(stack)) == (None, None)


def test_no_facts_without_dumps_or_a_matching_line() -> None:
    found = facts((0, logs(WAITED)))
    assert [rank.last_stack for rank in found.ranks] == [LastStackFacts()]
    assert found.job.last_stack == LastStackJob()
