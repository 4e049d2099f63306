"""Probe `neighbours`: other processes that use this host's cores while a rank waits for one.

CPU time is a counter: the first round notes it, the second shows the use.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from hangdoc.evidence import Process
from hangdoc.evidence.resources import Neighbour, Neighbours
from hangdoc.redaction.text import redact_text
from hangdoc.system import procfs
from probes import Observation, Request, Tier

DELAYED_SHARE = 0.15  # of the round that a rank spent in a run queue; more triggers the search
MIN_CORES = 0.05  # used by a neighbour; less disturbs no rank
MAX_NEIGHBOURS = 12


@dataclass(slots=True)
class NeighboursProbe:
    name: str = "neighbours"
    scope: str = "host"
    tier: Tier = Tier.LOOK
    needs: str = "nothing"
    record: type = Neighbours
    order: int = 20
    steady: bool = False
    _before: tuple[float, dict[tuple[int, int], float]] = field(default=(0.0, {}))

    def observe(self, request: Request) -> Observation:
        if not _delayed(request):
            return Observation({})
        since_s, before = self._before
        now_s = time.monotonic()
        stats = [stat for pid in procfs.numbers("/proc") if (stat := procfs.stat(pid))]
        self._before = now_s, {(stat.pid, stat.start_ticks): stat.cpu_s for stat in stats}
        if not before or now_s - since_s > 60.0:
            return Observation({})
        used = {
            stat.pid: (stat.cpu_s - before.get((stat.pid, stat.start_ticks), stat.cpu_s)) / (now_s - since_s)
            for stat in stats
        }
        own = _of_job(request) | {os.getpid(), os.getppid()}
        busy = sorted((pid for pid in used if used[pid] >= MIN_CORES and pid not in own), key=lambda pid: -used[pid])
        nice = {stat.pid: stat.nice for stat in stats}
        return Observation(
            {}, Neighbours(tuple(_neighbour(pid, used[pid], nice[pid]) for pid in busy[:MAX_NEIGHBOURS]))
        )


def _delayed(request: Request) -> bool:
    """True if some rank waited in a run queue in this round."""
    previous = request.previous
    if previous is None:
        return False
    delayed_s = DELAYED_SHARE * (time.monotonic() - previous.at_s)
    before = {rank.target.pid: rank.records.get("cpu") for rank in previous.ranks}
    for target in request.targets:
        now, then = (request.records or {}).get(target.pid, {}).get("cpu"), before.get(target.pid)
        if isinstance(now, Process) and isinstance(then, Process) and _delay_s(now) - _delay_s(then) > delayed_s:
            return True
    return False


def _delay_s(process: Process) -> float:
    return sum(thread.run_delay_s or 0.0 for thread in process.threads)


def _of_job(request: Request) -> set[int]:
    """The ranks and their helpers."""
    found = {target.pid for target in request.targets}
    for target in request.targets:
        record = (request.records or {}).get(target.pid, {}).get("cpu")
        found.update(child.pid for child in (record.children if isinstance(record, Process) else ()))
    return found


def _neighbour(pid: int, cores: float, nice: int) -> Neighbour:
    try:
        affinity = tuple(sorted(os.sched_getaffinity(pid)))
    except OSError:
        affinity = None
    fields = (procfs.read(f"/proc/{pid}/stat") or b"").rpartition(b")")[2].split()
    return Neighbour(pid, _command(pid), round(cores, 2), nice, int(fields[36]) if len(fields) > 36 else None, affinity)


def _command(pid: int) -> str:
    words = procfs.strings(f"/proc/{pid}/cmdline") or ()
    if not words or not words[0]:
        return (procfs.text(f"/proc/{pid}/comm") or "?").strip()
    script = next((word for word in words[1:2] if not word.startswith("-") and "=" not in word), "")
    return " ".join(os.path.basename(redact_text(word)) for word in (words[0], script) if word)[:80]


PROBE = NeighboursProbe()
