"""Whose process it is, where user namespaces give one person several user IDs."""

from __future__ import annotations

import fcntl
import os
import struct

from hangdoc.system import procfs

_OWNER = 0xB704  # NS_GET_OWNER_UID of ioctl_nsfs(2), Linux 4.11
_UID = struct.Struct("I")


def account(pid: int) -> str | None:
    """Whoever is answerable for a process: two processes of one account may be parts of one job. None: not readable.

    In our user namespace that is the user ID. In one that a user has made for himself, it is that user, whatever ID the
    process has in it. In one that root has made (a container with user namespaces: each has IDs of its own, and a job
    may run in several of them) it is the ID within.
    """
    users = procfs.status(pid).get("Uid", "").split()
    if not users:
        return None
    theirs = procfs.link(f"/proc/{pid}/ns/user")
    if theirs is None or theirs == procfs.link("/proc/self/ns/user"):
        return users[0]
    maker = _maker(f"/proc/{pid}/ns/user")
    if maker:
        return str(maker)
    return users[0] if maker is None else f"{_within(pid, int(users[0]))} in a namespace of root"


def _maker(path: str) -> int | None:
    """User ID of who has made a user namespace; None where the kernel does not say."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found: int = _UID.unpack(fcntl.ioctl(descriptor, _OWNER, bytes(_UID.size)))[0]
        return found
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _within(pid: int, user: int) -> int:
    """A user ID of ours as the process's own namespace has it (user_namespaces(7)); itself where it is not mapped."""
    for line in (procfs.text(f"/proc/{pid}/uid_map") or "").splitlines():
        inside, outside, count = map(int, line.split())
        if outside <= user < outside + count:
            return inside + user - outside
    return user
