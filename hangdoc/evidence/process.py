"""A rank's process, its threads and its helpers, as `/proc` has them (probe `cpu`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThreadCpu:
    """One thread of a rank, from /proc/PID/task/TID."""

    tid: int
    comm: str
    state: str  # R S D T t Z X I
    cpu_s: float  # user + system time since it started
    voluntary: int | None = None  # context switches
    involuntary: int | None = None
    wchan: str | None = None  # kernel function it sleeps in
    syscall: int | None = None  # number of the system call it is in; -1 outside one
    syscall_fd: int | None = None  # first argument of read/write-like calls
    run_delay_s: float | None = None  # time spent runnable but waiting for a core (schedstat)


@dataclass(frozen=True, slots=True)
class Process:
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
    tracer_pid: int = 0  # who ptraces it
    tracer: str | None = None  # its command name
    tracer_command: str | None = None  # its command line, shortened and redacted
    affinity: tuple[int, ...] | None = None  # cores it may run on
    nice: int | None = None
    children: tuple[ChildProcess, ...] = ()
    system_s: float | None = None  # of its CPU time, that in the kernel


@dataclass(frozen=True, slots=True)
class ChildProcess:
    """A helper process of a rank: dataloader worker, tokeniser pool, compiler."""

    pid: int
    comm: str
    command: tuple[str, ...]
    state: str
    cpu_s: float
    wchan: str | None = None
    age_s: float | None = None
