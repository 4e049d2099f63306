"""Native dumps: dear, and a pause of the rank, so as few as tell everything."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hangdoc.introspect.py_spy import PySpy, in_parallel

Dump = list[dict[str, Any]]  # py-spy's JSON

_WORKERS = 4  # each takes 110 MB for the symbols of libtorch, and a core for as long as it pauses the rank
_BUDGET_S = 2.0  # after which no further one is started in this round


class NativeDumps:
    """Takes native dumps; one is kept for as long as none of its threads has run since."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[dict[int, str], Dump]] = {}

    def take(
        self, spy: PySpy, pids: Sequence[int], dumps: Mapping[int, Dump | Exception]
    ) -> dict[int, Dump | Exception]:
        """A native dump, or why there is none, of the processes in `pids` that may be paused, ranks of their own first.

        `dumps` are their plain dumps: of ranks that stand in the same place a few may be left out for want of time.
        """
        self._kept = {
            pid: (runs, dump)
            for pid, (runs, dump) in self._kept.items()
            if runs == _runs(pid, dump) and _place(dump) == _place(dumps.get(pid, dump))
        }
        wanted = [pid for pid in pids if pid not in self._kept and _may_pause(pid)]
        deadline = time.monotonic() + _BUDGET_S

        def one(pid: int) -> Dump | None:
            return spy.dump_native(pid) if time.monotonic() < deadline else None

        found = in_parallel(spy, one, _rarest_first(wanted, dumps), min(_WORKERS, os.cpu_count() or 1))
        for pid, dump in found.items():
            if isinstance(dump, list) and (runs := _runs(pid, dump)):
                self._kept[pid] = runs, dump
        taken = {pid: dump for pid, dump in found.items() if dump is not None}
        return taken | {pid: dump for pid, (_, dump) in self._kept.items() if pid in pids}


def _may_pause(pid: int) -> bool:
    """Whether ptrace can hold every thread: with one in D the others would be held for long, T and t are stopped."""
    try:
        states = {
            (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            for task in Path(f"/proc/{pid}/task").iterdir()
        }
    except (OSError, IndexError):
        return False
    return bool(states) and not states & set("DTtZX")


def _runs(pid: int, dump: Dump) -> dict[int, str]:
    """How often and how long each thread of a dump has run, by thread id; empty where the kernel does not tell."""
    try:
        return {
            tid: Path(f"/proc/{pid}/task/{tid}/schedstat").read_text()
            for tid in (thread["os_thread_id"] or 0 for thread in dump)
        }
    except OSError:
        return {}


def _rarest_first(pids: Sequence[int], dumps: Mapping[int, Dump | Exception]) -> list[int]:
    """One process of each set of equal Python stacks, then the second of each, and so on."""
    places = {pid: _place(dumps.get(pid)) for pid in pids}
    before: Counter[Any] = Counter()
    turns = {}
    for pid in pids:
        turns[pid] = before[places[pid]]
        before[places[pid]] += 1
    return sorted(pids, key=lambda pid: (turns[pid], before[places[pid]]))


def _place(dump: Dump | Exception | None) -> frozenset[Any]:
    """Where the threads of a process stand in Python code."""
    if not isinstance(dump, list):
        return frozenset()
    return frozenset(
        tuple((frame["name"], frame["line"]) for frame in thread["frames"] if frame["module"] is None)
        for thread in dump
    )
