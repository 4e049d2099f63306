"""What to do next with a job: wait, look closer, or judge. Decided on its facts, and followed by `follow`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

from hangdoc.analysis import Key
from hangdoc.analysis.facts import Facts, RankFacts
from hangdoc.analysis.ranks.process import STOPPED
from hangdoc.analysis.thresholds import DRIFTED_CHANGES, MOSTLY, OFTEN, PACE_LOOKS
from hangdoc.diagnose import Judge, undecided_ranks
from hangdoc.verdict import Verdict
from hangdoc.watch.session import Session

PATIENCE_S = 4.0  # a shorter standstill may be an ordinary pause
EXAMINATIONS = 3  # rounds: native stacks of many ranks take more than one
ONCE_SOON_S = 4.0  # `--once` may call a job healthy after this long
ONCE_S = 9.0  # `--once` gives its verdict after this long if nothing stalls
ONCE_LIMIT_S = 14.0  # `--once` watches longer only where its looks were too few to compare the ranks
ONCE_BUSY_S = 30.0  # `--once` never watches longer: on a busy host, a look takes seconds
ONCE_DOUBT_S = 60.0  # except where each look found a difference, and a few more decide


@dataclass(frozen=True, slots=True)
class CloserLook:
    """A round with every probe, which may briefly pause `ranks` for their native stacks."""

    ranks: frozenset[Key] = frozenset()


Decision = CloserLook | Literal["wait", "judge"]
Policy = Callable[[Facts], Decision]


def follow(policy: Policy, session: Session, judge: Judge, job: str, facts: Facts) -> tuple[Facts, bool]:
    """The facts after the closer looks that the policy asks for, and whether it has seen enough to judge."""
    while isinstance(decision := policy(facts), CloserLook):
        del facts  # large for thousands of ranks, and the closer look makes new ones
        session.look_closer(decision.ranks)
        facts = judge.facts(session.snapshots(job))
    return facts, decision == "judge"


@dataclass(slots=True)
class Examination:
    """Examines the ranks of a stalled job until no other rank is worth it; a stall that ends meanwhile is judged.

    A rank without native frames is examined once more: a native dump may fail, such as on a busy host.
    """

    ranks: set[Key] = field(default_factory=set)
    rounds: int = 0
    repeated: bool = False

    def decide(self, facts: Facts) -> Decision:
        wanted = ranks_to_examine(facts)
        if self.rounds and self.ranks.issuperset(wanted):
            if self.repeated or all(map(_has_native_frames, _of(facts, wanted))):
                return "judge"
            self.repeated = True
        if self.rounds == EXAMINATIONS:
            return "judge"
        self.rounds += 1
        self.ranks.update(wanted)
        return CloserLook(frozenset(self.ranks))


@dataclass(slots=True)
class Once:
    """Decides for `watch --once`: a stuck job is examined, a quiet one is inspected once, any other is watched."""

    job: str
    say: Callable[[str], None]
    inspected: bool = False
    examination: Examination | None = None
    examined_s: float | None = None  # when the examination began
    lacking: bool = False  # ranks are missing for no known reason: a supervisor may be starting one again

    def decide(self, facts: Facts, elapsed_s: float) -> Decision:
        """`elapsed_s`: since the watch began."""
        parked = facts.job.stall.parked and elapsed_s >= ONCE_S
        if self.examination is None and (parked or is_stuck(facts, PATIENCE_S)):
            if self.examined_s is None:
                self.say(f"no progress in job {self.job}: examining it")
            self.examination, self.examined_s = Examination(), elapsed_s
        if self.examination is not None:
            return self.examination.decide(facts)
        if needs_inspection(facts) and not self.inspected:
            self.inspected = True
            return CloserLook()
        decided = facts.job.stall.progressed and not may_be_stuck(facts)
        soon = is_balanced(facts) and facts.job.progress.looks > PACE_LOOKS
        due_s = ONCE_LIMIT_S if not decided else ONCE_SOON_S if soon else ONCE_S
        return "judge" if elapsed_s >= due_s or has_ended(facts) else "wait"

    def accepts(self, judge: Judge, verdict: Verdict, facts: Facts, elapsed_s: float) -> bool:
        """False if a longer watch may show more: patterns take time, and so does what is still undecided."""
        if has_ended(facts) or elapsed_s >= ONCE_DOUBT_S:
            return True
        if undecided_ranks(facts) and verdict.status in ("healthy", "unknown"):
            return False
        if elapsed_s >= ONCE_BUSY_S:
            return True
        unexplained = all(finding.confidence == "low" for finding in verdict.findings[:1])
        self.lacking = is_lacking(facts) and unexplained
        if self.lacking and elapsed_s < ONCE_S:
            return False
        if verdict.status == "healthy" and not is_paced(facts):
            return False
        if elapsed_s >= ONCE_LIMIT_S:
            return True
        if verdict.status == "unknown":  # such as a stall that a slow examination has outlasted
            return False
        if verdict.status == "stalled" and not verdict.findings and any(not rank.stack.waits for rank in facts.ranks):
            # What does not change from one examination to the next may show what that rank waits for.
            if self.examined_s is not None and elapsed_s - self.examined_s >= PATIENCE_S:
                self.examination = None
            return False
        if self.examination is not None or elapsed_s >= ONCE_S:
            return True
        return verdict.status == "healthy" and not verdict.findings and not judge.not_ruled_out(verdict.considered)


def is_lacking(facts: Facts) -> bool:
    """True if ranks wait for one that has not arrived, or that was never seen where only a launcher can count them."""
    startup = facts.job.startup
    if startup.lacking is None:
        return bool(startup.waiting and facts.job.world.missing)
    return startup.lacking > 0


def is_stuck(facts: Facts, patience_s: float) -> bool:
    """True if the job has been stalled for at least `patience_s`.

    A rank that was found stopped a moment ago is looked at again first: it may be the cause, or in a debugger's hands.
    """
    stall = facts.job.stall
    return bool(stall.stalled) and (stall.seconds or 0.0) >= patience_s and not is_held(facts)


def is_held(facts: Facts) -> bool:
    """True if a rank was found stopped, but not for long enough to call it that."""
    return any(rank.process.state in STOPPED and not rank.process.stopped for rank in facts.ranks)


def is_balanced(facts: Facts) -> bool:
    """True if the ranks hold the same parameters, and each computes or waits for its peers, as much as the others.

    Nothing slows such a job down but its own work.
    """
    if not all(rank.replicas.apart is False for rank in facts.ranks):
        return False
    shares = [(rank.progress.compute_share or 0.0, rank.progress.wait_share or 0.0) for rank in facts.ranks]
    waits = [wait for _, wait in shares]
    return all(sum(both) >= MOSTLY for both in shares) and max(waits, default=0.0) - min(waits, default=0.0) < OFTEN


def is_paced(facts: Facts) -> bool:
    """False if the ranks make steps, and a few more looks would show whether one of them makes its peers wait, or
    leaves out some of its steps.
    """
    if len(facts.ranks) == 1:
        return True
    if any(_may_be_late(rank) or _may_drift(rank) for rank in facts.ranks):
        return False
    if not facts.job.network.moving:
        return True
    known = all(rank.pace.late is not None for rank in facts.ranks)
    looks = facts.job.progress.looks  # one more than needed: the first may be left out
    return known or looks > PACE_LOOKS or is_balanced(facts)


def _may_be_late(rank: RankFacts) -> bool:
    """True if its peers wait while it works, or waits for a server: its next steps show whether it is so in each."""
    pace = rank.pace
    if (pace.late_share or 0.0) < MOSTLY or pace.late or pace.each_step:
        return False
    return pace.steps >= 2 or bool(rank.service.name)


def _may_drift(rank: RankFacts) -> bool:
    """True if its parameters change more or less often than those of the other replicas, by more than chance."""
    return rank.replicas.apart is None and 2 * rank.replicas.drift > DRIFTED_CHANGES


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


def _of(facts: Facts, keys: Collection[Key]) -> list[RankFacts]:
    return [rank for rank in facts.ranks if (rank.host, rank.pid) in keys]


def _has_native_frames(rank: RankFacts) -> bool:
    """True also for a rank that has none to give: its stacks may not be read, or a thread cannot be stopped."""
    return rank.stack.native or "stacks" not in rank.seen or rank.process.state in ("D", *STOPPED)
