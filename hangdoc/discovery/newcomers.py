"""Notices processes that may be ranks, far cheaper than a search for ranks."""

from __future__ import annotations

import os
import re

from hangdoc.discovery.environment import identity
from hangdoc.system import procfs

SEARCH_S = 60.0  # between two searches without candidates: they find little
YOUNG_S = 60.0  # a shell may become a rank by exec, and a rank loads its framework
AGAIN_S = (5.0, 15.0, 40.0)  # after a candidate appeared, search again: it joins its process group meanwhile
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*[a-z]?")


class Newcomers:
    """The processes seen at the last check."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._young: dict[int, float] = {}  # PID -> when it appeared; not a candidate so far
        self._again: list[float] = []  # when to search again, monotonic clock
        self._searched_s = float("-inf")

    def is_search_due(self, now_s: float, factor: int = 1) -> bool:
        """True if a search for ranks is worth it: there are candidates, or the last one was SEARCH_S * factor ago."""
        due = self.check(now_s) or now_s - self._searched_s >= SEARCH_S * factor
        if due:
            self._searched_s = now_s
        return due

    def check(self, now_s: float) -> bool:
        """True if a search for ranks is worth it. `now_s`: monotonic clock.

        A PID that is reused between two checks is missed; a search now and then finds its process.
        """
        pids = set(procfs.numbers("/proc"))
        self._young = {pid: at_s for pid, at_s in self._young.items() if pid in pids and now_s - at_s < YOUNG_S}
        self._young.update(dict.fromkeys(pids - self._known, now_s))
        self._known = pids
        candidates = [pid for pid in self._young if _may_be_rank(pid)]
        for pid in candidates:
            del self._young[pid]
        due = [at_s for at_s in self._again if at_s <= now_s]
        if candidates:
            self._again = [now_s + after_s for after_s in AGAIN_S]
        elif due:
            self._again = [at_s for at_s in self._again if at_s > now_s]
        return bool(candidates or due)


def _may_be_rank(pid: int) -> bool:
    executable = procfs.link(f"/proc/{pid}/exe")
    if executable is not None and _PYTHON.fullmatch(os.path.basename(executable.removesuffix(" (deleted)"))):
        return True
    environ = procfs.environ(pid) if executable is not None else None
    return bool(environ) and identity(environ or {}) is not None
