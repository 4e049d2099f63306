"""When ranks that do not move are stalled, and when it is too early to decide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hangdoc.analysis import Case, Key
from hangdoc.analysis.data.dataloading import DataLoadingFacts
from hangdoc.analysis.data.wait_chains import ChainFacts
from hangdoc.analysis.job.stall import StallJob
from hangdoc.analysis.network.links import NetworkJob
from hangdoc.analysis.ranks.divergence import DivergenceFacts
from hangdoc.analysis.ranks.progress import ProgressFacts
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import Connection, Frame, Io, RankEvidence, Sockets, Stack, Stacks, Target
from hangdoc.evidence.locks import LockFile, Locks
from tests.support.synthetic_evidence import LIB, At, Stage

WAITS = StackFacts("collective", waits=True)
COMPUTES = StackFacts("compute", waits=False)
STILL = ProgressFacts(9, 4.0, False, 4.0, 9, None, 0.0, None, None, 1, None)


def case(stack: list[StackFacts], progress: list[dict[str, Any]], /, **records: Any) -> Case:
    keys = [("here", 100 + i) for i in range(len(stack))]
    ranks = {key: RankEvidence(Target(key[1], 1, "here", i), True, dict(records)) for i, key in enumerate(keys)}
    found = Case([], ranks)
    found.give(StackFacts, dict(zip(keys, stack, strict=True)))
    found.give(ProgressFacts, {key: replace(STILL, **own) for key, own in zip(keys, progress, strict=True)})
    found.give(DivergenceFacts, dict.fromkeys(keys, DivergenceFacts()))
    return found


def judged(stacks: list[StackFacts], moving: bool, idle_s: float, cpu_share: float = 0.0) -> StallJob:
    found = case(stacks, [{"cpu_share": cpu_share}] * len(stacks))
    found.give_job(NetworkJob(True, moving=moving, idle_s=idle_s))
    return found.job(StallJob)


@pytest.mark.parametrize(
    ("stacks", "moving", "idle_s", "stalled", "settled"),
    [
        ([WAITS, WAITS], False, 9.0, True, True),
        ([WAITS, WAITS], True, 0.1, False, True),  # a large message is in flight
        ([WAITS, WAITS], True, 3.0, False, False),  # bytes moved a moment ago, none since: it may just have stalled
        ([WAITS, COMPUTES], True, 3.0, False, True),
    ],
)
def test_stall(stacks: list[StackFacts], moving: bool, idle_s: float, stalled: bool, settled: bool) -> None:
    found = judged(stacks, moving, idle_s, cpu_share=0.9 if COMPUTES in stacks else 0.0)
    assert (found.stalled, found.settled) == (stalled, settled)


STOPPED, IDLE = StackFacts("stopped"), StackFacts("idle", op="wait", waits=False)


@pytest.mark.parametrize(("second", "internal"), [(WAITS, True), (STOPPED, True), (IDLE, False)])
def test_only_a_stall_of_ranks_that_wait_for_each_other_is_internal(second: StackFacts, internal: bool) -> None:
    explained = {name: object() for name in ("io", "locks", "lockfile", "source")}
    found = case([WAITS, second], [{"cpu_share": 0.0}] * 2, **explained)
    found.give(DivergenceFacts, dict.fromkeys(found.ranks, DivergenceFacts(will_arrive=False)))
    stall = found.job(StallJob)
    assert (stall.stalled, stall.internal) == (True, internal)


@pytest.mark.parametrize(
    ("first", "second", "progressed"),
    [
        ({"period_s": 0.5}, {"period_s": 0.5}, True),
        ({"completed": True}, {"completed": True}, True),
        ({"cpu_share": 0.9, "changed": True}, {"cpu_share": 0.9, "changed": True}, True),
        ({"cpu_share": 0.9}, {"cpu_share": 0.9}, False),  # CPU time in one place may be a spin
        ({"changed": True}, {"changed": True}, False),  # and a change without CPU time, a poll
        ({"period_s": 0.5}, {}, False),
    ],
)
def test_progress(first: dict[str, Any], second: dict[str, Any], progressed: bool) -> None:
    assert case([COMPUTES, COMPUTES], [first, second]).job(StallJob).progressed is progressed


@pytest.mark.parametrize(
    ("first", "progressed"),
    [({"period_s": 0.5, "advanced": True}, True), ({"period_s": 0.5, "advanced": False}, False), ({}, False)],
)
def test_a_rank_that_waits_for_a_peer_progresses_with_it(first: dict[str, Any], progressed: bool) -> None:
    assert case([COMPUTES, WAITS], [first, {}]).job(StallJob).progressed is progressed


def test_the_sources_of_all_ranks_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the job, not once for each rank: a job has 10,000."""
    found = case([COMPUTES] * 50, [{"cpu_share": 0.0}] * 50, source=[])
    reads = 0
    read = Case.record

    def counted(self: Case, key: Key, probe: str) -> Any:
        nonlocal reads
        reads += probe == "source"
        return read(self, key, probe)

    monkeypatch.setattr(Case, "record", counted)
    found.job(StallJob)
    assert 0 < reads <= 2 * len(found.ranks)


