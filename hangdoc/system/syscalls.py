"""The system call that a sleeping thread is in: its kind, and the argument that names its file.

A thread that sleeps outside any system call waits for a page of its memory: `fault`.
Numbers: the kernel's unistd_64.h (x86-64) and asm-generic/unistd.h (aarch64). Arguments: proc_pid_syscall(5).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from hangdoc.system import procfs

FD, PATH, PATH_AT = "fd", "path", "path_at"  # descriptor; path string; path string after a directory descriptor

_X86 = {
    ("read", FD): (0, 17, 19, 295, 327),
    ("write", FD): (1, 18, 20, 296, 328, 40, 326),
    ("sync", FD): (74, 75, 277, 306),
    ("open", PATH): (2, 85),
    ("open", PATH_AT): (257, 437),
    ("stat", FD): (5,),
    ("stat", PATH): (4, 6, 21, 89),
    ("stat", PATH_AT): (262, 332, 269, 439, 267),
    ("list", FD): (78, 217),
    ("close", FD): (3,),
    ("change", FD): (77, 285),
    ("change", PATH): (82, 83, 87),
    ("change", PATH_AT): (264, 316, 263, 258),
    ("time", ""): (35, 230),
    ("poll", ""): (7, 23, 232, 270, 271, 281, 441),
    ("lock", ""): (202,),
    ("child", ""): (61, 247),
    ("receive", ""): (45, 47, 299),
    ("send", ""): (44, 46, 307),
    ("accept", ""): (43, 288),
    ("connect", ""): (42,),
    ("flock", ""): (73, 72),
}
_ARM = {
    ("read", FD): (63, 65, 67, 69, 286),
    ("write", FD): (64, 66, 68, 70, 287, 71, 285),
    ("sync", FD): (82, 83, 84, 267),
    ("open", PATH_AT): (56, 437),
    ("stat", FD): (80,),
    ("stat", PATH_AT): (79, 291, 48, 439, 78),
    ("list", FD): (61,),
    ("close", FD): (57,),
    ("change", FD): (46, 47),
    ("change", PATH_AT): (38, 276, 35, 34),
    ("time", ""): (101, 115),
    ("poll", ""): (22, 72, 73, 441),
    ("lock", ""): (98,),
    ("child", ""): (260, 95),
    ("receive", ""): (207, 212, 243),
    ("send", ""): (206, 211, 269),
    ("accept", ""): (202, 242),
    ("connect", ""): (203,),
    ("flock", ""): (32, 25),
}
_TABLES = {"x86_64": _X86, "aarch64": _ARM}
_TABLE = {
    number: kind for kind, numbers in _TABLES.get(os.uname().machine, {}).items() for number in numbers
}  # fmt: skip

# Kinds whose first argument is a descriptor, although they are not on files.
ON_SOCKETS = frozenset({"receive", "send", "accept", "connect"})
_WAIT4 = {"x86_64": 61, "aarch64": 260}.get(os.uname().machine)
_P_PID = 1  # waitid(2): the second argument is a PID

_SELECTS = {"x86_64": (23, 270), "aarch64": (72,)}.get(os.uname().machine, ())  # select, pselect6

# After a signal or a debugger has interrupted a call with a timeout, the thread is in restart_syscall(2) with the same
# arguments, and only the kernel function in which the thread sleeps tells what is restarted.
_RESTART = {"x86_64": 219, "aarch64": 128}.get(os.uname().machine)
_RESTARTED = {
    "x86_64": {"poll": 7, "futex": 202, "nanosleep": 35},
    "aarch64": {"futex": 98, "nanosleep": 101},
}.get(os.uname().machine, {})

_FUTEX_PRIVATE, _FUTEX_COMMAND = 0x80, 0x7F
_FUTEX_WAITS = (0, 6, 9)  # FUTEX_WAIT, FUTEX_LOCK_PI, FUTEX_WAIT_BITSET


@dataclass(frozen=True, slots=True)
class Call:
    """A system call that a thread sleeps in."""

    # read write sync open stat list close change | time poll lock child | receive send accept connect flock | other
    kind: str
    names: str  # how it names its file: fd | path | path_at | ""
    arguments: tuple[int, ...]
    number: int = -1  # -1: in no call

    @property
    def child(self) -> int | None:
        """The PID that a wait for a child process names; None: any child."""
        if self.number == _WAIT4:
            pid = self.arguments[0] & 0xFFFFFFFF
            return pid if 0 < pid < 1 << 31 else None
        return self.arguments[1] & 0x7FFFFFFF if self.arguments[0] == _P_PID else None

    @property
    def bounded(self) -> bool:
        """A futex wait with a timeout."""
        return len(self.arguments) > 3 and self.arguments[3] != 0

    @property
    def private(self) -> bool:
        """A futex wait that only a thread of the same process can wake."""
        command = self.arguments[1] & _FUTEX_COMMAND if len(self.arguments) > 1 else -1
        # FUTEX_CLOCK_REALTIME (256) is not part of the command either
        return command in _FUTEX_WAITS and bool(self.arguments[1] & _FUTEX_PRIVATE)


def is_on_file(number: int | None) -> bool:
    """True if this system call may block on a file; so may -1, a page fault."""
    return number is not None and (number == -1 or _TABLE.get(number, ("", ""))[1] != "")


def restarted(number: int, folder: str) -> int:
    """The call of a thread; if it is restart_syscall, the one that is restarted. `folder`: the thread's in /proc."""
    if number != _RESTART:
        return number
    function = procfs.text(f"{folder}/wchan") or ""
    return next((known for name, known in _RESTARTED.items() if name in function), number)


def current_call(pid: int, tid: int) -> Call | None:
    """The call of a sleeping thread; None: it runs, has ended, or may not be read."""
    fields = (procfs.read(f"/proc/{pid}/task/{tid}/syscall") or b"").split()
    if not fields or fields[0] == b"running":
        return None
    if fields[0] == b"-1":
        return Call("fault", "", ())
    number = restarted(int(fields[0]), f"/proc/{pid}/task/{tid}")
    arguments = tuple(int(field, 16) for field in fields[1:7])
    kind, names = _TABLE.get(number, ("other", ""))
    if number in _SELECTS and not arguments[0] and arguments[4]:  # a sleep, as time.sleep of Python 3.10
        kind = "time"
    return Call(kind, names, arguments, number)
