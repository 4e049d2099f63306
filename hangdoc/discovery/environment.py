"""Rank, job and rendezvous address of a process, from the environment it was started with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hangdoc.evidence.limits import MAX_RANKS, MAX_RANKS_PER_HOST, parse_count

# Rank, local rank, world size. The first family with a rank wins, most specific launcher first: torchrun inside mpirun
# inside a Slurm step sets all three.
_FAMILIES = (
    ("torch", "RANK", ("LOCAL_RANK",), ("WORLD_SIZE",)),
    ("mpi", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    ("mpi", "PMI_RANK", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), ("PMI_SIZE",)),
    ("mpi", "MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_LOCAL_RANK",), ("MV2_COMM_WORLD_SIZE",)),
    ("mpi", "PMIX_RANK", ("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"), ("SLURM_STEP_NUM_TASKS",)),
    ("torch", "HOROVOD_RANK", ("HOROVOD_LOCAL_RANK",), ("HOROVOD_SIZE",)),
    ("local", "LOCAL_RANK", ("LOCAL_RANK",), ("WORLD_SIZE",)),  # Lightning starts its processes without RANK
    ("slurm", "SLURM_PROCID", ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
)
_LOOPBACK = ("localhost", "127.", "[::1]", "::1")
MAX_SHOWN = 40  # characters of an implausible value


@dataclass(frozen=True, slots=True)
class Identity:
    """What the environment says. Processes with equal identities are one rank: the children inherited it."""

    family: str  # torch | mpi | local | slurm
    rank: int | None
    local_rank: int | None
    world_size: int | None
    run_id: str | None  # of torchelastic
    master: str | None  # address:port of the store
    slurm: str | None  # job, or job.step
    namespace: str | None  # the MPI launcher's name of the job
    doubts: tuple[str, ...] = field(default=(), compare=False)  # implausible values: parts of a sentence


def on_loopback(master: str | None) -> bool:
    """True if a job's store is reachable only from its own host."""
    return master is not None and master.startswith(_LOOPBACK)


def identity(environ: Mapping[str, str]) -> Identity | None:
    """The identity in an environment; None: it names no rank."""
    for family, rank, local_rank, world_size in _FAMILIES:
        number = _integer(environ, rank)
        if number is None or (family == "local" and "WORLD_SIZE" not in environ):
            continue
        later_node = family == "local" and environ.get("NODE_RANK", environ.get("GROUP_RANK", "0")) != "0"
        most = MAX_RANKS_PER_HOST if on_loopback(_master(environ)) else MAX_RANKS
        size = _integer(environ, *world_size, most=most)
        return Identity(
            family,
            None if later_node else number,
            _integer(environ, *local_rank),
            size or None,
            environ.get("TORCHELASTIC_RUN_ID"),
            _master(environ),
            _slurm(environ),
            environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or environ.get("PMI_JOBID"),
            tuple(_doubts(environ, rank, number, world_size, size, most)),
        )
    return None


def _integer(environ: Mapping[str, str], *names: str, most: int = MAX_RANKS) -> int | None:
    return next((number for name in names if (number := parse_count(environ.get(name), most)) is not None), None)


def _doubts(
    environ: Mapping[str, str], rank: str, number: int, world_size: tuple[str, ...], size: int | None, most: int
) -> Iterator[str]:
    name = next((name for name in world_size if environ.get(name)), None)
    if name is None:
        return
    shown = f"{name}={environ[name][:MAX_SHOWN]}{'...' if len(environ[name]) > MAX_SHOWN else ''}"
    if not size:
        where = "on one host (its store is on loopback)" if most < MAX_RANKS else "of a job"
        yield f"{shown} is ignored: the number of ranks {where} must be from 1 to {most:,}"
    elif number >= size:
        yield f"{rank}={number} is not below {shown}"


def _master(environ: Mapping[str, str]) -> str | None:
    address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    return f"{address}:{port}" if address and port else None


def _slurm(environ: Mapping[str, str]) -> str | None:
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID")
    return f"{job}.{step}" if job and step else job
