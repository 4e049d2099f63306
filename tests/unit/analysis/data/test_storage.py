"""File system calls that are stuck, that advance, and their transfer rate, from synthetic evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from hangdoc.analysis import Case
from hangdoc.analysis.data.storage import StorageFacts
from hangdoc.analysis.data.workers import WorkerFacts
from hangdoc.analysis.network.links import NetworkJob
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import FileCall, Helper, Io, Peer, Process, RankEvidence, Snapshot, Target

RANK, OTHER = ("here", 100), ("here", 101)
READ = FileCall(100, 100, "read", "/data/part-1", "file", "D", fd=5, switches=7, mount="/data", filesystem="nfs4")
WRITE = structs.replace(READ, call="write", writes=True, path="/out/last.pt", state="D")
FIFO = structs.replace(READ, path="/data/fifo", kind="fifo", state="S", peers=())
PIPE = structs.replace(WRITE, path="pipe:[4711]", kind="pipe", state="S", mount=None, filesystem=None)
WRITER = Peer(900, "feeder", "S", False, 3.0, 1000)


def facts(
    *rounds: Io,
    every_s: float = 1.0,
    others: str | None = "all_reduce",
    idle_s: float = 9.0,
    helpers: WorkerFacts | None = None,
    phase: str = "unknown",
    op: str | None = None,
    states: str = "",
) -> StorageFacts:
    """Facts of the first of two ranks.

    The other rank waits in a collective of that name (None: it does not wait). `states`: of the process, by look.
    """
    shots = [
        Snapshot("here", i * every_s, "", (_evidence(100, io, states[i : i + 1]), _evidence(101, Io())))
        for i, io in enumerate(rounds)
    ]
    case = Case(shots, {("here", rank.target.pid): rank for rank in shots[-1].ranks})
    waiting = StackFacts("collective", others, waits=others is not None, thread="MainThread")
    case.give(StackFacts, {RANK: StackFacts(phase, op, waits=False, thread="MainThread"), OTHER: waiting})
    case.give(WorkerFacts, {RANK: helpers or WorkerFacts(waits=False), OTHER: WorkerFacts(waits=False)})
    case.give_job(NetworkJob(True, idle_s=idle_s))
    return case.facts(StorageFacts)[RANK]


def _evidence(pid: int, io: Io, state: str = "") -> RankEvidence:
    cpu = {"cpu": Process(pid, 1, 0, state, (), None, None, 9.0, 1.0, 1, ())} if state else {}
    return RankEvidence(Target(pid, 1, "here", pid - 100), True, {"io": io, **cpu})


def at(*calls: FileCall, **counts: Any) -> Io:
    return Io(**{"read": 10, "written": 10, "fetched": 10, "stored": 10, **counts}, calls=calls)


def test_stuck_read() -> None:
    found = facts(*[at(READ)] * 6)
    assert (found.call, found.doing, found.path, found.target) == ("read", "read(2)", "/data/part-1", "/data/part-1")
    assert (found.mount, found.filesystem, found.process_state) == ("/data", "nfs4", "D")
    assert (found.blocked_s, found.bytes_per_s, found.share) == (5.0, 0.0, 1.0)
    assert (found.stuck, found.advancing, found.helper) == (True, None, False)


@pytest.mark.parametrize(
    ("rounds", "how"),
    [
        ([at(READ)] * 3, {"idle_s": 0.1}),  # too short a window
        ([at(structs.replace(READ, switches=i)) for i in range(6)], {}),  # it ran in between
        ([at(READ, fetched=10 + i * 50_000) for i in range(6)], {}),  # bytes come from the storage
        ([at(structs.replace(READ, call="sync", writes=True, filesystem="ext4"))] * 6, {}),  # a disk that writes back
        ([at(structs.replace(READ, fd=0))] * 6, {}),  # standard input: waiting for requests
        ([at(structs.replace(READ, path="/dev/pts/3", kind="device"))] * 6, {}),
        ([at(structs.replace(READ, kind="socket", path="socket:[1]"))] * 6, {}),
        ([at(READ)] * 6, {"phase": "collective"}),  # another thread is in a collective
        ([at(READ)], {}),
        ([at()] * 6, {}),
    ],
)
def test_not_stuck(rounds: list[Io], how: dict[str, Any]) -> None:
    assert not facts(*rounds, **how).stuck


def test_thread_resumed_by_a_debugger_is_still_in_the_same_call() -> None:
    """While the debugger holds it, the thread is in no call."""
    after = at(structs.replace(READ, switches=10))
    rounds = [at(READ), at(READ), at(READ), at(), after, after, at()]
    assert facts(*rounds, states="DDDtDDt").blocked_s == 5.0
    assert facts(*rounds[:-1], states="DDDDDD").blocked_s == 1.0


def test_peer_activity_before_a_debugger_resumed_the_rank_counts() -> None:
    before = structs.replace(FIFO, peers=(structs.replace(WRITER, cpu_s=1.0),))
    after = structs.replace(FIFO, peers=(WRITER,), switches=10)
    assert not facts(*[at(before)] * 3, *[at(after)] * 3, states="SSStSS").stuck
    assert facts(*[at(structs.replace(before, peers=(WRITER,)))] * 3, *[at(after)] * 3, states="SSStSS").stuck


def test_page_fault_on_a_mapped_file() -> None:
    found = facts(*[at(structs.replace(READ, call="fault", fd=None))] * 6)
    assert (found.call, found.doing, found.stuck) == ("fault", "a page fault", True)


def test_stuck_sync_on_a_remote_file_system() -> None:
    assert facts(*[at(structs.replace(WRITE, call="sync"))] * 6).stuck


def test_advancing_until_watched_long_enough() -> None:
    found = facts(*[at(READ)] * 3, idle_s=0.1)
    assert (found.stuck, found.advancing) == (None, True)


# --- pipes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peers", "others", "stuck"),
    [
        ((), "all_reduce", True),  # no process can write
        ((WRITER,), "all_reduce", True),  # the writer is idle, and peers wait
        ((WRITER,), None, None),  # no peer waits for this rank: it may wait for work
        ((WRITER,), "broadcast", None),  # peers wait for this rank to hand out work
        ((structs.replace(WRITER, state="T"),), None, True),  # the writer is stopped
        ((Peer(100, "python", "S", True, 3.0),), None, True),  # the rank itself is the only writer
        (None, "all_reduce", None),  # writers not seen
    ],
)
def test_fifo_by_its_writers(peers: tuple[Peer, ...] | None, others: str | None, stuck: bool | None) -> None:
    found = facts(*[at(structs.replace(FIFO, peers=peers))] * 6, others=others)
    assert found.stuck is stuck
    assert found.peers == (None if peers is None else len(peers))


def test_not_stuck_while_the_writer_computes() -> None:
    rounds = [at(structs.replace(FIFO, peers=(structs.replace(WRITER, cpu_s=3.0 + i),))) for i in range(6)]
    assert facts(*rounds).stuck is None


def test_stuck_write_to_a_pipe() -> None:
    found = facts(*[at(structs.replace(PIPE, peers=(structs.replace(WRITER, command="aws s3 cp -"),)))] * 6)
    assert (found.stuck, found.writes, found.bytes_per_s) == (True, True, 0.0)
    assert found.target == "a pipe to aws s3 cp - (pid 900)"
    assert (found.peer, found.peer_state) == ("aws s3 cp - (pid 900)", "S")


@pytest.mark.parametrize(("fd", "stream"), [(1, "stdout"), (2, "stderr"), (5, None)])
def test_pipe_that_is_a_standard_stream(fd: int, stream: str | None) -> None:
    call = structs.replace(PIPE, fd=fd, peers=(WRITER,))
    assert facts(*[at(call)] * 4).stream == stream
    assert facts(*[at(structs.replace(call, writes=False))] * 4).stream is None


def test_rate_from_the_reader_of_the_pipe() -> None:
    rounds = [at(structs.replace(PIPE, peers=(structs.replace(WRITER, moved=1000 + i * 40_000),))) for i in range(6)]
    found = facts(*rounds)
    assert found.bytes_per_s == 40_000
    assert (found.stuck, found.advancing) == (None, True)


def test_rate_from_the_process() -> None:
    rounds = [at(structs.replace(PIPE, switches=i, peers=(WRITER,)), written=i * 30_000) for i in range(6)]
    found = facts(*rounds)
    assert (found.bytes_per_s, found.share, found.advancing) == (30_000, 1.0, True)


def test_rate_ignores_bytes_between_two_writes() -> None:
    later = structs.replace(PIPE, path="pipe:[4712]")
    rounds = [at(structs.replace(PIPE, peers=(WRITER,)), written=0)] * 4
    rounds += [at(structs.replace(later, switches=i, peers=(WRITER,)), written=10**7) for i in range(6)]
    found = facts(*rounds)
    assert (found.bytes_per_s, found.share) == (0.0, 1.0)


def test_one_rate_over_several_files() -> None:
    rounds = [at(structs.replace(WRITE, path=f"/out/{i}.pt", switches=i), stored=i * 50_000) for i in range(6)]
    assert facts(*rounds).bytes_per_s == 50_000


# --- helpers --------------------------------------------------------------------------------------


def test_call_of_an_awaited_helper() -> None:
    call = structs.replace(READ, pid=200, tid=200)
    io = structs.replace(at(call), helpers=(Helper(200, "pt_data_worker", "D", 1.0, sleeps="file"),))
    found = facts(*[io] * 6, helpers=WorkerFacts(waits=True, pid=200))
    assert (found.pid, found.helper, found.stuck) == (200, True, True)
    assert facts(*[io] * 6).call is None, "it does not wait for that one"


def test_pipes_to_helpers_are_ignored() -> None:
    helpers = WorkerFacts(waits=True, pid=200, frame="wait (pool.py:765)")
    assert facts(*[at(structs.replace(PIPE, call="read", writes=False, peers=()))] * 6, helpers=helpers).call is None
    other_program = replace(helpers, frame="communicate (subprocess.py:1209)")
    found = facts(*[at(structs.replace(PIPE, call="read", writes=False, peers=(WRITER,)))] * 6, helpers=other_program)
    assert found.target == "a pipe from feeder (pid 900)"


def test_main_thread_comes_before_other_threads() -> None:
    background = structs.replace(WRITE, tid=150)
    assert facts(*[at(background, READ)] * 6).path == "/data/part-1"
    assert facts(*[at(background)] * 6).path == "/out/last.pt"


@pytest.mark.parametrize(
    ("phase", "op", "counts"),
    [
        ("idle", "get", True),  # queue.get: waits for the thread that reads
        ("idle", "join", True),
        ("input", "dataloader", True),
        ("compute", None, False),  # a thread that waits for commands on a pipe does not hold up the rank
        ("idle", "accept", False),
        ("idle", "sleep", False),
    ],
)
def test_other_thread_counts_only_if_awaited(phase: str, op: str | None, counts: bool) -> None:
    found = facts(*[at(structs.replace(FIFO, tid=150))] * 6, phase=phase, op=op)
    assert (found.stuck, found.path) == ((True, "/data/fifo") if counts else (None, None))
