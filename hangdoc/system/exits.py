"""Exits of processes that are not our children, and the kernel log about them (OOM kills, segmentation faults).

We send nothing to a process. pidfd_open(2) and poll(2) report its end. Its status comes from field 52 of /proc/PID/stat
while it is a zombie (needs ptrace permission), and from ioctl PIDFD_GET_INFO (Linux >= 6.15) even after its parent has
reaped it.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import select
import signal
import struct
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from hangdoc.evidence import End, Target
from hangdoc.redaction.text import redact_text
from hangdoc.system import cgroups, procfs

_INFO = "=QQ11Ii"  # first 64 bytes of struct pidfd_info, uapi/linux/pidfd.h; ends with exit_code
_GET_INFO = (3 << 30) | (struct.calcsize(_INFO) << 16) | (0xFF << 8) | 11  # _IOWR(0xFF, 11, struct pidfd_info)
RENEW_S = 5.0  # interval at which OOM counters are read
_WITH_EXIT = 1 << 3  # PIDFD_INFO_EXIT

_FIRST_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO: PIDs in the kernel log are those of this namespace
_CRASH = re.compile(r"[Kk]illed process|segfault|traps:|general protection|unhandled|trap |Machine Check", re.ASCII)
_MAX_LINES = 4  # of the kernel log, kept for one process
_LONGEST_LINE = 240  # characters


@dataclass(slots=True)
class _Handle:
    """A watched process."""

    target: Target
    fd: int | None  # None: no pidfd available
    memory: cgroups.OomCounter | None = None  # as of RENEW_S to 2 RENEW_S ago: a kill is counted well before the exit
    newer: cgroups.OomCounter | None = None
    renewed_s: float = -math.inf
    tids: Sequence[int] = ()  # the kernel logs a crash under the TID


@dataclass
class ExitWatcher:
    """Watches the processes of the targets; `wait` returns at the first exit, so callers see the order of exits."""

    _handles: dict[tuple[int, int], _Handle] = field(default_factory=dict)  # by PID and start
    _ends: dict[tuple[int, int], End] = field(default_factory=dict)

    @cached_property
    def _mounts(self) -> Sequence[cgroups.Mount]:
        return cgroups.own_mounts()

    def watch(self, targets: Sequence[Target]) -> None:
        """Watch exactly these targets; refresh the data that must be read before a process ends."""
        wanted = {(target.pid, target.start_ticks): target for target in targets if target.pid > 0}
        for key in [key for key in self._handles if key not in wanted]:
            _close(self._handles.pop(key))
        self._ends = {key: end for key, end in self._ends.items() if key in wanted}
        for key, target in wanted.items():
            if key not in self._handles and key not in self._ends:
                self._open(key, target)
        self.wait(0.0)
        for key in [key for key, handle in self._handles.items() if handle.fd is None and _gone(handle.target)]:
            self._ended(key, time.monotonic())
        for handle in self._handles.values():
            if time.monotonic() - handle.renewed_s >= RENEW_S:
                now = cgroups.oom_counter(handle.target.pid, self._mounts) or handle.newer
                handle.memory, handle.newer, handle.renewed_s = handle.newer or now, now, time.monotonic()
            handle.tids = procfs.threads(handle.target.pid) or handle.tids

    def wait(self, until_s: float) -> bool:
        """Sleep until `until_s` (monotonic), or until a process ends; True if one ended."""
        by_fd = {handle.fd: key for key, handle in self._handles.items() if handle.fd is not None}
        poll = select.poll()
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        events = poll.poll(max(0.0, until_s - time.monotonic()) * 1000)
        at_s = time.monotonic()
        for fd, _ in events:
            self._ended(by_fd[fd], at_s)
        return bool(events)

    def is_running(self, target: Target) -> bool | None:
        """False: ended; True: running at the last check; None: only /proc knows."""
        key = (target.pid, target.start_ticks)
        return False if key in self._ends else True if key in self._handles and self._handles[key].fd else None

    def end(self, target: Target) -> End | None:
        """How the process ended; None: still running, or not observed."""
        return self._ends.get((target.pid, target.start_ticks))

    def _open(self, key: tuple[int, int], target: Target) -> None:
        stat = procfs.stat(target.pid)
        if stat is None or stat.start_ticks != target.start_ticks:
            return
        if stat.state in "ZX":  # ended before we watched
            self._handles[key] = _Handle(target, None)
            self._ended(key, None)
            return
        try:
            fd = os.pidfd_open(target.pid)
        except (OSError, AttributeError):  # Linux < 5.3, a seccomp filter, an interpreter built without it
            self._handles[key] = _Handle(target, None)
            return
        now = procfs.stat(target.pid)  # the PID may have been reused before we opened the descriptor
        if now is None or now.start_ticks != target.start_ticks:
            os.close(fd)
            return
        self._handles[key] = _Handle(target, fd)

    def _ended(self, key: tuple[int, int], at_s: float | None) -> None:
        handle = self._handles.pop(key)
        status = _status(handle)
        code = os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None
        number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
        before, after = handle.memory, cgroups.reread(handle.memory)
        self._ends[key] = End(
            code=code,
            signal=number,
            at_s=at_s,
            oom_kills=after.kills - before.kills if before and after else None,
            oom_counter=after.path if after else None,
            kernel=() if code is not None else kernel_log_lines({handle.target.pid, *handle.tids}, handle.target),
        )
        _close(handle)


def kernel_log_lines(pids: Collection[int], target: Target) -> tuple[str, ...]:
    """Log lines about these PIDs or TIDs since the target started; empty without permission to read /dev/kmsg."""
    if procfs.link("/proc/self/ns/pid") != _FIRST_NAMESPACE:
        return ()
    named = re.compile(rf"(?:process |\[)(?:{'|'.join(map(str, sorted(pids)))})\b")
    since_s = time.monotonic() - procfs.age_s(target.start_ticks) - 1
    found = [
        redact_text(line)[:_LONGEST_LINE]
        for at_s, line in _kernel_log()
        if at_s >= since_s and _CRASH.search(line) and named.search(line)
    ]
    return tuple(found[-_MAX_LINES:])


def _kernel_log() -> Iterator[tuple[float, str]]:
    """Every line in the kernel's ring buffer, with its time (s since boot)."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        while True:
            try:
                record = os.read(fd, 8192)
            except BrokenPipeError:  # overwritten meanwhile; continue with the next record
                continue
            head, _, text = record.decode(errors="replace").partition(";")
            yield int(head.split(",")[2]) / 1e6, text.partition("\n")[0]
    except (OSError, ValueError, IndexError):
        return  # BlockingIOError: no more records
    finally:
        os.close(fd)


