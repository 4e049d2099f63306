"""Analysis `stall`: is the job stalled, and since when?

Stalled means: no rank makes progress AND some rank waits. A rank that computes makes progress, whatever it computes. A
rank that sleeps or waits for something outside the job (a request, the next file) before it joins its peers is idle,
not stuck. Other analyses may know better (see `blocking`).

A job that is not stalled is not yet healthy: that takes proof of progress on every rank. A poll is no progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.data.dataloading import DataLoadingFacts
from hangdoc.analysis.data.wait_chains import ChainFacts
from hangdoc.analysis.fast_dataclass import fast_dataclass
from hangdoc.analysis.job.aftermath import AftermathFacts, AftermathJob
from hangdoc.analysis.job.blocking import advancing_ranks, stuck_ranks
from hangdoc.analysis.locks.lock_files import LockFileFacts
from hangdoc.analysis.locks.mutexes import MutexFacts, waits_for_thread
from hangdoc.analysis.network.links import NetworkFacts, NetworkJob
from hangdoc.analysis.ranks.call_path import threads_of
from hangdoc.analysis.ranks.divergence import DivergenceFacts
from hangdoc.analysis.ranks.judged_thread import judged_thread
from hangdoc.analysis.ranks.phases import WAITING
from hangdoc.analysis.ranks.process import process_looks, was_held
from hangdoc.analysis.ranks.progress import ProgressFacts, looks_at
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.analysis.ranks.training_thread import runs_remote_call
from hangdoc.analysis.startup.startup import StartupFacts, StartupJob
from hangdoc.analysis.thresholds import (
    APART_S,
    BUSY_CORES,
    EXPECTED_S,
    IDLE_CORES,
    MOSTLY,
    RECENT_S,
    STILL_LOOKS,
    STILL_S,
    WORKED_S,
)
from hangdoc.evidence import Process, Sockets, Stacks

# Waits that end by themselves, or from outside the job. Any other wait may be for a lock, a thread or a dead disk.
OUTSIDE = frozenset({"sleep", "input", "readline", "accept", "recv", "select", "poll", "pause"})
READS = frozenset({"input", "read", "readinto", "readline", "recv"})  # what they wait for may never come
EXPLAIN_WAITS = frozenset({"io", "locks", "lockfile"})  # probes that show what another wait is for


@fast_dataclass(frozen=True, slots=True)
class StallFacts:
    """One rank's part in a stall."""

    still: bool | None  # its stack did not change over the last looks; None: too few looks
    # It makes progress: it computes, or waits for something outside the job that can still come. None: the evidence
    # that decides was not seen.
    works: bool | None
    # Progress was seen: a step, a completed collective, bytes between ranks, or work. None: it waits for its peers, so
    # that theirs counts.
    progressed: bool | None


@dataclass(frozen=True, slots=True)
class StallJob:
    """The state of the whole job."""

    stalled: bool  # no rank makes progress and some rank waits
    # It is, and every rank waits for its peers, is stopped or is stuck: nothing outside the job ends such a stall.
    internal: bool
    seconds: float | None  # how long: from the sockets' idle times, else since the newest change we saw
    waiting: int  # number of ranks that wait for other ranks
    parked: bool  # nothing runs, nothing changes, and some rank's wait is unexplained: native stacks may explain it
    idle: bool  # nothing changes, but a rank makes progress: it is idle before it joins its peers
    settled: bool  # watched long enough to decide; false if bytes moved a moment ago and have stopped since
    hidden: int  # number of living ranks whose stacks could not be seen
    progressed: bool  # progress was seen on every rank, other than those that wait for such a rank


class StallAnalysis(Analysis[StallFacts, StallJob]):
    rank_facts = StallFacts
    job_facts = StallJob

    def derive(self, case: Case) -> tuple[dict[Key, StallFacts], StallJob]:
        stack, network = case.facts(StackFacts), case.job(NetworkJob)
        presumed = {key for key, facts in case.facts(AftermathFacts).items() if facts.stuck}
        stuck, advancing = {*stuck_ranks(case), *presumed}, advancing_ranks(case)
        awaited = any(_waits_to_meet(case, key) for key in case.ranks)
        ranks = {key: _facts(case, key, key in stuck, key in advancing, awaited) for key in case.ranks}
        waiting = sum(bool(facts.waits) for facts in stack.values())
        seen = [facts for facts in ranks.values() if facts.still is not None]
        complete = bool(seen) and len(seen) == len(ranks)
        # Bytes that moved seconds ago are no sign of life if a link has died since.
        moving = False if network.dead_links else network.moving
        works = any(facts.works for facts in ranks.values())
        still = complete and all(facts.still for facts in seen)
        blocked = still and (waiting > 0 or bool(stuck)) and all(facts.works is False for facts in ranks.values())
        stalled = blocked and moving is not True
        return ranks, StallJob(
            stalled=stalled,
            internal=stalled and all(_is_held_inside(case, key) or key in stuck for key in case.ranks),
            seconds=_standing_s(case) if still else None,
            waiting=waiting,
            parked=still and not stalled and moving is not True and _quiet(case) and _unexplained(case, stack),
            idle=still and works and not any(facts.still is False for facts in ranks.values()),
            settled=complete and not (blocked and moving is True and (_idle_s(case) or 0.0) >= STILL_S),
            hidden=sum(facts.waits is None for facts in stack.values()),
            progressed={True} <= {facts.progressed for facts in ranks.values()} <= {True, None},
        )


