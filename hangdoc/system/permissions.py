"""What to do where a process may not be read: the end of the sentence, the same for every probe."""

from __future__ import annotations

import os

from hangdoc.system import procfs


def remedy(pid: int) -> str:
    """What gives the right to read `pid`: another user, or the capability where that is not what is missing."""
    owner, us = owner_of(pid), os.geteuid()
    if us == 0:
        return "give hangdoc CAP_SYS_PTRACE, in a container with `--cap-add SYS_PTRACE`"
    if owner not in (None, 0, us):
        return f"run hangdoc as user {owner} or as root"
    return "run hangdoc as root" + (", in a container with `--cap-add SYS_PTRACE`" if owner == us else "")


def owner_of(pid: int) -> int | None:
    """The user a process belongs to; None where it has ended."""
    users = procfs.status(pid).get("Uid")
    return int(users.split()[0]) if users else None
