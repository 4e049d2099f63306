"""Probe `cpu`: CPU time, state and context switches of each rank's process, threads and child processes, from /proc.

Runs every second. A thread that has not run since the previous round costs two small reads: stat and schedstat.
"""

from __future__ import annotations

import os

from hangdoc.evidence import ChildProcess, Process, Target, ThreadCpu, Unseen
from hangdoc.system import procfs
from hangdoc.system.command_text import command_text
from hangdoc.system.syscalls import restarted
from probes import Observation, Request, Tier

_MAX_CHILDREN = 256  # of a rank; the rest is left out


class CpuProbe:
    name = "cpu"
    scope = "rank"
    tier = Tier.PULSE
    needs = "nothing"
    record = Process
    order = 10
    steady = False

    def observe(self, request: Request) -> Observation:
        before = {rank.target.pid: rank.records.get(self.name) for rank in getattr(request.previous, "ranks", ())}
        records: dict[int, Process] = {}
        unseen: list[Unseen] = []
        ranks = frozenset(target.pid for target in request.targets)
        for target in request.targets:
            try:
                records[target.pid], threads = _process(target, before.get(target.pid), ranks)
            except (LookupError, ValueError) as error:
                unseen.append(Unseen(self.name, str(error), target.rank, target.pid, target.host))
                continue
            if threads > procfs.MAX_THREADS:
                why = f"PID {target.pid} has {threads} threads; only the oldest {procfs.MAX_THREADS} are shown"
                unseen.append(Unseen(self.name, why, target.rank, target.pid, target.host))
        return Observation(records, unseen=tuple(unseen))


def _process(target: Target, before: Process | None, ranks: frozenset[int]) -> tuple[Process, int]:
    """The process, and its number of threads. Raises LookupError if it has ended."""
    pid = target.pid
    main = procfs.stat(pid)
    status = procfs.status(pid)
    if main is None or not status:
        raise LookupError(f"PID {pid} has ended; start the job again, or give the new PIDs")
    if main.start_ticks != target.start_ticks:
        raise LookupError(f"PID {pid} is another process now; the rank has ended, give the new PIDs")
    tids = procfs.threads(pid)
    known = {thread.tid: thread for thread in before.threads} if before else {}
    threads = (_thread(pid, tid, known.get(tid)) for tid in sorted(tids))
    tracer = int(status.get("TracerPid", "0"))
    process = Process(
        pid=pid,
        ppid=main.ppid,
        uid=int(status["Uid"].split()[0]),
        state=main.state,
        command=procfs.strings(f"/proc/{pid}/cmdline") or (),
        executable=procfs.link(f"/proc/{pid}/exe"),
        cwd=procfs.link(f"/proc/{pid}/cwd"),
        age_s=procfs.age_s(main.start_ticks),
        cpu_s=main.cpu_s,
        rss_bytes=int(status.get("VmRSS", "0 kB").split()[0]) * 1024,
        threads=tuple(thread for thread in threads if thread),
        tracer_pid=tracer,
        tracer=(procfs.text(f"/proc/{tracer}/comm") or "").strip() or None if tracer else None,
        tracer_command=command_text(tracer) if tracer else None,
        affinity=_affinity(pid),
        nice=main.nice,
        children=_children(pid, tids, ranks),
        system_s=main.system_s,
        reaped_s=main.reaped_s,
    )
    return process, int(status.get("Threads", "0"))


def _affinity(pid: int) -> tuple[int, ...] | None:
    try:
        return tuple(sorted(os.sched_getaffinity(pid)))
    except OSError:
        return None