def _is_held_inside(case: Case, key: Key) -> bool:
    """True if only a peer, or whoever stopped the rank, can let it go on."""
    stack = case.facts(StackFacts)[key]
    return bool(stack.waits) or stack.phase in ("stopped", "exited")


def _waits_to_meet(case: Case, key: Key) -> bool:
    """True if a rank waits for its peers to join it, in a collective or in the job."""
    return bool(case.facts(StackFacts)[key].waits or case.facts(StartupFacts)[key].waits)


def _waits_for_peers(case: Case, key: Key) -> bool:
    """True if a rank waits for its peers, to join it or to release a lock file."""
    return _waits_to_meet(case, key) or case.facts(LockFileFacts)[key].path is not None


def _standing_s(case: Case) -> float | None:
    """How long nothing has moved: no byte, or else no rank."""
    idle_s = _idle_s(case)
    if idle_s is not None:
        return idle_s
    if case.job(AftermathJob).post_mortem:  # the times between dumps are unknown
        return None
    return min((p.standing_s for p in case.facts(ProgressFacts).values() if p.standing_s is not None), default=None)


def _idle_s(case: Case) -> float | None:
    """Time since the last byte between two ranks, or else since the last arrival of a rank."""
    idle_s = case.job(NetworkJob).idle_s
    return case.job(StartupJob).waited_s if idle_s is None else idle_s


def _quiet(case: Case) -> bool:
    """True if no living rank uses its CPU."""
    progress = case.facts(ProgressFacts)
    shares = [progress[key].cpu_share for key, rank in case.ranks.items() if rank.alive is not False]
    return all(share is not None and share < IDLE_CORES for share in shares)


def _unexplained(case: Case, stack: Mapping[Key, StackFacts]) -> bool:
    """True if a rank is idle in an operation that its Python frames do not identify.

    If a rank has ended, or all have waited for long, a guess from the source line does not count: `get` may be the
    store's, which waits for a peer.
    """
    gone = any(rank.alive is False for rank in case.ranks.values())
    doubted = gone or (_all_guessed(case) and (_standing_s(case) or 0.0) >= EXPECTED_S)
    return any(
        facts.phase in ("idle", "unknown")
        and (facts.op is None or (doubted and facts.op != "sleep" and facts.leaf == facts.site))
        and not facts.native
        for facts in stack.values()
    )


def _all_guessed(case: Case) -> bool:
    """True if only source lines, and no frames, show what the ranks wait for, all of them: it may be one another."""
    facts = case.facts(StackFacts).values()
    return case.once(
        "all waits are guessed",  # asked for each rank
        lambda: (
            len(facts) > 1 and all(one.phase == "idle" and not one.native and one.leaf == one.site for one in facts)
        ),
    )


def _facts(case: Case, key: Key, stuck: bool, advancing: bool, awaited: bool) -> StallFacts:
    """`awaited`: a rank of the job waits for its peers to join it."""
    stack = case.facts(StackFacts)[key]
    progress = case.facts(ProgressFacts)[key]
    if stack.phase in ("stopped", "exited") or stuck:
        return StallFacts(True, False, False)
    if progress.looks == 0:  # stacks not readable: use its CPU time
        quiet = None if progress.cpu_share is None else progress.cpu_share < IDLE_CORES
        return StallFacts(quiet, None if quiet is None else not quiet, False)
    remote = (stack.op or "").startswith("rpc")  # meanwhile, it may run calls of its peers
    if remote and _is_answered(case, key):
        return StallFacts(False, True, True)
    computes = progress.cpu_share is not None and progress.cpu_share >= BUSY_CORES and (remote or not stack.waits)
    arriving = stack.phase == "idle" and case.facts(DivergenceFacts)[key].will_arrive is True
    advancing = advancing and not case.facts(StartupFacts)[key].waits  # what its helpers do brings no peer
    undecided = (remote and _serves(case, key)) or _undecided(case, key)
    works = computes or arriving or advancing or (None if undecided else False)
    still = progress.standing_looks >= STILL_LOOKS and (progress.standing_s or 0.0) >= STILL_S
    # A loop over the data set, before the training, makes no step of the job. Nor does one that may never end, while
    # peers wait: a search that finds nothing has a counter, too.
    apart = awaited and not stack.waits
    busy = computes or (advancing and stack.phase == "compute")  # of a busy host, it may get only a part of a core
    alone = apart and busy and (_idle_s(case) or 0.0) >= APART_S
    endless = alone and not progress.advanced and not _trains(case, key)
    prepares = apart and (case.facts(DataLoadingFacts)[key].prepare_share or 0.0) >= MOSTLY
    stepping = progress.period_s is not None and not prepares and (progress.advanced is True or not apart)
    steps = stepping or progress.completed or case.facts(NetworkFacts)[key].moving
    expects = stack.phase == "idle" and (arriving or not awaited) and _expects(case, key)
    worked = ((computes and progress.changed) or advancing or expects) and not prepares and not endless
    progressed = bool(steps or (worked and (progress.window_s or 0.0) >= WORKED_S))
    return StallFacts(
        still if progress.looks >= STILL_LOOKS else None,
        works,
        None if not progressed and _waits_for_peers(case, key) else progressed,
    )


