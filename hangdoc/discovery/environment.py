"""Who a process is said to be by the environment it was started with: its rank, its job, and its meeting point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hangdoc.evidence.limits import HOST_MOST, RANKS_MOST, parse_count

# Rank, rank on this host, world size: the first family whose rank is set wins, the most specific launcher first
# (torchrun inside an mpirun inside a Slurm step leaves all three behind).
_FAMILIES = (
    ("torch", "RANK", ("LOCAL_RANK",), ("WORLD_SIZE",)),
    ("mpi", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    ("mpi", "PMI_RANK", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), ("PMI_SIZE",)),
    ("mpi", "MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_LOCAL_RANK",), ("MV2_COMM_WORLD_SIZE",)),
    ("mpi", "PMIX_RANK", ("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"), ("SLURM_STEP_NUM_TASKS",)),
    ("torch", "HOROVOD_RANK", ("HOROVOD_LOCAL_RANK",), ("HOROVOD_SIZE",)),
    ("local", "LOCAL_RANK", ("LOCAL_RANK",), ("WORLD_SIZE",)),  # Lightning starts its processes with no RANK
    ("slurm", "SLURM_PROCID", ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
)
_LOOPBACK = ("localhost", "127.", "[::1]", "::1")
LONGEST = 40  # characters of a value that is not believed


@dataclass(frozen=True, slots=True)
class Identity:
    """What the environment says. Two processes with equal identities are one rank: the second inherited it."""

    family: str  # torch | mpi | local | slurm
    rank: int | None
    local_rank: int | None
    world_size: int | None
    run_id: str | None  # of torchelastic
    master: str | None  # address:port where the ranks meet
    slurm: str | None  # job, or job.step
    namespace: str | None  # the MPI launcher's own name of the job
    doubts: tuple[str, ...] = field(default=(), compare=False)  # what it claims and cannot be: parts of a sentence


def on_loopback(master: str | None) -> bool:
    """Whether a job's store can be reached from this host alone."""
    return master is not None and master.startswith(_LOOPBACK)


def identity(environ: Mapping[str, str]) -> Identity | None:
    """The identity an environment gives; None where it names no rank."""
    for family, rank, local_rank, world_size in _FAMILIES:
        number = _integer(environ, rank)
        if number is None or (family == "local" and "WORLD_SIZE" not in environ):
            continue
        later_node = family == "local" and environ.get("NODE_RANK", environ.get("GROUP_RANK", "0")) != "0"
        most = HOST_MOST if on_loopback(_master(environ)) else RANKS_MOST
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


def _integer(environ: Mapping[str, str], *names: str, most: int = RANKS_MOST) -> int | None:
    return next((number for name in names if (number := parse_count(environ.get(name), most)) is not None), None)


def _doubts(
    environ: Mapping[str, str], rank: str, number: int, world_size: tuple[str, ...], size: int | None, most: int
) -> Iterator[str]:
    name = next((name for name in world_size if environ.get(name)), None)
    if name is None:
        return
    told = f"{name}={environ[name][:LONGEST]}{'...' if len(environ[name]) > LONGEST else ''}"
    if not size:
        where = "on one host (the job meets on loopback)" if most < RANKS_MOST else "of a job"
        yield f"{told} is ignored: the number of ranks {where} is from 1 to {most:,}"
    elif number >= size:
        yield f"{rank}={number} is not below {told}"


def _master(environ: Mapping[str, str]) -> str | None:
    address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    return f"{address}:{port}" if address and port else None


def _slurm(environ: Mapping[str, str]) -> str | None:
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID")
    return f"{job}.{step}" if job and step else job
