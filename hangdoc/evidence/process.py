"""A rank's process, its threads and its helper processes, from `/proc` (probe `cpu`)."""

from __future__ import annotations

from collections.abc import Mapping

from hangdoc.evidence.record import Record


class ThreadCpu(Record, frozen=True):
    """One thread of a rank, from /proc/PID/task/TID."""

    tid: int
    comm: str
    state: str  # R S D T t Z X I
    cpu_s: float  # user + system time since it started
    voluntary: int | None = None  # voluntary context switches
    involuntary: int | None = None  # involuntary context switches
    wchan: str | None = None  # kernel function it sleeps in
    syscall: int | None = None  # number of the current system call; -1: in none
    syscall_fd: int | None = None  # first argument of calls like read and write
    run_delay_s: float | None = None  # time runnable but waiting for a core (schedstat)


class Process(Record, frozen=True):
    """A rank's process (record of probe `cpu`)."""

    pid: int
    ppid: int
    uid: int
    state: str  # of the main thread
    command: tuple[str, ...]
    executable: str | None
    cwd: str | None
    age_s: float
    cpu_s: float
    rss_bytes: int
    threads: tuple[ThreadCpu, ...]
    tracer_pid: int = 0  # process that ptraces it; 0: none
    tracer: str | None = None  # command name of the tracer
    tracer_command: str | None = None  # command line of the tracer, shortened and redacted
    affinity: tuple[int, ...] | None = None  # cores that it may use
    nice: int | None = None
    children: tuple[ChildProcess, ...] = ()
    system_s: float | None = None  # part of cpu_s spent in the kernel
    reaped_s: float = 0.0  # CPU time of its children that have ended, and of theirs


class Channels(Record, frozen=True):
    """What a rank may share with other processes of its host (record of probe `channels`)."""

    memory: Mapping[str, int]  # bytes of each shared writable mapping, by device and inode: "00:1a:4242"
    sockets: tuple[str, ...] | None  # connections of its Unix sockets, by both inodes: "812-813"; None: not readable
    rdma: bool = False  # it has mapped an RDMA adapter


class ChildProcess(Record, frozen=True):
    """A helper process of a rank: dataloader worker, tokenizer pool, compiler."""

    pid: int
    comm: str
    command: tuple[str, ...]
    state: str
    cpu_s: float
    wchan: str | None = None
    age_s: float | None = None
    reaped_s: float = 0.0  # CPU time of its children that have ended, and of theirs
