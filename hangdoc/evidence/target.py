"""The observed processes, and what could not be observed."""

from __future__ import annotations

from hangdoc.evidence.record import Record


class Target(Record, frozen=True):
    """A training rank found by discovery."""

    pid: int  # negative: the rank belongs to this host, but its process is gone
    start_ticks: int  # /proc/PID/stat field 22; detects a reused PID
    host: str
    rank: int | None  # global rank; None: unknown so far
    local_rank: int | None = None
    world_size: int | None = None
    job: str = "none"  # torchelastic run ID, Slurm or MPI job ID, or master address:port; "none" if unknown
    launcher: str | None = None  # torchrun | mpi | slurm | spawn | plain
    launcher_pid: int | None = None
    children: tuple[int, ...] = ()  # helper processes of this rank: dataloader and compile workers
    master: str | None = None  # address:port of the job's store; the same on every host of the job
    account: str | None = None  # owner of the process, see `hangdoc.system.account`
    role: str = "rank"  # rank | agent: a launcher that waits for other hosts; its `rank` is None


AGENT = "agent"  # `Unseen.probe` of a lost host


class Unseen(Record, frozen=True):
    """Something that a probe could not observe, with the reason. It is shown to the user and lowers confidence."""

    probe: str
    why: str  # one sentence, with the remedy
    rank: int | None = None  # None: the whole host
    pid: int | None = None
    host: str | None = None


def parse_endpoint(master: str) -> tuple[str, int] | None:
    """Address and port of `address:port`; None: malformed."""
    address, _, port = master.rpartition(":")
    valid = port.isascii() and port.isdecimal() and len(port) <= 5
    return (address.strip("[]"), int(port)) if address and valid else None
