"""Reads of /proc: small and fast; `None` if the process is gone or not readable.

Nothing here follows a path that the target chose, so no call blocks on a dead mount.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

TICKS = os.sysconf("SC_CLK_TCK")  # clock ticks per second in /proc/PID/stat
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD, include/linux/sched.h
_LARGEST = 4 << 20  # bytes read of one file, enough for long environments and memory maps
MAX_THREADS = 2048  # per process; each costs 40 us per round
MAX_DESCRIPTORS = 16_384  # per process; each costs 4 us per walk


@dataclass(frozen=True, slots=True)
class Stat:
    """Fields of /proc/PID/stat, or of /proc/PID/task/TID/stat: proc_pid_stat(5)."""

    pid: int
    comm: str
    state: str
    ppid: int
    cpu_s: float  # user + system time, of the thread or the whole process
    system_s: float
    reaped_s: float  # CPU time of its children that have ended, and of theirs
    nice: int
    start_ticks: int
    flags: int  # PF_* of include/linux/sched.h

    @property
    def kernel(self) -> bool:
        """True for a kernel thread. The PID is no evidence: in a PID namespace any process may be PID 2."""
        return bool(self.flags & _KERNEL_THREAD)


def read(path: str) -> bytes | None:
    """Content of a file of /proc; None: gone or not permitted."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.read(fd, 65536)
        while len(data) < _LARGEST and (more := os.read(fd, 1 << 18)):  # the kernel returns a page at a time
            data += more
        return data
    except OSError:
        return None
    finally:
        os.close(fd)


def text(path: str) -> str | None:
    """Content as text; invalid UTF-8 becomes replacement characters."""
    data = read(path)
    return None if data is None else data.decode(errors="replace")


def stat(pid: int, tid: int | None = None) -> Stat | None:
    """State and times of a process or of one of its threads."""
    data = read(f"/proc/{pid}/stat" if tid is None else f"/proc/{pid}/task/{tid}/stat")
    if not data:
        return None
    head, _, tail = data.rpartition(b")")  # the name may contain parentheses and blanks
    fields = tail.split()
    return Stat(
        pid=int(head[: head.index(b" ")]),
        comm=head[head.index(b"(") + 1 :].decode(errors="replace"),
        state=chr(fields[0][0]),
        ppid=int(fields[1]),
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS,
        system_s=int(fields[12]) / TICKS,
        reaped_s=(int(fields[13]) + int(fields[14])) / TICKS,
        nice=int(fields[16]),
        start_ticks=int(fields[19]),
        flags=int(fields[6]),
    )


def age_s(start_ticks: int) -> float:
    """Age in seconds of a process with that start time."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / TICKS)


def status(pid: int) -> dict[str, str]:
    """/proc/PID/status as a mapping; empty: not readable."""
    lines = (text(f"/proc/{pid}/status") or "").splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def numbers(path: str, most: int | None = None) -> list[int]:
    """Numeric names in a folder of /proc (PIDs, TIDs, descriptors); empty: not readable.

    The kernel creates the entries on demand, so `most` also bounds the time.
    """
    try:
        with os.scandir(path) as entries:
            return [int(entry.name) for entry in islice(entries, most) if entry.name.isdecimal()]
    except OSError:
        return []


def threads(pid: int) -> list[int]:
    """TIDs of a process, at most MAX_THREADS, oldest first."""
    return numbers(f"/proc/{pid}/task", MAX_THREADS)


def descriptors(pid: int) -> list[int]:
    """File descriptors of a process, at most MAX_DESCRIPTORS, lowest first."""
    return numbers(f"/proc/{pid}/fd", MAX_DESCRIPTORS)


def strings(path: str) -> tuple[str, ...] | None:
    """Parts of a NUL-separated file such as `cmdline` or `environ`; None: gone or not permitted."""
    data = read(path)
    if data is None:
        return None
    return tuple(part.decode(errors="replace") for part in data.rstrip(b"\0").split(b"\0")) if data else ()


def environ(pid: int) -> dict[str, str] | None:
    """Environment at the start of the process, without its own later changes; None: gone or not permitted."""
    found = strings(f"/proc/{pid}/environ")
    return None if found is None else {k: v for k, eq, v in (s.partition("=") for s in found) if eq}


def link(path: str) -> str | None:
    """Target of a symbolic link of /proc, not followed; None: gone or not permitted."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def children(pid: int, tids: list[int] | None = None) -> list[int]:
    """PIDs of the children of a process, of all its threads or of `tids`."""
    found: list[int] = []
    for tid in threads(pid) if tids is None else tids:
        found.extend(int(child) for child in (read(f"/proc/{pid}/task/{tid}/children") or b"").split())
    return found


def lineage(pid: int) -> Iterator[int]:
    """A process and its ancestors, init excluded."""
    while pid > 1:
        yield pid
        parent = stat(pid)
        pid = parent.ppid if parent else 0


def maps_any(pid: int, names: Sequence[bytes]) -> bool | None:
    """True if a file with one of these in its path is mapped; None: the mappings cannot be read."""
    maps = read(f"/proc/{pid}/maps")
    return any(name in maps for name in names) if maps else None


def io_counters(pid: int) -> tuple[int, int, int, int] | None:
    """rchar, wchar, read_bytes and write_bytes of /proc/PID/io; None: gone or not permitted."""
    fields = (read(f"/proc/{pid}/io") or b"").split()
    return (int(fields[1]), int(fields[3]), int(fields[9]), int(fields[11])) if len(fields) >= 12 else None


def moved_bytes(pid: int) -> int | None:
    """Bytes read and written since the process started, caches and pipes included; None: gone or not permitted."""
    counters = io_counters(pid)
    return counters[0] + counters[1] if counters else None
