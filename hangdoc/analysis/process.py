"""Analysis `process`: the state of each rank's process."""

from __future__ import annotations

from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.evidence import Process


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One rank's process; None: not seen."""

    state: str | None  # R S D T t Z of the main thread
    stopped: bool | None  # by a signal or a debugger
    tracer: str | None  # command of the process that traces it
    tracer_pid: int | None
    exit: str | None  # how it ended, where known
    wchan: str | None  # kernel function the main thread sleeps in
    blocked: bool | None  # some thread is in uninterruptible sleep (state D)
    threads: int | None
    rss_bytes: int | None
    affinity: int | None  # cores it may run on
    nice: int | None


@dataclass(slots=True)
class ProcessAnalysis:
    name: str = "process"
    order: int = 5
    rank_facts: type | None = ProcessFacts
    job_facts: type | None = None

    def derive(self, case: Case) -> tuple[dict[Key, ProcessFacts], None]:
        return {key: _facts(case, key) for key in case.ranks}, None


def _facts(case: Case, key: Key) -> ProcessFacts:
    process = case.record(key, "cpu")
    end = case.ranks[key].exit
    if not isinstance(process, Process) or case.ranks[key].alive is False:
        return ProcessFacts(None, None, None, None, end, None, None, None, None, None, None)
    main = next((t for t in process.threads if t.tid == process.pid), None)
    return ProcessFacts(
        state=process.state,
        stopped=process.state in ("T", "t"),
        tracer=process.tracer,
        tracer_pid=process.tracer_pid or None,
        exit=end,
        wchan=main.wchan if main else None,
        blocked=any(t.state == "D" for t in process.threads),
        threads=len(process.threads),
        rss_bytes=process.rss_bytes,
        affinity=len(process.affinity) if process.affinity is not None else None,
        nice=process.nice,
    )


ANALYSIS = ProcessAnalysis()
