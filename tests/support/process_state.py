"""State of processes that hangdoc looks at, and the check that it left them alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

STOPPED = frozenset("Tt")


def threads(pid: int) -> dict[int, str]:
    """State of each thread, by TID; empty where the process is gone."""
    states: dict[int, str] = {}
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            states[int(task.name)] = (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        pass
    return states


def tracer(pid: int) -> int:
    """PID of the process that traces a thread of `pid`; 0 where none does."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text(errors="replace").splitlines()
        found = next(int(line.split()[1]) for line in lines if line.startswith("TracerPid:"))
        if found:
            return found
    return 0


def assert_untouched(pids: Iterable[int]) -> None:
    """Every process lives, is not stopped and not traced."""
    for pid in pids:
        states = threads(pid)
        assert states, f"PID {pid} is gone"
        assert not {"Z", "X"} & set(states.values()), f"PID {pid} has ended: {states}"
        assert not STOPPED & set(states.values()), f"PID {pid} was left stopped: {states}"
        assert tracer(pid) == 0, f"PID {pid} is traced by {tracer(pid)}"


class Watcher:
    """What a tight look at the processes saw of them while it ran."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.pids = tuple(pids)
        self.looks = 0
        self.paused: list[str] = []

    def look(self) -> None:
        for pid in self.pids:
            self.paused += [f"thread {tid} of {pid} in state {s}" for tid, s in threads(pid).items() if s in STOPPED]
            if by := tracer(pid):
                self.paused.append(f"{pid} traced by {by}")
        self.looks += 1


@contextmanager
def watched(pids: Iterable[int], every_s: float = 0.002) -> Iterator[Watcher]:
    """Look at the processes from another thread for as long as the body runs."""
    watcher, stop = Watcher(pids), threading.Event()

    def run() -> None:
        while not stop.wait(every_s):
            watcher.look()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield watcher
    finally:
        stop.set()
        thread.join()


def traces(pid: int) -> tuple[object, ...]:
    """What a visitor would leave behind: environment, working folder and its files, signal masks, open descriptors."""
    folder = os.readlink(f"/proc/{pid}/cwd")
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [line for line in status if line.startswith(("SigBlk", "SigIgn", "SigCgt", "ShdPnd"))]
    return folder, sorted(os.listdir(folder)), Path(f"/proc/{pid}/environ").read_bytes(), masks
