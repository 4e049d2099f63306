"""The owner of a process, also across user namespaces, in which one person has several user IDs."""

from __future__ import annotations

import fcntl
import os
import struct

from hangdoc.system import procfs

_OWNER = 0xB704  # NS_GET_OWNER_UID of ioctl_nsfs(2), Linux 4.11
_UID = struct.Struct("I")


def account(pid: int) -> str | None:
    """The account that owns a process; processes of one account may belong to one job. None: not readable.

    In our user namespace: the user ID. In a namespace created by a user: that user, whatever the ID of the process
    inside. In a namespace created by root (a container with its own ID range; a job may run in several): the ID inside.
    """
    users = procfs.status(pid).get("Uid", "").split()
    if not users:
        return None
    namespace = procfs.link(f"/proc/{pid}/ns/user")
    if namespace is None or namespace == procfs.link("/proc/self/ns/user"):
        return users[0]
    creator = _creator(f"/proc/{pid}/ns/user")
    if creator:
        return str(creator)
    return users[0] if creator is None else f"{_inside_id(pid, int(users[0]))} in a namespace of root"


def _creator(path: str) -> int | None:
    """User ID that created a user namespace; None: refused by the kernel."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        user: int = _UID.unpack(fcntl.ioctl(descriptor, _OWNER, bytes(_UID.size)))[0]
        return user
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _inside_id(pid: int, user: int) -> int:
    """Our user ID mapped into the namespace of the process (user_namespaces(7)); unchanged if not mapped."""
    for line in (procfs.text(f"/proc/{pid}/uid_map") or "").splitlines():
        inside, outside, count = map(int, line.split())
        if outside <= user < outside + count:
            return inside + user - outside
    return user
