"""Who a process is said to be by the environment it was started with: its rank, its job, and its meeting point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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


def identity(environ: Mapping[str, str]) -> Identity | None:
    """The identity an environment gives; None where it names no rank."""
    for family, rank, local_rank, world_size in _FAMILIES:
        number = _integer(environ, rank)
        if number is None or (family == "local" and "WORLD_SIZE" not in environ):
            continue
        later_node = family == "local" and environ.get("NODE_RANK", environ.get("GROUP_RANK", "0")) != "0"
        return Identity(
            family,
            None if later_node else number,
            _integer(environ, *local_rank),
            _integer(environ, *world_size),
            environ.get("TORCHELASTIC_RUN_ID"),
            _master(environ),
            _slurm(environ),
            environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or environ.get("PMI_JOBID"),
        )
    return None


def _integer(environ: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        value = environ.get(name, "")
        if value.isascii() and value.isdecimal() and len(value) <= 9:
            return int(value)
    return None


def _master(environ: Mapping[str, str]) -> str | None:
    address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    return f"{address}:{port}" if address and port else None


def _slurm(environ: Mapping[str, str]) -> str | None:
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID")
    return f"{job}.{step}" if job and step else job
