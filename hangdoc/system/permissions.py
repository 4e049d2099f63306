"""Why processes may not be read, or are hidden by `hidepid`, and the remedy."""

from __future__ import annotations

import os

from hangdoc.system import procfs

# hidepid is a mount option of /proc: proc(5), fs/proc/root.c, fs/proc/base.c.
_OFF = frozenset(("0", "off"))
_STRICT = frozenset(("4", "ptraceable"))  # membership in the group `gid=` gives no exemption
_CAP_SYS_PTRACE = 19  # bit of linux/capability.h; exempts from every setting


def remedy(pid: int) -> str:
    """How to get the right to read `pid`, as the end of a sentence: another user, root, or CAP_SYS_PTRACE."""
    owner, us = owner_of(pid), os.geteuid()
    if us == 0:
        return "give hangdoc CAP_SYS_PTRACE, in a container with `--cap-add SYS_PTRACE`"
    if owner not in (None, 0, us):
        return f"run hangdoc as user {owner} or as root"
    return "run hangdoc as root" + (", in a container with `--cap-add SYS_PTRACE`" if owner == us else "")


def owner_of(pid: int) -> int | None:
    """User ID of a process; None: it has ended."""
    users = procfs.status(pid).get("Uid")
    return int(users.split()[0]) if users else None


def hidden_processes() -> str | None:
    """Why /proc hides processes of other users from us, with the remedy; None: it hides none."""
    option = _option(procfs.text("/proc/self/mountinfo") or "")
    if option is None or _exempt(*option):
        return None
    value, _ = option
    return (
        f"/proc hides processes of other users (mounted with hidepid={value}), so some ranks may be invisible; "
        "run hangdoc as root, or as the user who owns the job"
    )


def _option(mountinfo: str) -> tuple[str, str | None] | None:
    """`hidepid` and `gid` of the newest file system at /proc; None: it hides nothing."""
    found: dict[str, str] = {}
    for line in mountinfo.splitlines():  # proc_pid_mountinfo(5): the file system's options come last
        head, _, tail = line.partition(" - ")
        if head.split()[4:5] == ["/proc"]:
            found = dict(part.partition("=")[::2] for part in tail.split()[-1:] for part in part.split(","))
    value = found.get("hidepid", "0")
    return None if value in _OFF else (value, found.get("gid"))


def _exempt(value: str, gid: str | None) -> bool:
    """True if the setting does not apply to us; in a user namespace CAP_SYS_PTRACE does not help, and hides PID 1."""
    groups = {*os.getgroups(), os.getegid()}
    if gid is not None and value not in _STRICT and gid.isdecimal() and int(gid) in groups:
        return True
    capabilities = int(procfs.status(os.getpid()).get("CapEff", "0"), 16)
    return bool(capabilities >> _CAP_SYS_PTRACE & 1) and procfs.stat(1) is not None
