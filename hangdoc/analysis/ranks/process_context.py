"""State of a rank's process, as far as it decides the phase of its threads."""

from __future__ import annotations

import re
from functools import lru_cache

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.phases import ProcessContext
from hangdoc.evidence import Environ, Process, Stacks
from hangdoc.evidence.logs import Aftermath

GROUP_THREADS = re.compile(r"gloo|pt_nccl|^nccl")  # names (comm) of the threads a process group keeps
GPU_THREADS = re.compile(r"pt_nccl|^nccl|^cuda\d|^cuda-")  # of NCCL, and of the driver: "cuda-EvtHandlr"
MPI_LAUNCH = frozenset({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
# Threads of TensorPipe, the transport of RPC, which poll its shared memory all the time.
POLLERS = re.compile(r"^TP_\w+")
HARNESS_THREADS = re.compile(rf"gloo|pt_tcpstore|^nccl|pt_nccl|{POLLERS.pattern}")  # run on an idle rank, too


def is_busy(process: object) -> bool | None:
    """True if a thread of the process runs, other than a process group's own threads; None: no record of `cpu`."""
    if not isinstance(process, Process):
        return None
    return not all(map(of_harness, [thread.comm for thread in process.threads if thread.state == "R"]))


@lru_cache(maxsize=1024)
def of_harness(comm: str) -> bool:
    """True if a thread of this name (comm) wakes up now and then on an idle rank."""
    return bool(HARNESS_THREADS.search(comm))


def process_context(case: Case, key: Key, busy: bool | None, stacks: Stacks) -> ProcessContext:
    known: dict[Key, tuple[bool, bool, bool]] = case.once("process_context", dict)
    if key not in known:
        process, environ = case.record(key, "cpu"), case.record(key, "environ")
        mpi = isinstance(environ, Environ) and not MPI_LAUNCH.isdisjoint(environ.variables)
        threads = [t.comm for t in process.threads] if isinstance(process, Process) else []
        known[key] = mpi, any(map(_of_group, threads)), any(map(GPU_THREADS.search, threads))
    mpi, group, gpu = known[key]
    ended = busy is None and isinstance(case.record(key, "aftermath"), Aftermath)
    if ended:
        # Post mortem there is no process: the dump marks active threads, and several ranks imply a process group.
        busy, group, gpu = any(stack.active for stack in stacks.threads), len(case.ranks) > 1, True
    return _circumstances(busy, mpi, group, stacks.native, gpu, ended)


@lru_cache(maxsize=64)
def _circumstances(busy: bool | None, mpi: bool, group: bool, native: bool, gpu: bool, ended: bool) -> ProcessContext:
    return ProcessContext(busy, mpi, group, native, gpu, ended)


@lru_cache(maxsize=1024)
def _of_group(comm: str) -> bool:
    return bool(GROUP_THREADS.search(comm))
