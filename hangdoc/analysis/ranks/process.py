"""Analysis `process`: state of each rank's process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.fast_dataclass import fast_dataclass
from hangdoc.analysis.thresholds import DEBUGGED_THREADS, HELD_S, MIN_LOOKS
from hangdoc.evidence import Process

STOPPED = ("T", "t")


@fast_dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One rank's process; None: not seen."""

    state: str | None  # of the main thread, as in /proc: R S D T t Z
    stopped: bool | None  # stopped by a signal or a debugger, for more than a moment
    tracer: str | None  # name of the process that traces it (ptrace)
    tracer_pid: int | None
    exit: str | None  # how the process ended: "signal 9 (SIGKILL)"; None: it runs, or unknown
    wchan: str | None  # kernel function the main thread sleeps in
    rss_bytes: int | None  # resident memory
    nice: int | None
    tracer_command: str | None = None  # command line of the tracer
    paused_share: float = 0.0  # share of the looks in which a signal had stopped it, if it ran in between


class ProcessAnalysis(Analysis[ProcessFacts, None]):
    rank_facts = ProcessFacts
    seen_by = ("cpu",)

    def derive(self, case: Case) -> tuple[dict[Key, ProcessFacts], None]:
        return {key: _facts(case, key) for key in case.ranks}, None


def _facts(case: Case, key: Key) -> ProcessFacts:
    process = case.record(key, "cpu")
    end = case.ranks[key].exit
    if not isinstance(process, Process) or case.ranks[key].alive is False:
        return ProcessFacts(None, None, None, None, end, None, None, None)
    main = next((t for t in process.threads if t.tid == process.pid), None)
    return ProcessFacts(
        state=process.state,
        stopped=is_stopped(case, key),
        tracer=process.tracer,
        tracer_pid=process.tracer_pid or None,
        exit=end,
        wchan=main.wchan if main else None,
        rss_bytes=process.rss_bytes,
        nice=process.nice,
        tracer_command=process.tracer_command,
        paused_share=_paused_share(process_looks(case, key)),
    )


def process_looks(case: Case, key: Key) -> Sequence[tuple[float, Process]]:
    """A rank's records of probe `cpu` with their instants (s, its host's clock), oldest first."""
    known: dict[Key, Sequence[tuple[float, Process]]] = case.once("processes", dict)
    found = known.get(key)
    if found is None:
        series = case.series(key, "cpu")
        found = known[key] = [(at_s, record) for at_s, record in series if isinstance(record, Process)]
    return found


def is_stopped(case: Case, key: Key) -> bool:
    """True if a signal or a debugger stopped the process, for more than a moment."""
    process = case.record(key, "cpu")
    if not isinstance(process, Process) or process.state not in STOPPED:
        return False
    seen, runs = process_looks(case, key), _runs(process)
    held = [*takewhile(lambda look: look[1].state in STOPPED and _runs(look[1]) == runs, reversed(seen))]
    return len(held) == len(seen) or held[0][0] - held[-1][0] >= HELD_S


def _paused_share(looks: Sequence[tuple[float, Process]]) -> float:
    """Share of the looks at a process that is stopped and continued again and again, as cpulimit(1) does it."""
    stopped = sum(look.state == "T" for _, look in looks)
    if not stopped or len({tuple(_runs(look)) for _, look in looks}) < MIN_LOOKS:
        return 0.0
    return stopped / len(looks)


def _runs(process: Process) -> list[tuple[int | None, int | None]]:
    """Context-switch counters of the main thread; they advance if a stopped process was briefly resumed.

    Only the main thread: a debugger may have left the other threads running.
    """
    return [(thread.voluntary, thread.involuntary) for thread in process.threads if thread.tid == process.pid]


def was_held(before: Process, after: Process) -> bool:
    """True if a debugger (py-spy is one) stopped the process briefly between two looks: that wakes every thread."""
    if "t" in (before.state, after.state):
        return True
    ran = {thread.tid: thread.voluntary for thread in before.threads}
    both = [thread for thread in after.threads if thread.tid in ran]
    return len(both) >= DEBUGGED_THREADS and all(thread.voluntary != ran[thread.tid] for thread in both)


ANALYSIS = ProcessAnalysis()
