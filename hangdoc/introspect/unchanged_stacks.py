"""Stacks that cannot have changed, because no Python thread of the process has run since they were read.

The kernel counts each thread's CPU time, run queue time and context switches (probe `cpu`: schedstat, status). A thread
that sleeps with the same counts in both rounds has not run in between; a new thread has a new TID. So a process that
runs in short bursts between two rounds is never mistaken for a stopped one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from hangdoc.evidence import Process, Stacks, Target, ThreadCpu

MAX_AGE_S = 20.0  # of stacks; then they are read again
# Native threads that poll and never run Python: those of gloo and of torch's store.
_NATIVE = re.compile(r"gloo_tcp_loop|pt_gloo_runloop|pt_tcpstore(?:_uv)?")
_ASLEEP = "SDTt"

_Run = tuple[int, float, float | None, int | None, int | None]
_Runs = tuple[frozenset[int], frozenset[_Run]]  # all TIDs; counters of the threads that may run Python


@dataclass(frozen=True, slots=True)
class _Kept:
    runs: _Runs
    read_s: float
    stacks: Stacks


class UnchangedStacks:
    """The previous stacks of each process, if still valid."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._now = now

    def of(self, target: Target, process: object) -> Stacks | None:
        """The stacks if unchanged, judged by the record of probe `cpu` in this round; else None."""
        kept = self._kept.get((target.pid, target.start_ticks))
        if kept is None or self._now() - kept.read_s > MAX_AGE_S:
            return None
        return kept.stacks if kept.runs == _runs(process, kept.stacks) else None

    def keep(self, targets: Collection[Target], read: Callable[[Target], tuple[object, Stacks] | None]) -> None:
        """Store the stacks of this round with the records of probe `cpu`; forget all other processes.

        Those records are older than the stacks: a thread that ran in between counts as having run since.
        """
        before, self._kept = self._kept, {}
        for target in targets:
            key = target.pid, target.start_ticks
            found = read(target)
            if found is None:
                continue
            process, stacks = found
            known, runs = before.get(key), _runs(process, stacks)
            if known is not None and known.stacks is stacks and known.runs == runs:
                self._kept[key] = known
            elif runs is not None:
                self._kept[key] = _Kept(runs, self._now(), stacks)


def _runs(process: object, stacks: Stacks) -> _Runs | None:
    """Counters of each thread that may run Python; None: unknown, or one of them runs."""
    if not isinstance(process, Process) or not process.threads:
        return None
    python = {stack.tid for stack in stacks.threads}
    asked = [thread for thread in process.threads if thread.tid in python or not _NATIVE.fullmatch(thread.comm)]
    if not all(thread.state in _ASLEEP and _counted(thread) for thread in asked):
        return None
    threads = frozenset(thread.tid for thread in process.threads)
    if not python <= threads:  # too many threads, or unknown TIDs
        return None
    return threads, frozenset((t.tid, t.cpu_s, t.run_delay_s, t.voluntary, t.involuntary) for t in asked)


def _counted(thread: ThreadCpu) -> bool:
    """True with nanosecond times or context switches; CPU time in clock ticks misses short runs."""
    return thread.run_delay_s is not None or thread.voluntary is not None
