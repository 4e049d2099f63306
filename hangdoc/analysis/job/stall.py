"""Analysis `stall`: does the job stand still, and since when.

A stall is: no rank makes progress AND some rank waits. A rank that computes makes progress, whatever it computes;
one that sleeps or waits for the outside on its way to the others (a request, the next file) is idle, not stuck.
Other analyses may know better (`hangdoc.analysis`): `stuck`, it cannot go on by itself; `advancing`, something works
for it although it blocked still.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.analysis.fast_dataclass import fast_dataclass
from hangdoc.analysis.ranks.divergence import DivergenceFacts
from hangdoc.analysis.ranks.progress import ProgressFacts
from hangdoc.analysis.ranks.stack import StackFacts

BUSY_SHARE = 0.5  # of one core: more than the housekeeping threads of a parked rank ever use
IDLE_SHARE = 0.05  # and this is what such threads may use
MIN_LOOKS = 3
STILL_S = 2.0  # and unchanged for that long


@fast_dataclass(frozen=True, slots=True)
class StallFacts:
    """One rank's part in a stall."""

    still: bool | None  # its stack did not change over the last looks; None: not seen often enough
    works: bool | None  # it computes, or waits for something that is not another rank and can still come


@dataclass(frozen=True, slots=True)
class StallJob:
    stalled: bool  # no rank makes progress and some rank waits
    seconds: float | None  # since when: from the sockets' own clocks, else as long as we have watched
    waiting: int  # ranks that wait for others
    parked: bool  # nothing runs and nothing changes, and of some rank it is not known why: native stacks may tell
    idle: bool  # nothing is stuck: the ranks that do not wait are idle and on their way
    settled: bool  # watched long enough to say; not where bytes moved a moment ago, and nothing has since
    hidden: int  # living ranks whose stacks could not be seen


@dataclass(slots=True)
class StallAnalysis:
    name: str = "stall"
    order: int = 60
    rank_facts: type | None = StallFacts
    job_facts: type | None = StallJob

    def derive(self, case: Case) -> tuple[dict[Key, StallFacts], StallJob]:
        ranks = {key: _facts(case, key) for key in case.ranks}
        stack: dict[Key, StackFacts] = case.rank_facts["stack"]
        waiting = sum(bool(facts.waits) for facts in stack.values())
        seen = [facts for facts in ranks.values() if facts.still is not None]
        complete = bool(seen) and len(seen) == len(ranks)
        network = case.job_facts.get("network")
        # What crossed seconds ago is no sign of life where a link has died since.
        moving = getattr(network, "moving", None) if not getattr(network, "dead_links", 0) else False
        works = any(facts.works for facts in ranks.values())
        stuck = any(_flagged(case, key, "stuck") for key in case.ranks)
        still = complete and all(facts.still for facts in seen)
        blocked = still and (waiting > 0 or stuck) and not works
        stalled = blocked and moving is not True
        standing = [p.standing_s for p in case.rank_facts["progress"].values() if p.standing_s is not None]
        idle_s = getattr(network, "idle_s", None)
        idle_s = idle_s if idle_s is not None else getattr(case.job_facts.get("startup"), "waited_s", None)
        if getattr(case.job_facts.get("aftermath"), "post_mortem", False):
            standing = []  # between dumps, of which nobody knows when they were taken
        return ranks, StallJob(
            stalled=stalled,
            seconds=(idle_s if idle_s is not None else min(standing, default=None)) if still else None,
            waiting=waiting,
            parked=still and not stalled and moving is not True and _quiet(case) and _unexplained(case, stack),
            idle=still and works and not any(facts.still is False for facts in ranks.values()),
            settled=complete and not (blocked and moving is True and (idle_s or 0.0) >= STILL_S),
            hidden=sum(facts.waits is None for facts in stack.values()),
        )


def _quiet(case: Case) -> bool:
    """No rank that lives uses its CPU."""
    progress = case.rank_facts["progress"]
    shares = [progress[key].cpu_share for key, rank in case.ranks.items() if rank.alive is not False]
    return all(share is not None and share < IDLE_SHARE for share in shares)


def _unexplained(case: Case, stack: Mapping[Key, StackFacts]) -> bool:
    """Some rank is idle in something that its Python frames do not name; where a rank is gone, a guess from the source
    line is no name either: `get` may be the store's, which waits for that rank."""
    gone = any(rank.alive is False for rank in case.ranks.values())
    return any(
        facts.phase in ("idle", "unknown")
        and (facts.op is None or (gone and facts.op != "sleep" and facts.leaf == facts.site))
        and not facts.native
        for facts in stack.values()
    )


def _facts(case: Case, key: Key) -> StallFacts:
    stack: StackFacts = case.rank_facts["stack"][key]
    progress: ProgressFacts = case.rank_facts["progress"][key]
    position: DivergenceFacts = case.rank_facts["position"][key]
    if stack.phase in ("stopped", "exited") or _flagged(case, key, "stuck"):
        return StallFacts(True, False)
    if progress.looks == 0:  # its stacks are hidden from us: its CPU time must tell
        quiet = None if progress.cpu_share is None else progress.cpu_share < IDLE_SHARE
        return StallFacts(quiet, None if quiet is None else not quiet)
    uses_cpu = progress.cpu_share is not None and progress.cpu_share >= BUSY_SHARE
    comes = stack.phase == "idle" and position.will_arrive is True
    works = (uses_cpu and not stack.waits) or comes or _flagged(case, key, "advancing")
    still = progress.standing_looks >= MIN_LOOKS and (progress.standing_s or 0.0) >= STILL_S
    return StallFacts(still if progress.looks >= MIN_LOOKS else None, works)


def _flagged(case: Case, key: Key, what: str) -> bool:
    """Whether an analysis that ran before says so of a rank."""
    said: Mapping[str, set[Key]] = case.once(
        "said", lambda: {one: _flagged_ranks(case, one) for one in ("stuck", "advancing")}
    )
    return key in said[what]


def _flagged_ranks(case: Case, what: str) -> set[Key]:
    groups = [facts for facts in case.rank_facts.values() if hasattr(next(iter(facts.values()), None), what)]
    return {key for facts in groups for key, one in facts.items() if getattr(one, what) is True}


ANALYSIS = StallAnalysis()