def _thread(pid: int, tid: int, before: ThreadCpu | None) -> ThreadCpu | None:
    """One thread; None: it has ended."""
    stat = procfs.stat(pid, tid)
    if stat is None:
        return None
    folder = f"/proc/{pid}/task/{tid}"
    cpu_s, run_delay_s = _schedstat(folder, stat.cpu_s)
    # If the thread has not run, nothing below has changed.
    idle = before is not None and run_delay_s is not None and (cpu_s, run_delay_s) == (before.cpu_s, before.run_delay_s)
    if idle and before is not None and before.state == stat.state:
        return before
    voluntary, involuntary = _switches(folder)
    asleep = stat.state in "SDTt"
    syscall, descriptor = _syscall(folder) if asleep else (None, None)
    return ThreadCpu(
        tid=tid,
        comm=stat.comm,
        state=stat.state,
        cpu_s=cpu_s,
        voluntary=voluntary,
        involuntary=involuntary,
        wchan=wchan(folder) if asleep else None,
        syscall=syscall,
        syscall_fd=descriptor,
        run_delay_s=run_delay_s,
    )


def _schedstat(folder: str, ticked_s: float) -> tuple[float, float | None]:
    """Time on a CPU and time waiting in a run queue (s); without schedstat: `ticked_s` and None."""
    fields = (procfs.read(f"{folder}/schedstat") or b"").split()
    if len(fields) != 3 or fields[2] == b"0":  # every thread has run at least once: 0 means no schedstat
        return ticked_s, None
    return int(fields[0]) / 1e9, int(fields[1]) / 1e9


def _switches(folder: str) -> tuple[int | None, int | None]:
    """Voluntary and involuntary context switches: the last two lines of a thread's status."""
    status = procfs.read(f"{folder}/status") or b""
    _, found, tail = status.partition(b"\nvoluntary_ctxt_switches:")
    values = tail.split()
    return (int(values[0]), int(values[2])) if found and len(values) >= 3 else (None, None)


def wchan(folder: str) -> str | None:
    """Kernel function that a thread sleeps in, without compiler suffix; None: unknown."""
    name = procfs.text(f"{folder}/wchan")
    return None if name in (None, "", "0") else name.split(".")[0]


def _syscall(folder: str) -> tuple[int | None, int | None]:
    """System call number of a sleeping thread, and the file descriptor if that is its first argument.

    Needs permission to ptrace the target, but does not pause it.
    """
    fields = (procfs.read(f"{folder}/syscall") or b"").split()
    if not fields or fields[0] == b"running":
        return None, None
    number = restarted(int(fields[0]), folder)
    if len(fields) < 2 or number not in _ON_DESCRIPTOR.get(os.uname().machine, ()):
        return number, None
    return number, int(fields[1], 16) & 0x7FFFFFFF


# Blocking system calls with a file descriptor as first argument: all forms of read and write, sockets, ioctl, fcntl,
# flock, fsync, fdatasync, fstat, lseek, getdents, epoll_wait, close. Numbers: the kernel's unistd_64.h.
_ON_DESCRIPTOR = {
    "x86_64": frozenset(
        {0, 1, 3, 5, 8, 16, 17, 18, 19, 20, 40, 42, 43, 44, 45, 46, 47, 72, 73, 74, 75, 217, 232, 281, 288, 295, 296}
    ),
    "aarch64": frozenset(
        {22, 25, 29, 32, 57, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 80, 82, 83, 202, 203, 206, 207, 211, 212, 242}
    ),
}


def _children(pid: int, tids: list[int], ranks: frozenset[int]) -> tuple[ChildProcess, ...]:
    """Living descendants of a rank, other ranks excepted."""
    found: dict[int, ChildProcess] = {}
    waiting = procfs.children(pid, tids)
    while waiting and len(found) < _MAX_CHILDREN:
        child = waiting.pop()
        stat = None if child in ranks else procfs.stat(child)
        if stat is not None:
            command = procfs.strings(f"/proc/{child}/cmdline") or ()
            where = wchan(f"/proc/{child}") if stat.state in "SD" else None
            age_s = procfs.age_s(stat.start_ticks)
            found[child] = ChildProcess(child, stat.comm, command, stat.state, stat.cpu_s, where, age_s, stat.reaped_s)
            waiting.extend(procfs.children(child))
    return tuple(found[child] for child in sorted(found))


PROBE = CpuProbe()
