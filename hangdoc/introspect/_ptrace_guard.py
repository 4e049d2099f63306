"""Runs a program that stops another process (a debugger) so that it cannot outlive us, nor stop that process for long.

    python -I -S _leash.py OUR_PID SECONDS TARGET COMMAND...

The kernel kills the command when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG), and after SECONDS in any
case (setitimer(2) survives execve(2)), even while we are stopped ourselves. Before it becomes the command, this program
touches every file whose code TARGET executes. A debugger opens these to find symbols. On a mount that does not answer
it would block there, unkillable where the mount is FUSE, with the target stopped. This program blocks before anything
is stopped.

The leash is a program because nothing but async-signal-safe calls may run between fork and exec in a process with
threads. It takes about 10 ms. It imports nothing of hangdoc.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import sys
from collections.abc import Iterator

NAME = "hangdoc-leash"  # of the process, until it is the command
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_EDGE_BYTES = 4096  # read at both ends of a file: an ELF has its headers there


def executed_files(pid: int) -> Iterator[str]:
    """Paths of the files mapped executable in `pid`, as we can open them: proc_pid_maps(5)."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {parts[5].rstrip("\n") for line in maps if "x" in (parts := line.split(maxsplit=5))[1] and parts[5:]}
    return (f"/proc/{pid}/root{path}" for path in sorted(paths) if path.startswith("/"))


def touch(path: str) -> None:
    """Make the file system answer for `path`. Changes nothing, and returns where there is no regular file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return  # deleted, or refused: the mount has answered
    try:
        status = os.fstat(file)
        if stat.S_ISREG(status.st_mode):
            os.fstatvfs(file)  # never answered from a cache
            os.pread(file, _EDGE_BYTES, 0)
            os.pread(file, _EDGE_BYTES, max(status.st_size - _EDGE_BYTES, 0))
    except OSError:
        return
    finally:
        os.close(file)


def touches(pid: int) -> bool:
    """Whether the leash with this PID has not become its command yet."""
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
    if os.getppid() != ours:  # it ended before the line above
        sys.exit("its parent has ended")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        for path in executed_files(target):
            touch(path)
    except OSError:
        pass  # it has ended, or may not be read: the command says so
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
