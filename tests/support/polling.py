"""Wait for a condition of a process by polling, with a limit that a busy machine keeps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.support.pace import slowness

Seen = TypeVar("Seen")


def until(
    look: Callable[[], Seen], good: Callable[[Seen], object] = bool, within_s: float = 20.0, every_s: float = 0.02
) -> Seen:
    """The first of several looks that is as it should be; fails with the last one where none is.

    The limit is for a quiet machine: a slower one has more time.
    """
    began = time.monotonic()
    limit = began + within_s
    while not good(seen := look()):
        if time.monotonic() >= limit:
            limit = began + within_s * slowness()
            assert time.monotonic() < limit, f"never so within {within_s:g} s: {seen}"
        time.sleep(every_s)
    return seen


def at_rest(pid: int, *threads: int) -> None:
    """Waits until every thread of a process, or each that is given, sleeps and has not run for a tenth of a second."""
    until(lambda: _stay(pid, threads))


def _stay(pid: int, threads: Sequence[int]) -> bool:
    before = _runs(pid, threads)
    time.sleep(0.1 * bool(before))
    return bool(before) and before == _runs(pid, threads)


def _runs(pid: int, threads: Sequence[int]) -> list[str]:
    """How long and how often each thread has run; nothing while one of them is not asleep, or has just ended."""
    try:
        tasks = [Path(f"/proc/{pid}/task", str(tid)) for tid in threads or os.listdir(f"/proc/{pid}/task")]
        asleep = all((task / "stat").read_text().rpartition(")")[2].split()[0] == "S" for task in tasks)
        return [f"{task} {(task / 'schedstat').read_text()}" for task in tasks] if asleep else []
    except (FileNotFoundError, ProcessLookupError):
        return []
