"""The phase of a rank, from its frames."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hangdoc.analysis.ranks.phases import PHASES, table
from hangdoc.evidence import Frame, Process, Stack, ThreadCpu
from tests.support.synthetic_evidence import BACKWARD, C10D, LIB, At, Stage

SCRIPT = """\
def work(comm, handle):
    comm.Barrier()
    handle.wait()
    time.sleep(5)
    loss.backward()
    dist.all_reduce(x)
    f.read()
    remote.to_here()
    loss.item()
"""
RPC = f"{LIB}/distributed/rpc/api.py"
PY = "/usr/lib/python3.11"
MPI = {"PMI_RANK": "3"}
FILELOCK = "/venv/lib/python3.11/site-packages/filelock/_api.py"
REDUCER = "c10d::Reducer::finalize_backward"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


def test_the_table_names_known_phases() -> None:
    assert {entry.phase for entry in table()} <= set(PHASES)


@pytest.mark.parametrize(
    ("at", "phase", "op"),
    [
        (At([("work", 6)], [("all_reduce", C10D)]), "collective", "all_reduce"),
        (At([("work", 6)], [("barrier", C10D), ("init_process_group", C10D)]), "startup", "init_process_group"),
        (At([("work", 6)], [("recv", C10D)]), "p2p", "recv"),
        (At([("work", 6)], [("destroy_process_group", C10D)]), "teardown", "destroy_process_group"),
        (At([("work", 5)], BACKWARD), "collective", "all_reduce"),
        (At([("work", 5)], BACKWARD, state="R"), "compute", "backward"),
        (At([("work", 6)], [("acquire", FILELOCK)]), "idle", "wait for a lock file"),
        (At([("work", 6)], [("_acquire", FILELOCK), ("acquire", FILELOCK)], state="R"), "idle", "wait for a lock file"),
        (At([("work", 5)], BACKWARD, threads=("python",)), "compute", "backward"),
        (
            At([("work", 5)], BACKWARD, state="R", native=[REDUCER]),
            "collective",
            "all_reduce",
        ),
        (At([("work", 3)]), "collective", "wait"),
        (At([("work", 3)], threads=("python",)), "idle", None),
        (At([("work", 3)], native=["pthread_cond_wait", "c10d::Work::wait"]), "collective", "wait"),
        (At([("work", 2)], environ=MPI, state="R"), "collective", "barrier"),
        (At([("work", 2)], state="R"), "compute", None),
        (At([("work", 7)], environ=MPI, state="R", native=["sched_yield", "PMPI_Bcast"]), "collective", "bcast"),
        (At([("work", 7)], native=["sched_yield", "PMPI_Recv"]), "p2p", "recv"),
        (At([("work", 4)]), "idle", "sleep"),
        (At([("work", 4)], state="R"), "compute", None),
        (At([("work", 1)], [("_try_get_data", f"{LIB}/utils/data/dataloader.py")]), "input", "dataloader"),
        (At([("work", 1)], [("save", f"{LIB}/serialization.py")]), "checkpoint", "save"),
        (At([("work", 1)], [("_compile", f"{LIB}/_dynamo/convert_frame.py")], state="R"), "compile", "compile"),
        (At([("work", 1)], [("get", f"{PY}/queue.py")]), "idle", "get"),
        (At([("work", 6)], [("rpc_sync", RPC), ("wrapper", RPC)]), "p2p", "rpc_sync"),
        (At([("work", 6)], [("wait", f"{PY}/threading.py"), ("_all_gather", RPC)]), "collective", "rpc shutdown"),
        (At([("work", 6)], [("_all_gather", RPC), ("init_rpc", RPC)]), "startup", "init_rpc"),
        (At([("work", 6)], [("wait", f"{LIB}/futures/__init__.py")]), "p2p", "rpc future"),
        (At([("work", 8)]), "p2p", "rpc to_here"),
        (At([("work", 1)], state="T"), "stopped", None),
        (At([("work", 1)], alive=False), "exited", None),
    ],
)
def test_phase(stage: Stage, at: At, phase: str, op: str | None) -> None:
    stack = stage.facts([at]).ranks[0].stack
    assert (stack.phase, stack.op) == (phase, op)


def test_a_thread_that_polls_shared_memory_is_no_work(stage: Stage) -> None:
    """TensorPipe's; it runs all the time, whether there are calls or not."""
    record = Process(
        100, 1, 0, "S", ("python",), None, None, 9.0, 5.0, 1,
        (ThreadCpu(100, "python", "S", 0.1), ThreadCpu(101, "TP_SHM_reactor", "R", 4.9)),
    )  # fmt: skip
    later = replace(record, cpu_s=6.0, threads=(record.threads[0], replace(record.threads[1], cpu_s=5.9)))
    looks = [[At([("work", 6)], [("rpc_sync", RPC)], records={"cpu": one})] for one in (record, later)]
    (rank,) = stage.facts(*looks).ranks
    assert rank.stack.busy is False
    assert rank.progress.cpu_share == pytest.approx(0.0)


def test_native_frames_of_one_rank_apply_to_ranks_with_the_same_stack(stage: Stage) -> None:
    told = At([("work", 7)], native=["pthread_cond_wait", "c10d::Work::wait"])
    facts = stage.facts([told, At([("work", 7)]), At([("work", 4)])])
    assert [rank.stack.phase for rank in facts.ranks] == ["collective", "collective", "idle"]


GPU_THREADS = ("python", "pt_nccl_watchdg")


@pytest.mark.parametrize("state", ["R", "S"])
def test_a_rank_that_waits_for_its_gpu_waits_for_no_peer_while_watched(stage: Stage, state: str) -> None:
    on_gpu = At([("work", 9)], state=state, threads=GPU_THREADS)
    stack = stage.facts([on_gpu, At([("work", 6)], [("all_reduce", C10D)])]).ranks[0].stack
    assert (stack.phase, stack.on_gpu, stack.waits) == ("gpu", True, False)


def test_a_call_of_item_without_a_gpu_is_no_wait_for_one(stage: Stage) -> None:
    assert stage.facts([At([("work", 9)], state="R")]).ranks[0].stack.phase == "compute"


def test_native_frames_show_a_wait_for_the_gpu_in_a_save(stage: Stage) -> None:
    saves = At([("work", 1)], [("save", f"{LIB}/serialization.py")], native=["cudaMemcpyAsync"])
    assert stage.facts([saves]).ranks[0].stack.phase == "gpu"


def test_threads_in_collectives_are_counted(stage: Stage) -> None:
    second = Stack(500, "saver", (Frame("all_gather", C10D, 1), Frame("save", "/job/ckpt.py", 9, "ckpt.py")))
    stack = stage.facts([At([("work", 6)], [("all_reduce", C10D)], extra=[second])]).ranks[0].stack
    assert stack.collective_threads == 2
    assert stack.shared_group is True
    assert "all_gather in saver, save (ckpt.py:9)" in stack.collectives
