"""When to look closer: reads a job's facts and decides whether it is stuck, quiet, ended, or worth an inspection."""

from __future__ import annotations

from collections.abc import Collection

from hangdoc.analysis import Key
from hangdoc.analysis.facts import Facts
from hangdoc.diagnose import Judge
from hangdoc.verdict import Verdict
from hangdoc.watch.session import Session

PATIENCE_S = 4.0  # a shorter standstill may be an ordinary pause
EXAMINATIONS = 3  # rounds: native stacks of many ranks take more than one


def is_stuck(facts: Facts, patience_s: float) -> bool:
    """True if the job has been stalled for at least `patience_s`."""
    stall = facts.job.stall
    return bool(stall.stalled) and (stall.seconds or 0.0) >= patience_s


def is_quiet(facts: Facts) -> bool:
    """True if the job is not stuck, but a rank is idle and no bytes move on its connections.

    Only an inspection can show what such a rank waits for.
    """
    stall = facts.job.stall
    if stall.idle and (stall.seconds or 0.0) >= PATIENCE_S:
        return True
    return any(
        rank.stack.phase == "idle"
        and rank.stall.still
        and (rank.progress.standing_s or 0.0) >= PATIENCE_S
        and not rank.network.moving
        for rank in facts.ranks
    )


def needs_inspection(facts: Facts) -> bool:
    """True if one inspection may show more, although the job is not stuck."""
    slow = (rank for rank in facts.ranks if "slow" in rank.network.faults)
    # A rank that only receives over a slow link has not read its interfaces by itself.
    return is_quiet(facts) or any("nics" not in rank.seen for rank in slow)


def has_ended(facts: Facts) -> bool:
    """True if every rank has exited."""
    return bool(facts.ranks) and all(rank.alive is False for rank in facts.ranks)


def may_be_stuck(facts: Facts) -> bool:
    """True if it is too early to tell.

    The job has stalled only briefly, or a rank has just died and its peers may hang or exit next, or ranks wait for
    peers that are still starting.
    """
    dying = facts.job.exit.fault and (facts.job.exit.fault_s or PATIENCE_S) < PATIENCE_S
    return bool(facts.job.stall.stalled) or not facts.job.stall.settled or dying or facts.job.startup.pending


def ranks_to_examine(facts: Facts) -> list[Key]:
    """One stalled rank for each code location, because equal native stacks add nothing.

    If a thread holds the GIL, its rank counts as a location of its own.
    """
    by_location = {
        (rank.divergence.side, rank.gil.stuck): (rank.host, rank.pid)
        for rank in reversed(facts.ranks)
        if rank.stall.still
    }
    return list(by_location.values())


def examine(session: Session, judge: Judge, job: str, ranks: Collection[Key]) -> Verdict:
    """Examine stalled ranks, then judge the job; a stall that ends meanwhile is judged as it is then."""
    examined: set[Key] = set()
    for _ in range(EXAMINATIONS):
        examined.update(ranks)
        session.examine(examined)
        facts = judge.facts(session.snapshots(job))
        ranks = ranks_to_examine(facts)
        if examined.issuperset(ranks):
            break
    return judge.verdict(facts)
