"""Analysis `aftermath`: presumptions about a job that is gone, or is known only from a pasted stack.

Nobody dumps the stacks of a healthy job. If a stack shows a rank waiting, and no evidence contradicts it, the rank is
presumed to hang there. A presumption lowers the confidence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.job.blocking import stuck_ranks
from hangdoc.analysis.logs.log_events import job_logs
from hangdoc.analysis.logs.logs import LogsFacts
from hangdoc.analysis.ranks.progress import ProgressFacts
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import Stacks
from hangdoc.evidence.logs import Aftermath

BEYOND_LOGS = frozenset({"stacks", "recorder", "sockets"})
SEVERAL_JOBS = "several_jobs"  # kind of event: the text has the output of several jobs


@dataclass(frozen=True, slots=True)
class AftermathFacts:
    """What is left of one rank."""

    left: tuple[str, ...] = ()  # kinds of record found for it: "stacks", "recorder", ...; empty: it was watched
    presumed: bool = False  # its hang was not seen, only presumed from a single stack
    stuck: bool | None = None  # it hangs, seen or presumed


@dataclass(frozen=True, slots=True)
class AftermathJob:
    post_mortem: bool = False  # the evidence comes from files, not from watching the job
    doubts: tuple[str, ...] = ()  # each is a reason for lower confidence than in a watched job


class AftermathDetector(Detector[AftermathFacts, AftermathJob]):
    rank_facts = AftermathFacts
    job_facts = AftermathJob

    def derive(self, case: Case) -> tuple[dict[Key, AftermathFacts], AftermathJob]:
        if not any(isinstance(case.record(key, "aftermath"), Aftermath) for key in case.ranks):
            return dict.fromkeys(case.ranks, AftermathFacts()), AftermathJob()
        proved = stuck_ranks(case)
        facts = {key: _facts(case, key, key in proved) for key in case.ranks}
        timed_out = any(logs.stuck for logs in case.facts(LogsFacts).values())
        return facts, AftermathJob(True, (*_doubts(facts.values(), timed_out), *_several_jobs(case)))


def _facts(case: Case, key: Key, proved: bool) -> AftermathFacts:
    """`proved`: the rank is seen to be stuck."""
    record = case.record(key, "aftermath")
    if not isinstance(record, Aftermath):
        return AftermathFacts()
    seen_again = case.facts(ProgressFacts)[key].standing_looks > 1
    if proved or seen_again or case.ranks[key].alive is False:
        return AftermathFacts(record.left, False, None if not seen_again or proved else not _runs(case, key))
    presumed = "stacks" in record.left and not _runs(case, key)
    # Whatever its stack shows it doing then, its peers gave up waiting.
    given_up = "stacks" in record.left and case.once("half of the ranks timed out", lambda: _half_timed_out(case))
    return AftermathFacts(record.left, presumed, True if presumed or given_up else None)


def _doubts(facts: Collection[AftermathFacts], timed_out: bool) -> Iterator[str]:
    """The doubt about a job of which this is left.

    `timed_out`: by a log, a collective timed out on a rank. The hang of a rank with a log of its own, which does not
    show that, is then no presumption. The stack of a rank without a log may be later than its own timeout.
    """
    if any(rank.presumed and not (timed_out and "logs" in rank.left) for rank in facts):
        yield "nobody watched the job; its hang is presumed"
    elif not any(BEYOND_LOGS & set(rank.left) for rank in facts):
        yield "known from logs alone"


def _several_jobs(case: Case) -> Iterator[str]:
    logs = job_logs(case)
    for event in islice(logs.all(SEVERAL_JOBS), 1) if logs else ():
        yield f"the text has the output of several jobs, which number their ranks alike: {event.text}"


def _runs(case: Case, key: Key) -> bool:
    """The main thread was on a CPU when its stack was taken, and neither does it wait nor do most ranks wait for it.

    MPI, NCCL and CUDA spin while they wait.
    """
    stacks, facts = case.record(key, "stacks"), case.facts(StackFacts)
    if facts[key].waits or case.once("half of the ranks wait", lambda: _half_wait(case)):
        return False
    return isinstance(stacks, Stacks) and any(
        thread.active and (thread.name in (None, "MainThread")) for thread in stacks.threads
    )


def _half_wait(case: Case) -> bool:
    return 2 * sum(own.waits is True for own in case.facts(StackFacts).values()) >= len(case.ranks)


def _half_timed_out(case: Case) -> bool:
    """By their logs."""
    return 2 * sum(own.timed_out is True for own in case.facts(LogsFacts).values()) >= len(case.ranks)


ANALYSIS = AftermathDetector()
