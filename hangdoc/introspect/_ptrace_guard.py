"""Runs a debugger under a deadline: it can neither outlive us nor hold its target for long.

    python -I -S _ptrace_guard.py OUR_PID SECONDS TARGET COMMAND...

The kernel kills the command when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG) and after SECONDS at the
latest (setitimer(2) survives execve(2)), even if we are stopped. Before exec, the guard touches every file that TARGET
has mapped executable. A debugger opens these files to find symbols; on a dead mount it would block, unkillable on FUSE,
while it holds the target. The guard blocks before anything is held.

It is a program of its own because only async-signal-safe calls may run between fork and exec in a process with
threads. It takes about 10 ms and imports nothing of hangdoc.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import sys
from collections.abc import Iterator

NAME = "hangdoc-guard"  # of the process until exec
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_EDGE_BYTES = 4096  # read at both ends of a file, where an ELF has its headers


def executed_files(pid: int) -> Iterator[str]:
    """Paths of the files mapped executable in `pid`, as we can open them: proc_pid_maps(5)."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {parts[5].rstrip("\n") for line in maps if "x" in (parts := line.split(maxsplit=5))[1] and parts[5:]}
    return (f"/proc/{pid}/root{path}" for path in sorted(paths) if path.startswith("/"))


def touch(path: str) -> None:
    """Make the filesystem answer for `path`, read only. Does nothing unless it is a regular file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return  # deleted or refused: the mount has answered
    try:
        status = os.fstat(file)
        if stat.S_ISREG(status.st_mode):
            os.fstatvfs(file)  # never cached
            os.pread(file, _EDGE_BYTES, 0)
            os.pread(file, _EDGE_BYTES, max(status.st_size - _EDGE_BYTES, 0))
    except OSError:
        return
    finally:
        os.close(file)


def is_touching(pid: int) -> bool:
    """True if the guard with this PID has not yet called exec."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as comm:
            return comm.read() == f"{NAME}\n"
    except OSError:
        return False


def main() -> None:
    ours, seconds, target, command = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NAME, NAME.encode(), 0, 0, 0)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"PR_SET_PDEATHSIG: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != ours:  # it ended before the prctl above
        sys.exit("its parent has ended")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        for path in executed_files(target):
            touch(path)
    except OSError:
        pass  # ended, or no permission: the command reports it
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
