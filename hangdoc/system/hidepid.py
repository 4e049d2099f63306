"""Processes that /proc hides from us: its mount option `hidepid` (proc(5), fs/proc/root.c, fs/proc/base.c)."""

from __future__ import annotations

import os

from hangdoc.system import procfs

_OFF = frozenset(("0", "off"))
_STRICT = frozenset(("4", "ptraceable"))  # membership of the group `gid=` does not exempt from these
_CAP_SYS_PTRACE = 19  # bit of linux/capability.h; it exempts from every setting


def hidden_processes() -> str | None:
    """Why processes of other users are hidden from this one, with the remedy; None where they are not."""
    option = _option(procfs.text("/proc/self/mountinfo") or "")
    if option is None or _exempt(*option):
        return None
    value, _ = option
    return (
        f"/proc hides processes of other users (it is mounted with hidepid={value}), so ranks may run here unseen; "
        "run hangdoc as root, or as the user whose job it is"
    )


def _option(mountinfo: str) -> tuple[str, str | None] | None:
    """`hidepid` and `gid` of the newest file system at /proc; None where nothing is hidden."""
    found: dict[str, str] = {}
    for line in mountinfo.splitlines():  # proc_pid_mountinfo(5): the options of the file system come last
        head, _, tail = line.partition(" - ")
        if head.split()[4:5] == ["/proc"]:
            found = dict(part.partition("=")[::2] for part in tail.split()[-1:] for part in part.split(","))
    value = found.get("hidepid", "0")
    return None if value in _OFF else (value, found.get("gid"))


def _exempt(value: str, gid: str | None) -> bool:
    """PID 1 is the test: where a capability counts for nothing (a user namespace), PID 1 is hidden as well."""
    groups = {*os.getgroups(), os.getegid()}
    if gid is not None and value not in _STRICT and gid.isdecimal() and int(gid) in groups:
        return True
    capabilities = int(procfs.status(os.getpid()).get("CapEff", "0"), 16)
    return bool(capabilities >> _CAP_SYS_PTRACE & 1) and procfs.stat(1) is not None