@pytest.mark.parametrize(("arrived_s", "progressed"), [(0.3, True), (20.0, False), (None, False)])
def test_a_read_is_progress_while_bytes_arrive(arrived_s: float | None, progressed: bool) -> None:
    """A download that goes on is work; one that hangs is not."""
    mirror = Connection("10.0.0.1", 40_000, "10.9.9.9", 443, "established", last_receive_s=arrived_s)
    reading = StackFacts("idle", op="recv", waits=False)
    assert case([reading], [{}], sockets=Sockets((mirror,))).job(StallJob).progressed is progressed


@pytest.mark.parametrize(("switches", "stalled"), [((7, 7, 7, 7), True), ((7, 7, 7, 8), False)])
def test_a_remote_call_that_is_answered_is_progress(switches: tuple[int, ...], stalled: bool, tmp_path: Path) -> None:
    """The next call waits at the same line: only the thread's context switches tell the two apart."""
    stage = Stage("def train():\n    rpc_sync('server', update)\n", tmp_path)
    call = [("rpc_sync", f"{LIB}/distributed/rpc/api.py")]
    looks = [[At([("train", 2)], call, runs=runs), At([("train", 2)], call, runs=7)] for runs in switches]
    stall = stage.facts(*looks).job.stall
    assert (stall.stalled, stall.progressed) == (stalled, not stalled)


@pytest.mark.parametrize(("serves", "stalled"), [(False, True), (True, False)])
def test_a_rank_that_serves_a_call_may_go_on(serves: bool, stalled: bool, tmp_path: Path) -> None:
    """It waits for its peers to shut down, and a thread of it runs their call: it may sleep, or be stuck."""
    stage = Stage("def main():\n    rpc.shutdown()\n", tmp_path)
    call = (Frame("work", "/job/work.py", 7), Frame("_run_function", f"{LIB}/distributed/rpc/internal.py", 9))
    extra = [Stack(300, "Dummy-1", call)] if serves else []
    server = At([("main", 2)], [("shutdown", f"{LIB}/distributed/rpc/api.py")], extra=extra)
    caller = At([("main", 2)], [("rpc_sync", f"{LIB}/distributed/rpc/api.py")])
    stall = stage.facts([server, caller]).job.stall
    assert (stall.stalled, stall.progressed) == (stalled, False)


@pytest.mark.parametrize(("share", "progressed"), [(1.0, False), (0.5, True)])
def test_the_preparation_of_data_makes_no_step_of_the_job(share: float, progressed: bool) -> None:
    """Its loop has counters too, while a peer waits until it is over."""
    found = case([COMPUTES, WAITS], [{"period_s": 0.01, "cpu_share": 0.9, "changed": True}, {}])
    found.give(DataLoadingFacts, {key: DataLoadingFacts(prepare_share=share) for key in found.ranks})
    assert found.job(StallJob).progressed is progressed


@pytest.mark.parametrize(("quiet", "progressed"), [(None, True), (True, False)])
def test_a_wait_for_a_process_that_does_nothing_is_no_progress(quiet: bool | None, progressed: bool) -> None:
    records = {"io": Io(), "locks": Locks(), "lockfile": LockFile()}  # these explain any other wait
    found = case([StackFacts("idle", op="_try_wait", waits=False), COMPUTES], [{}, {"period_s": 0.5}], **records)
    found.give(ChainFacts, {key: ChainFacts(quiet=quiet) for key in found.ranks})
    assert found.job(StallJob).progressed is progressed


QUEUE = (Frame("wait", "/usr/lib/python3.12/threading.py", 359), Frame("get", "/usr/lib/python3.12/queue.py", 180))
UPLOAD = (Frame("upload", "/job/upload.py", 12),)


@pytest.mark.parametrize(("other", "progressed"), [(QUEUE, False), (UPLOAD, True)])
def test_a_wait_for_a_thread_that_waits_as_well_is_no_progress(other: tuple[Frame, ...], progressed: bool) -> None:
    """A queue that no thread fills may stay empty for ever."""
    threads = Stacks((Stack(1, "MainThread", QUEUE), Stack(2, "Thread-1", other)))
    records = {"io": Io(), "locks": Locks(), "lockfile": LockFile(), "stacks": threads}
    found = case([StackFacts("idle", op="wait", waits=False), COMPUTES], [{}, {"period_s": 0.5}], **records)
    assert found.job(StallJob).progressed is progressed