def format_exit(end: End) -> str | None:
    """ "signal 9 (SIGKILL)" or "exit code 1"; None: unknown."""
    if end.signal is not None:
        return f"signal {end.signal} ({signal_name(end.signal)})"
    return f"exit code {end.code}" if end.code is not None else None


def signal_name(number: int) -> str:
    """Name of a signal: SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


def _status(handle: _Handle) -> int | None:
    """The wait status: from /proc for a zombie, else from the pidfd."""
    status = _zombie_status(handle.target)
    return _reaped_status(handle.fd) if status is None and handle.fd is not None else status


def _gone(target: Target) -> bool:
    stat = procfs.stat(target.pid)
    return stat is None or stat.start_ticks != target.start_ticks or stat.state in "ZX"


def _zombie_status(target: Target) -> int | None:
    data = procfs.read(f"/proc/{target.pid}/stat") or b""
    fields = data.rpartition(b")")[2].split()  # from field 3 on
    if len(fields) < 50 or fields[0] not in (b"Z", b"X") or int(fields[19]) != target.start_ticks:
        return None
    status = int(fields[49])
    return status if status or _may_read(target.pid) else None  # without permission the kernel writes 0


def _may_read(pid: int) -> bool:
    try:
        return os.geteuid() in (0, os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return False


def _reaped_status(fd: int) -> int | None:
    info = bytearray(struct.pack(_INFO, _WITH_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(fd, _GET_INFO, info)
    except OSError:
        return None
    mask, *_, status = struct.unpack(_INFO, info)
    return int(status) if mask & _WITH_EXIT else None


def _close(handle: _Handle) -> None:
    if handle.fd is not None:
        os.close(handle.fd)
