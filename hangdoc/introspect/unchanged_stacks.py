"""Stacks that cannot have changed: of a process in which no thread that runs Python has run since they were read.

The kernel counts for each thread how long it ran, how long it queued for a core and how often it was switched away
from (probe `cpu`: schedstat, status). A thread whose counts are the same, asleep both times, has not run in between; a
thread that is new has another number. So a process that runs in bursts between two looks is never taken for one that
stands still.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from hangdoc.evidence import Process, Stacks, Target, ThreadCpu

LONGEST_S = 20.0  # after which they are read again all the same
# Threads of the C++ libraries, which poll and never run Python: of gloo, of torch's store, of NCCL.
_NATIVE = re.compile(r"gloo_tcp_loop|pt_gloo_runloop|pt_tcpstore(?:_uv)?")
_ASLEEP = "SDTt"

_Run = tuple[int, float, float | None, int | None, int | None]
_Runs = tuple[
    frozenset[int], frozenset[_Run]
]  # the threads there are, and how often those have run that may run Python


@dataclass(frozen=True, slots=True)
class _Kept:
    runs: _Runs
    read_s: float
    stacks: Stacks


class Unmoved:
    """The stacks of the look before, of each process of which they still hold."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._now = now

    def of(self, target: Target, process: object) -> Stacks | None:
        """What is known to hold still, by the record of probe `cpu` in this round."""
        kept = self._kept.get((target.pid, target.start_ticks))
        if kept is None or self._now() - kept.read_s > LONGEST_S:
            return None
        return kept.stacks if kept.runs == _runs(process, kept.stacks) else None

    def keep(self, targets: Collection[Target], read: Callable[[Target], tuple[object, Stacks] | None]) -> None:
        """Remember what was read in this round of these processes, no others, by their records of probe `cpu`.

        Those records are older than the stacks: what ran while the stacks were read counts as having run since.
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
    """How often and how long each thread that may run Python has run; None where that cannot be told, or one runs."""
    if not isinstance(process, Process) or not process.threads:
        return None
    python = {stack.tid for stack in stacks.threads}
    asked = [thread for thread in process.threads if thread.tid in python or not _NATIVE.fullmatch(thread.comm)]
    if not all(thread.state in _ASLEEP and _counted(thread) for thread in asked):
        return None
    threads = frozenset(thread.tid for thread in process.threads)
    if not python <= threads:  # there are too many, or the C library does not tell which thread it is
        return None
    return threads, frozenset((t.tid, t.cpu_s, t.run_delay_s, t.voluntary, t.involuntary) for t in asked)


def _counted(thread: ThreadCpu) -> bool:
    """The kernel counts in nanoseconds, or counts the switches: a clock of ticks alone misses a short run."""
    return thread.run_delay_s is not None or thread.voluntary is not None
