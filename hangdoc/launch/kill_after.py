"""`--kill-after`: ends a command once a high-confidence verdict has named its stall for so long."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from hangdoc.formatting import seconds
from hangdoc.system import procfs
from hangdoc.verdict import Verdict

GRACE_S = 30.0  # from SIGTERM to SIGKILL
MAX_PROCESSES = 100_000  # of a process tree
_POLL_S = 0.2
_HUNG = frozenset({"stalled", "failed"})  # never `slow`: such a job still makes progress

Process = tuple[int, int]  # PID and start time: a PID may be reused


@dataclass(slots=True)
class KillAfter:
    """Follows the live watch of one command, and decides when the order of the user applies."""

    after_s: float
    now: Callable[[], float] = time.monotonic
    _named: dict[str, tuple[object, float]] = field(default_factory=dict)  # job -> what was found, and when

    def event(self, kind: str, job: str, verdict: Verdict | None) -> None:
        """An event of the live watch. Any change of the job starts the time again, with its next verdict."""
        if verdict is not None and _is_certain(verdict):
            found = _found(verdict)
            if self._named.get(job, (None, 0.0))[0] != found:
                self._named[job] = found, self.now()
        elif verdict is not None or kind in ("recovered", "healthy", "job_ended", "rank_exited", "node_lost"):
            self._named.pop(job, None)

    def is_due(self, state: Verdict) -> bool:
        """True if this state of a job ends it: the stall has gone on, unchanged, since its verdict."""
        job = state.job.id
        found, since_s = self._named.get(job, (None, 0.0))
        if found is None:
            return False
        waited_s = self.now() - since_s
        if not _is_certain(state) or _found(state) != found or (state.stalled_for_s or 0.0) < waited_s:
            self._named.pop(job)  # it has moved, or the verdict has changed
            return False
        return waited_s >= self.after_s


def _is_certain(verdict: Verdict) -> bool:
    return verdict.status in _HUNG and bool(verdict.findings) and verdict.findings[0].confidence == "high"


def _found(verdict: Verdict) -> object:
    first = verdict.findings[0]
    return verdict.status, first.playbook, frozenset((one.host, one.rank) for one in first.culprits)


# --- the end --------------------------------------------------------------------------------------


def end_tree(command: Process, say: Callable[[str], None], grace_s: float = GRACE_S) -> None:
    """SIGTERM to a command, and after `grace_s` SIGKILL to what is left of it and its descendants."""
    tree = {command: None, **dict.fromkeys(descendants(command))}
    _signal(command, signal.SIGTERM)
    until_s = time.monotonic() + grace_s
    while left := [process for process in tree if is_running(process)]:
        tree.update(dict.fromkeys(kid for process in left for kid in descendants(process)))
        if time.monotonic() > until_s:
            break
        time.sleep(_POLL_S)
    if left:
        say(f"SIGKILL to {len(left)} process{'es' * (len(left) != 1)} left {seconds(grace_s)} after SIGTERM")
    while left and time.monotonic() < until_s + grace_s:
        for process in left:
            _signal(process, signal.SIGKILL)
        # Bottom up nothing new is born below a dead process, but a living one may have forked meanwhile.
        left = [one for process in left for one in (process, *descendants(process)) if is_running(one)]
        time.sleep(_POLL_S)


def descendants(process: Process) -> Iterator[Process]:
    """Every process below a running one; none below a process that has ended."""
    todo, found = [process], 0
    while todo and found < MAX_PROCESSES:
        parent = todo.pop()
        kids = procfs.children(parent[0]) if is_running(parent) else []
        for pid in kids:
            stat = procfs.stat(pid)
            if stat is not None and stat.ppid == parent[0] and stat.start_ticks >= parent[1]:
                todo.append((pid, stat.start_ticks))
                found += 1
                yield pid, stat.start_ticks


def is_running(process: Process) -> bool:
    """True if it runs and is no zombie; False if its PID belongs to another process now."""
    stat = procfs.stat(process[0])
    return stat is not None and stat.start_ticks == process[1] and stat.state not in "ZX"


def _signal(process: Process, number: int) -> None:
    """Send a signal to exactly this process, whatever happens to its PID meanwhile."""
    try:
        descriptor = os.pidfd_open(process[0])
    except OSError as error:
        if error.errno == errno.ENOSYS and is_running(process):  # Linux < 5.3: no more than a check just before
            with suppress(OSError):
                os.kill(process[0], number)
        return
    try:
        if is_running(process):
            signal.pidfd_send_signal(descriptor, number)
    except OSError:
        pass  # it has ended meanwhile
    finally:
        os.close(descriptor)
