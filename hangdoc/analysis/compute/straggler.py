"""Analysis `pace`: who sets the pace of a job that goes on, by how much, and why where it can be seen.

The rank that is waited for is the one that hardly waits while the others do, steadily over the window and with steps
going by: an evaluation, a checkpoint or a pause of one rank now and then is neither. And it asks for a core meanwhile:
one that sleeps waits for something itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hangdoc.analysis import Case, Key
from hangdoc.analysis.compute.resources import ResourcesFacts
from hangdoc.analysis.compute.wait_time import SLICE_S, Waiting, steps, stood, waiting
from hangdoc.analysis.compute.workload import more_work, same_code
from hangdoc.analysis.ranks.phases import WAITING
from hangdoc.analysis.ranks.progress import Look, looks_at

LATE = 0.25  # share of the time the others wait for it: less is within what an ordinary busy host does
LATE_UNEXPLAINED = 0.4  # where what it waits for, or how much it computes, is not seen
LATE_IN_PART = 0.5  # of that share, in each part of the window
STEADY = 0.8  # of the finest parts of the window in which the others wait for it a third as long as in the whole
HEAVIER = 1.5  # times the CPU time of the others in as many steps: a busy host delays all, so LATE will do, and ...
# ... half of it where it is seen what it has more of
SHORT_STEP_S = SLICE_S  # several go by in the finest parts of the window, and in each of them, so that hardly ...
STOOD = 0.1  # ... a look finds the others where the look before did
ASKS = 0.5  # cores, over the time that it does not wait
COMPUTES = 0.8  # cores, over the same time, where nothing else accounts for it
MUTUAL = ("all_", "reduce_scatter", "barrier", "monitored_barrier", "wait")  # every member waits for every other
LESS = 1.4  # times less of the CPU time it asks for than the others get, to be the reason


@dataclass(frozen=True, slots=True)
class StragglerFacts:
    """One rank over the window; None: not seen long enough."""

    waits: float | None = None  # share of the time it waited for other ranks
    late_share: float | None = None  # share of the time that the others waited for it, itself not waiting
    late_least: float | None = None  # the same in the third of the window where it was least
    late_s: float | None = None  # in each step
    steadiness: float | None = None  # share of the window's finest parts in which it was so; None: not told so fine
    others_stood: float | None = None  # share of the looks at the others that found them at the same place and step
    same_code: bool | None = None  # while waited for it was at lines at which others are seen as well
    late: bool | None = None  # it sets the pace: steady, with steps going by
    mutual: bool | None = None  # the others wait in operations where every rank waits for every other
    doing: str | None = None  # what it was mostly seen at while it did not wait: compute input idle ...
    slept: bool | None = None  # ... asleep rather than on a core
    less: float | None = None  # times less of the CPU time it asks for than the others get of theirs
    # Times the CPU time that the others used in the same steps; not where waiting spins. Without the kernel's: of two
    # equal ranks one may spend half its time on pages that its allocator gives back and takes again in each step.
    more_cpu: float | None = None
    computes: float | None = None  # cores used, of such time as well, while it did not wait
    work: str | None = None  # what it has more of: "inputs in train: 128 rows, 64 on the others"
    cause: str | None = None  # nice | neighbour | crowded | queue | cores | work; None: not seen
    advancing: bool | None = None  # it asks for a core all the time and gets little of it: slow, not stuck


@dataclass(slots=True)
class StragglerAnalysis:
    name: str = "pace"
    order: int = 55
    rank_facts: type | None = StragglerFacts
    job_facts: type | None = None

    def derive(self, case: Case) -> tuple[dict[Key, StragglerFacts], None]:
        resources: dict[Key, ResourcesFacts] = case.rank_facts["resources"]
        unseen = {advancing: StragglerFacts(advancing=advancing) for advancing in (True, None)}
        facts = {key: unseen[_advancing(case, key, resources[key])] for key in case.ranks}
        waits = {key: found for key in case.ranks if (found := waiting(case, key))}
        if len(waits) < 2 or len(waits) < len(case.ranks):
            return facts, None
        period = case.job_facts["progress"].period_s
        all_ranks = Peers(case, waits)
        moving = {key: steps(case, key) for key in waits}
        moved = sum(moving.values())
        for key in waits:
            mine = _facts(case, key, waits[key], all_ranks, facts[key])
            goes_on = moved > moving[key]
            facts[key] = replace(mine, late=goes_on and _late(mine, period))
        return facts, None


class RankValues:
    """A number of each rank."""

    def __init__(self, values: Iterable[float]) -> None:
        self.sorted = sorted(values)

    def median(self, but: float | None = None) -> float:
        """Of all but one that is `but`; raises IndexError where none is left."""
        skipped = len(self.sorted) if but is None else bisect_left(self.sorted, but)
        count = len(self.sorted) - (but is not None)
        low, high = (self.sorted[i + (i >= skipped)] for i in ((count - 1) // 2, count // 2))
        return low if count % 2 else (low + high) / 2

    def up_to(self, limit: float) -> int:
        """How many do not exceed it."""
        return bisect_right(self.sorted, limit)


class Peers:
    """All the ranks, to compare each with the others."""

    def __init__(self, case: Case, waits: Mapping[Key, Waiting]) -> None:
        resources: Sequence[ResourcesFacts] = [case.rank_facts["resources"][key] for key in waits]
        self.parts = [RankValues(values) for values in zip(*(one.parts for one in waits.values()), strict=True)]
        slices = [one.slices for one in waits.values() if one.slices is not None]
        # As many as every rank has; none where one of them has none.
        self.slices = (
            [RankValues(values) for values in zip(*slices, strict=False)] if len(slices) == len(waits) else None
        )
        self.stood = {key: stood(case, key) for key in waits}
        self.all_stood = RankValues(self.stood.values())
        self.of_users = all(one.user_cores is not None for one in resources)
        self.used = RankValues(used for one in resources if (used := self.cores_used(one)))
        self.gets = RankValues(1.0 - one.delay_share for one in resources if one.delay_share is not None)
        self.cores = RankValues(one.cores or 0 for one in resources)
        self.nice = any(one.nicer == 0 for one in resources)
        self.spins = any(one.spins for one in waits.values())
        self.mutual = {key: _mutual(case, key) for key in waits}
        self.all_mutual = [sum(counts) for counts in zip(*self.mutual.values(), strict=True)]

    def cores_used(self, rank: ResourcesFacts) -> float | None:
        return rank.user_cores if self.of_users else rank.cores_used


def _facts(case: Case, key: Key, mine: Waiting, crowd: Peers, facts: StragglerFacts) -> StragglerFacts:
    parts = _lateness(mine.parts, crowd.parts)
    share = sum(parts) / len(parts)
    period = case.job_facts["progress"].period_s
    phases = [look.phase for look in looks_at(case, key) if look.phase not in WAITING]
    own: ResourcesFacts = case.rank_facts["resources"][key]
    own_used = crowd.cores_used(own)
    used = _of_others(crowd.used, own_used or None)
    gets = _of_others(crowd.gets, None if own.delay_share is None else 1.0 - own.delay_share)
    waiting, mutual = (every - itself for every, itself in zip(crowd.all_mutual, crowd.mutual[key], strict=True))
    facts = replace(
        facts,
        waits=mine.share,
        late_share=max(0.0, share),
        late_least=max(0.0, min(parts)),
        late_s=share * period if period is not None and share > 0 else None,
        steadiness=_steadiness(mine.slices, crowd.slices, share),
        others_stood=crowd.all_stood.median(crowd.stood[key]),
        mutual=mutual > waiting / 2 if waiting else None,
        more_cpu=own_used / used if own_used is not None and used and not crowd.spins else None,
        computes=own_used / max(0.1, 1.0 - mine.share) if own_used is not None and not crowd.spins else None,
        doing=max(dict.fromkeys(phases), key=phases.count) if phases else None,
        slept=own.demand < ASKS * max(0.1, 1.0 - mine.share) if own.demand is not None else None,
        less=gets / max(0.01, 1.0 - own.delay_share) if own.delay_share is not None and gets is not None else None,
        work=more_work(case, key) if share >= LATE / 2 else None,
        same_code=same_code(case, key) if share >= LATE / 2 else None,
    )
    return replace(facts, cause=_cause(facts, own, crowd)) if share >= LATE / 2 else facts


def _of_others(values: RankValues, but: float | None) -> float | None:
    """The median of the others; None where of none of them it is known."""
    return values.median(but) if len(values.sorted) > (but is not None) else None


def _lateness(mine: Sequence[float], every: Sequence[RankValues]) -> list[float]:
    """By how much the others waited more, in each part of the window."""
    return [one.median(share) - share for one, share in zip(every, mine, strict=False)]


def _steadiness(mine: Sequence[float] | None, every: Sequence[RankValues] | None, share: float) -> float | None:
    """Of these parts of the window, those in which the others waited a third as long for it as on average."""
    if mine is None or every is None or share <= 0.0:
        return None
    late = _lateness(mine, every)
    return sum(one >= share / 3 for one in late) / len(late)


def _late(facts: StragglerFacts, period_s: float | None) -> bool:
    """Whether that rank sets the pace."""
    share, least = facts.late_share or 0.0, facts.late_least or 0.0
    if facts.slept or facts.doing == "idle" or not _in_every_step(facts, period_s):
        return False
    enough = _enough(facts)
    return enough is not None and share >= enough and least >= LATE_IN_PART * enough


def _enough(facts: StragglerFacts) -> float | None:
    """The share of the time from which on it is worth saying; None: never, nothing accounts for it."""
    if (facts.more_cpu or 0.0) >= HEAVIER:
        return LATE / 2 if facts.cause == "work" else LATE
    if facts.cause is None and facts.computes is not None and facts.computes < COMPUTES:
        return None  # it was held up, by what was not seen: the hypervisor, the disk, its allocator
    return LATE if facts.cause not in (None, "queue") else LATE_UNEXPLAINED


def _in_every_step(facts: StragglerFacts, period_s: float | None) -> bool:
    """Not an evaluation now and then, which is at lines of its own and between steps that stand still meanwhile."""
    if facts.same_code:
        return True
    if period_s is None or period_s > SHORT_STEP_S or (facts.others_stood or 0.0) > STOOD:
        return False
    return facts.steadiness is None or facts.steadiness >= STEADY


def _cause(facts: StragglerFacts, mine: ResourcesFacts, crowd: Peers) -> str | None:
    """What the rank that is waited for has that the others have not."""
    if (facts.less or 0.0) >= LESS:
        if (mine.nicer or 0) > 0 and crowd.nice:
            return "nice"
        if (mine.crowd or 0) > (mine.cores or 0) and mine.bound:
            return "crowded"
        if (mine.neighbour_cores or 0.0) >= 0.2:
            return "neighbour"
        return "queue"
    if mine.cores is not None and crowd.cores.up_to(mine.cores) == 1:  # itself: all others have more
        return "cores"
    return "work" if facts.work else None


def _mutual(case: Case, key: Key) -> tuple[int, int]:
    """Looks that found it waiting; and of these, in what makes every rank wait for every other.

    A pipeline's neighbours wait in nothing of that kind.
    """
    waiting = [look for look in looks_at(case, key) if look.phase in WAITING]
    return len(waiting), sum(look.phase == "collective" and _is_mutual(look) for look in waiting)


def _is_mutual(look: Look) -> bool:
    return look.op is None or look.op.startswith(MUTUAL)


# --- why ------------------------------------------------------------------------------------------


def _advancing(case: Case, key: Key, resources: ResourcesFacts) -> bool | None:
    stack = case.rank_facts["stack"][key]
    if stack.waits is not False or stack.phase in ("stopped", "exited"):
        return None
    asks = (resources.demand or 0.0) + (resources.throttled_share or 0.0) >= 0.5
    return True if asks or (resources.major_faults or 0.0) > 20.0 else None


ANALYSIS = StragglerAnalysis()
