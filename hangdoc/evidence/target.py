"""Whom we watch, and what of it could not be seen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A process that is a training rank, as discovery found it."""

    pid: int  # negative: the rank belongs on this host and its process is gone
    start_ticks: int  # /proc/PID/stat field 22: tells a reused PID from the process we meant
    host: str
    rank: int | None  # global rank; None while it is not known
    local_rank: int | None = None
    world_size: int | None = None
    job: str = "none"  # torchelastic run id, Slurm or MPI job id, or master address:port; "none" if silent
    launcher: str | None = None  # torchrun | mpi | slurm | spawn | plain
    launcher_pid: int | None = None
    children: tuple[int, ...] = ()  # helpers that belong to this rank: dataloader and compile workers
    master: str | None = None  # address:port where the job's ranks meet (their store): equal on every host of a job
    account: str | None = None  # whose process it is, see `hangdoc.system.account`
    role: str = "rank"  # rank | agent: a launcher that waits for other hosts and has no rank yet; its `rank` is None


AGENT = "agent"  # the probe named in `Unseen` where a whole host is lost


@dataclass(frozen=True, slots=True)
class Unseen:
    """What a probe could not see, and why: said to the user, and it lowers the confidence."""

    probe: str
    why: str  # one sentence with the remedy
    rank: int | None = None  # None: the whole host
    pid: int | None = None
    host: str | None = None


def parse_endpoint(master: str) -> tuple[str, int] | None:
    """Address and port of `address:port`; None where it is none."""
    address, _, port = master.rpartition(":")
    valid = port.isascii() and port.isdecimal() and len(port) <= 5
    return (address.strip("[]"), int(port)) if address and valid else None
