"""Which process has a socket open that listens: found by the socket's inode among the descriptors of all processes."""

from __future__ import annotations

import os
from collections.abc import Iterable

from hangdoc.evidence import Holder, Target
from hangdoc.redaction.text import redact_words
from hangdoc.system import procfs
from hangdoc.system.netns import namespace
from hangdoc.system.sockdiag import Fields

LONGEST = 200  # characters of a command
_MOST = 256  # listening sockets whose process is remembered


class Holders:
    """Remembers who was found: a listening socket seldom changes hands."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}  # inode -> PID

    def of(self, target: Target, listening: Fields) -> Holder:
        """The process behind a socket of the target's network namespace."""
        inode = listening["inode"]
        pid = self._known.get(inode)
        if pid is None or not _has(pid, inode):
            pid = next((one for one in self._candidates(target) if _has(one, inode)), None)
        if pid is None:
            return Holder(None, None, listening["uid"])
        if self._known.get(inode) != pid:
            known = [one for one in self._known.items() if one[0] != inode and os.path.exists(f"/proc/{one[1]}")]
            self._known = dict(known[1 - _MOST :])
        self._known[inode] = pid
        stat = procfs.stat(pid)
        return Holder(pid, command(pid), listening["uid"], procfs.age_s(stat.start_ticks) if stat else None)

    def _candidates(self, target: Target) -> Iterable[int]:
        """The rank itself and those above it first; then every process of its network namespace, the eldest first."""
        above = list(lineage(target.pid))
        yield from above
        where = _namespace(target.pid)
        yield from (pid for pid in sorted(procfs.numbers("/proc")) if pid not in above and _namespace(pid) == where)


def lineage(pid: int) -> Iterable[int]:
    """A process and its ancestors, without init."""
    while pid > 1:
        yield pid
        stat = procfs.stat(pid)
        pid = stat.ppid if stat else 0


def command(pid: int) -> str | None:
    """A process's command line for people, without what looks like a secret."""
    words = procfs.strings(f"/proc/{pid}/cmdline")
    text = " ".join(redact_words(words)) if words else (procfs.text(f"/proc/{pid}/comm") or "").strip()
    return (text if len(text) <= LONGEST else text[: LONGEST - 3] + "...") or None


def _has(pid: int, inode: int) -> bool:
    wanted = f"socket:[{inode}]"
    return any(procfs.link(f"/proc/{pid}/fd/{fd}") == wanted for fd in procfs.descriptors(pid))


def _namespace(pid: int) -> int | None:
    try:
        return namespace(pid)
    except OSError:
        return None