def _trains(case: Case, key: Key) -> bool:
    """True if a rank was seen in an operation that belongs to training or evaluation: a forward pass, a compilation."""
    return any(look.op and look.phase not in WAITING for look in looks_at(case, key))


def _is_answered(case: Case, key: Key) -> bool:
    """True if a rank that waits for a remote call got an answer and waits for another: its thread has run.

    The thread sleeps until the answer comes. Without a look in between, the two waits look the same.
    """
    tid = _judged_tid(case, key)
    looks = process_looks(case, key)
    recent = [process for at_s, process in looks if at_s >= looks[-1][0] - STILL_S]
    return any(not was_held(a, b) and _switches(a, tid) != _switches(b, tid) for a, b in pairwise(recent))


def _serves(case: Case, key: Key) -> bool:
    """True if another thread of the rank runs a call of a peer, which may take its time."""
    tid = _judged_tid(case, key)
    return any(runs_remote_call(other.path) for other in threads_of(case, key) if other.stack.tid != tid)


def _judged_tid(case: Case, key: Key) -> int | None:
    thread = judged_thread(case, key)
    return thread.stack.tid if thread is not None else None


def _switches(process: Process, tid: int | None) -> list[int | None]:
    return [thread.voluntary for thread in process.threads if thread.tid == tid]


def _undecided(case: Case, key: Key) -> bool:
    """True if a probe is missing that would show whether a rank that does not wait for its peers works."""
    stack = case.facts(StackFacts)[key]
    if stack.phase == "teardown" or _waits_for_peers(case, key) or case.job(AftermathJob).post_mortem:
        return False
    records = case.ranks[key].records
    if stack.phase == "idle" and stack.op not in OUTSIDE and "io" not in records:
        return True  # it may wait for a process that works
    if case.facts(ProgressFacts)[key].cpu_share is None:
        return True
    return case.facts(DivergenceFacts)[key].will_arrive is None and not _every_source(case)


def _every_source(case: Case) -> bool:
    """True if the source of every rank was seen."""
    return case.once("every source", lambda: all(case.record(key, "source") is not None for key in case.ranks))


def _expects(case: Case, key: Key) -> bool:
    """True if it is known what an idle rank waits for, and that is likely to come.

    A read that returns nothing is no progress, nor is a wait for a process or a thread that does nothing, nor one that
    looks like a deadlock, nor any wait for which the job has been idle for long.
    """
    silent = case.facts(StackFacts)[key].op in READS and not _receives(case, key)
    if silent or case.facts(ChainFacts)[key].quiet or _waits_for_idle_threads(case, key):
        return False
    if case.facts(MutexFacts)[key].suspected:
        return False
    if (_idle_s(case) or 0.0) >= EXPECTED_S:
        return False
    stack = case.facts(StackFacts)[key]
    if stack.op in OUTSIDE:
        return True
    return case.ranks[key].records.keys() >= EXPLAIN_WAITS and not _all_guessed(case)


def _waits_for_idle_threads(case: Case, key: Key) -> bool:
    """True if a rank waits for another thread of its process, and each of them waits for another as well."""
    stacks = case.record(key, "stacks")
    threads = stacks.threads if isinstance(stacks, Stacks) else ()
    return bool(threads) and all(map(waits_for_thread, threads))


def _receives(case: Case, key: Key) -> bool:
    """True if a byte has just arrived on a connection of the rank, as in a download that goes on."""
    sockets = case.record(key, "sockets")
    arrived = [one.last_receive_s for one in sockets.connections] if isinstance(sockets, Sockets) else []
    return any(since is not None and since < RECENT_S for since in arrived)


ANALYSIS = StallAnalysis()
