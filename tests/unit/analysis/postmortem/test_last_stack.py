"""What blocked an absent rank, which ranks left no dump, and whether all ranks had arrived."""

from __future__ import annotations

import pytest

from hangdoc.analysis.facts import Facts, derive, schema
from hangdoc.analysis.postmortem.last_stack import (
    LastStackFacts,
    LastStackJob,
    _by_frames,
    _by_line,
    last_call,
    last_calls,
)
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import End, FlightRecorder, Frame, Place, ProcessGroup, RecordedCall, Source, Stack, Stacks
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
    names: dict[type, str] = {End: "end", FlightRecorder: "recorder", Logs: "logs", Stacks: "stacks", Source: "source"}
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


@pytest.mark.parametrize("native_thread", [True, False])
def test_rank_that_the_watchdog_aborted_had_not_come(native_thread: bool) -> None:
    saving = Stack(1, "MainThread", (Frame("_save", f"{TORCH}serialization.py", 9, "torch/serialization.py"),))
    peers = [(rank, record) for rank in range(2) for record in (dump(7, retired=False), logs(WAITED))]
    found = facts(*peers, (2, dump(6)), (2, Stacks((saving,))), (2, End(signal=6, native_thread=native_thread)))
    assert found.ranks[2].last_stack.absent is (native_thread or None)
    assert found.ranks[2].last_stack.blocked_in == ("writes" if native_thread else None)


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


PY = "/usr/lib/python3.11"
SITE_PACKAGES = "/v/site-packages"
OWN = ("main", "/job/train.py", 9, False)


def frames(*python: str) -> tuple[tuple[str, str, int | None, bool], ...]:
    """Frames of a thread, innermost first: "FUNCTION FILE"; without a file, a native one. Below them, user code."""
    split = [text.partition(" ") for text in python]
    return (*((name, file, 1 if file else None, not file) for name, _, file in split), OWN)


@pytest.mark.parametrize(
    ("thread", "kind"),
    [
        (frames(f"acquire {PY}/threading.py"), "lock"),
        (frames(f"wait {PY}/threading.py", f"get {PY}/queue.py"), None),
        (frames(f"acquire {PY}/logging/__init__.py", f"handle {PY}/logging/__init__.py"), "lock"),
        (frames(f"flush {PY}/logging/__init__.py", f"emit {PY}/logging/__init__.py"), "writes"),
        (frames(f"write {SITE_PACKAGES}/tqdm/utils.py", f"fp_write {SITE_PACKAGES}/tqdm/std.py"), "writes"),
        (frames(f"acquire {SITE_PACKAGES}/filelock/_api.py"), "lock file"),
        (frames("flock"), "lock file"),
        (frames("__libc_read"), "reads"),
        (frames("__libc_write"), "writes"),
        (frames("pthread_mutex_lock"), "lock"),
        (frames("PyThread_acquire_lock_timed", f"wait {PY}/threading.py"), None),
        (frames(f"recv_into {PY}/socket.py"), "download"),
        (frames(f"getresponse {SITE_PACKAGES}/urllib3/connection.py"), "download"),
        (frames("run /job/hooks.py", f"pyagent {SITE_PACKAGES}/wandb/agents/pyagent.py"), None),
        (frames(f"communicate {PY}/subprocess.py", f"run {PY}/subprocess.py"), "subprocess"),
        (frames("encode /job/tokens.py", f"run {PY}/subprocess.py"), None),
        (frames(f"rmtree {PY}/shutil.py"), "writes"),
        (frames(f"stat {PY}/pathlib.py"), "reads"),
        (frames("_find_and_load <frozen importlib._bootstrap>"), "reads"),
        (frames(f"open {SITE_PACKAGES}/PIL/Image.py"), "reads"),
        (frames(f"_compile {TORCH}_dynamo/convert_frame.py"), "compile"),
        (frames("step /job/model.py", f"compile_wrapper {TORCH}_dynamo/eval_frame.py"), None),
        (frames(f"run {TORCH}_inductor/runtime/triton_heuristics.py"), None),
        (frames(f"_bench {SITE_PACKAGES}/triton/runtime/autotuner.py"), "compile"),
        (frames(f"run {SITE_PACKAGES}/triton/runtime/autotuner.py"), None),
        (frames(f"print_exception {PY}/traceback.py"), "exception"),
        (frames("collate /job/data.py", f"fetch {TORCH}utils/data/_utils/fetch.py"), "input"),
        (frames(f"forward {TORCH}nn/modules/linear.py"), None),
        (frames(), None),
    ],
)
def test_last_call(thread: tuple[tuple[str, str, int | None, bool], ...], kind: str | None) -> None:
    found = last_call(thread)
    assert (found.kind if found else None) == kind


def test_every_last_call_is_one_that_a_playbook_may_know() -> None:
    known = {"reads", "writes", "input", "prepares", "lock", "lock file", "download", "subprocess", "compile"}
    known |= {"exception", "peers"}
    assert {call.kind for call in last_calls()} <= known
    assert all(call.function or call.file or call.native for call in last_calls())


WAITING = Stack(1, "MainThread", (Frame("all_reduce", f"{TORCH}distributed/distributed_c10d.py", 9),))
IDLE = Stack(1, "MainThread", (Frame("acquire", f"{PY}/threading.py", 9), Frame("main", "/job/train.py", 9)))


def standing(*extra: tuple[int, object]) -> Facts:
    """Two ranks in a collective, and one at a lock, known by their stacks; `extra`: other evidence."""
    return facts(*((rank, Stacks((WAITING,))) for rank in range(2)), (2, Stacks((IDLE,))), *extra)


def test_stacks_alone_show_who_is_absent() -> None:
    found = standing().ranks
    assert [(rank.last_stack.absent, rank.last_stack.by_stacks) for rank in found[:2]] == [(None, False)] * 2
    assert found[2].last_stack == LastStackFacts(True, "lock", "the wait for a lock", by_stacks=True)


def test_who_timed_out_waited_whatever_its_stack_shows_later() -> None:
    found = facts(*((rank, Stacks((IDLE,))) for rank in range(3)), (0, logs(WAITED)), (1, logs(WAITED)))
    assert [rank.last_stack.absent for rank in found.ranks] == [None, None, True]


def test_dumps_decide_before_stacks() -> None:
    behind = facts(
        (0, dump(6)), (1, dump(7, retired=False)), (2, dump(7, retired=False)), (0, Stacks((WAITING,))),
        (1, Stacks((WAITING,))), (2, Stacks((IDLE,))),
    )  # fmt: skip
    assert [rank.last_stack.absent for rank in behind.ranks] == [True, None, None]


def test_all_wait_if_no_rank_is_elsewhere() -> None:
    assert not standing().job.last_stack.all_wait
    assert facts(*((rank, Stacks((WAITING,))) for rank in range(3))).job.last_stack.all_wait
    assert not facts((0, Stacks((WAITING,)))).job.last_stack.all_wait
