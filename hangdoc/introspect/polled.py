"""The descriptors that a sleeping thread waits for in select, poll or epoll_wait.

The sets are in the memory of the process, except epoll's, which the kernel shows in /proc/PID/fdinfo.
"""

from __future__ import annotations

import os

from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.system import procfs
from hangdoc.system.syscalls import Call

_MAX_DESCRIPTORS = 64  # descriptors; somebody who waits for more is a server
_HIGHEST = 1024  # FD_SETSIZE
# By number of the system call: what its arguments are, and the position of its timeout.
_FORMS = {
    "x86_64": {
        23: ("select", 4),
        270: ("select", 4),
        7: ("poll", 2),
        271: ("poll", 2),
        232: ("epoll", 3),
        281: ("epoll", 3),
        441: ("epoll", 3),
    },
    "aarch64": {72: ("select", 4), 73: ("poll", 2), 22: ("epoll", 3), 441: ("epoll", 3)},
}.get(os.uname().machine, {})
_MILLISECONDS = {"x86_64": (7, 232, 281), "aarch64": (22,)}.get(os.uname().machine, ())  # others: a pointer, or null


def polls(number: int | None) -> bool:
    """True if this system call waits for descriptors."""
    return number in _FORMS


def polled(pid: int, call: Call, timed: bool = False) -> tuple[int, ...]:
    """The descriptors that a call waits to read. Empty: another call, too many, or a timeout, unless `timed`."""
    form, timeout = _FORMS.get(call.number, ("", 0))
    if not form or len(call.arguments) <= timeout:
        return ()
    limit = call.arguments[timeout]
    if not timed and (not limit & 0x80000000 if call.number in _MILLISECONDS else limit):
        return ()
    try:
        if form == "select":
            return _in_set(pid, count=call.arguments[0] & 0xFFFFFFFF, address=call.arguments[1])
        if form == "poll":
            return _in_array(pid, address=call.arguments[0], count=call.arguments[1])
    except Unreadable:
        return ()
    return _in_epoll(pid, call.arguments[0] & 0xFFFFFFFF)


def _in_set(pid: int, count: int, address: int) -> tuple[int, ...]:
    if not address or not 0 < count <= _HIGHEST:
        return ()
    bits = int.from_bytes(Memory(pid).read(address, (count + 63) // 64 * 8), "little")
    return _few([fd for fd in range(count) if bits >> fd & 1])


def _in_array(pid: int, address: int, count: int) -> tuple[int, ...]:
    if not 0 < count <= _MAX_DESCRIPTORS:
        return ()
    data = Memory(pid).read(address, 8 * count)  # struct pollfd: int fd, short events, short revents
    found = [int.from_bytes(data[i : i + 4], "little", signed=True) for i in range(0, len(data), 8)]
    return _few([fd for fd in found if fd >= 0])


def _in_epoll(pid: int, fd: int) -> tuple[int, ...]:
    info = procfs.text(f"/proc/{pid}/fdinfo/{fd}") or ""
    found = [line.split()[1] for line in info.splitlines() if line.startswith("tfd:")]
    return _few([int(fd) for fd in found if fd.isdigit()])


def _few(found: list[int]) -> tuple[int, ...]:
    return tuple(found) if len(found) <= _MAX_DESCRIPTORS else ()
