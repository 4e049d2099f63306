"""Analysis `pace`: who sets the pace of a job that goes on, by how much, and why where it can be seen.

The rank that is waited for is the one that hardly waits while the others do, steadily over the window and with steps
going by: an evaluation, a checkpoint or a pause of one rank now and then is neither. And it asks for a core meanwhile:
one that sleeps waits for something itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from hangdoc.analysis import Case, Key
from hangdoc.analysis.phases import WAITING
from hangdoc.analysis.progress import Look, looks_at
from hangdoc.analysis.resources import ResourcesFacts
from hangdoc.analysis.waiting import SLICE_S, Waiting, steps, stood, waiting
from hangdoc.analysis.workload import more_work, same_code

LATE = 0.25  # share of the time the others wait for it: less is within what an ordinary busy host does
LATE_UNEXPLAINED = 0.4  # where nothing is seen that slows it down
LATE_IN_PART = 0.5  # of that share, in each part of the window
STEADY = 0.8  # of the finest parts of the window in which the others wait for it a third as long as in the whole
HEAVIER = 1.5  # times the CPU time of the others in as many steps: a busy host delays all, so half of LATE will do
SHORT_STEP_S = SLICE_S  # several go by in the finest parts of the window, and in each of them, so that hardly ...
STOOD = 0.1  # ... a look finds the others where the look before did
ASKS = 0.5  # cores, over the time that it does not wait
MUTUAL = ("all_", "reduce_scatter", "barrier", "monitored_barrier", "wait")  # every member waits for every other
LESS = 1.4  # times less of the CPU time it asks for than the others get, to be the reason


@dataclass(frozen=True, slots=True)
class PaceFacts:
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
    more_cpu: float | None = None  # times the CPU time that the others used in the same steps; not where waiting spins
    work: str | None = None  # what it has more of: "inputs in train: 128 rows, 64 on the others"
    cause: str | None = None  # nice | neighbour | crowded | queue | cores | work; None: not seen
    advancing: bool | None = None  # it asks for a core all the time and gets little of it: slow, not stuck


@dataclass(slots=True)
class PaceAnalysis:
    name: str = "pace"
    order: int = 55
    rank_facts: type | None = PaceFacts
    job_facts: type | None = None

    def derive(self, case: Case) -> tuple[dict[Key, PaceFacts], None]:
        resources: dict[Key, ResourcesFacts] = case.rank_facts["resources"]
        facts = {key: PaceFacts(advancing=_advancing(case, key, resources[key])) for key in case.ranks}
        waits = {key: found for key in case.ranks if (found := waiting(case, key))}
        if len(waits) < 2 or len(waits) < len(case.ranks):
            return facts, None
        period = case.job_facts["progress"].period_s
        moving = {key: steps(case, key) for key in waits}
        for key in waits:
            mine = _facts(case, key, waits, facts[key])
            goes_on = any(moving[other] for other in waits if other != key)
            facts[key] = replace(mine, late=goes_on and _late(mine, period))
        return facts, None


def _facts(case: Case, key: Key, waits: Mapping[Key, Waiting], facts: PaceFacts) -> PaceFacts:
    mine, others = waits[key], {other: one for other, one in waits.items() if other != key}
    parts = _lateness(mine.parts, [one.parts for one in others.values()])
    share = sum(parts) / len(parts)
    period = case.job_facts["progress"].period_s
    looks = [look for look in looks_at(case, key) if look.phase not in WAITING]
    phases = [look.phase for look in looks]
    resources: dict[Key, ResourcesFacts] = case.rank_facts["resources"]
    own, theirs = resources[key], [resources[other] for other in others]
    used = [one.cores_used for one in theirs if one.cores_used]
    spin = any(one.spins for one in waits.values())
    gets = [1.0 - one.delay_share for one in theirs if one.delay_share is not None]
    facts = replace(
        facts,
        waits=mine.share,
        late_share=max(0.0, share),
        late_least=max(0.0, min(parts)),
        late_s=share * period if period is not None and share > 0 else None,
        steadiness=_steadiness(mine.slices, [one.slices for one in others.values()], share),
        others_stood=median(stood(case, other) for other in others),
        mutual=_mutual(case, list(others)),
        more_cpu=own.cores_used / median(used) if own.cores_used is not None and used and not spin else None,
        doing=max(dict.fromkeys(phases), key=phases.count) if phases else None,
        slept=own.demand < ASKS * max(0.1, 1.0 - mine.share) if own.demand is not None else None,
        less=median(gets) / max(0.01, 1.0 - own.delay_share) if own.delay_share is not None and gets else None,
        work=more_work(case, key, list(others)) if share >= LATE / 2 else None,
        same_code=same_code(case, key, list(others)) if share >= LATE / 2 else None,
    )
    return replace(facts, cause=_cause(facts, own, theirs)) if share >= LATE / 2 else facts


def _lateness(mine: Sequence[float], others: Sequence[Sequence[float]]) -> list[float]:
    """By how much the others waited more, in each part of the window."""
    return [median(one[i] for one in others) - share for i, share in enumerate(mine)]


def _steadiness(mine: Sequence[float] | None, others: Sequence[Sequence[float] | None], share: float) -> float | None:
    """Of these parts of the window, those in which the others waited a third as long for it as on average."""
    theirs = [one for one in others if one is not None]
    if mine is None or len(theirs) < len(others) or share <= 0.0:
        return None
    parts = min(len(mine), *(len(one) for one in theirs))
    late = _lateness(mine[:parts], theirs)
    return sum(one >= share / 3 for one in late) / len(late)


def _late(facts: PaceFacts, period_s: float | None) -> bool:
    """Whether that rank sets the pace."""
    share, least = facts.late_share or 0.0, facts.late_least or 0.0
    if facts.slept or facts.doing == "idle" or not _in_every_step(facts, period_s):
        return False
    if (facts.more_cpu or 0.0) >= HEAVIER:
        enough = LATE / 2
    else:
        enough = LATE if facts.cause not in (None, "queue") else LATE_UNEXPLAINED
    return share >= enough and least >= LATE_IN_PART * enough


def _in_every_step(facts: PaceFacts, period_s: float | None) -> bool:
    """Not an evaluation now and then, which is at lines of its own and between steps that stand still meanwhile."""
    if facts.same_code:
        return True
    if period_s is None or period_s > SHORT_STEP_S or (facts.others_stood or 0.0) > STOOD:
        return False
    return facts.steadiness is None or facts.steadiness >= STEADY


def _cause(facts: PaceFacts, mine: ResourcesFacts, others: Sequence[ResourcesFacts]) -> str | None:
    """What the rank that is waited for has that the others have not."""
    if (facts.less or 0.0) >= LESS:
        if (mine.nicer or 0) > 0 and any(one.nicer == 0 for one in others):
            return "nice"
        if (mine.crowd or 0) > (mine.cores or 0) and mine.bound:
            return "crowded"
        if (mine.neighbour_cores or 0.0) >= 0.2:
            return "neighbour"
        return "queue"
    if mine.cores is not None and all(one.cores is not None and one.cores > mine.cores for one in others):
        return "cores"
    return "work" if facts.work else None


def _mutual(case: Case, others: Sequence[Key]) -> bool | None:
    """Whether what the others wait in makes every rank wait for every other; a pipeline's neighbours do not."""
    waiting = [look for key in others for look in looks_at(case, key) if look.phase in WAITING]
    if not waiting:
        return None
    return sum(look.phase == "collective" and _is_mutual(look) for look in waiting) > len(waiting) / 2


def _is_mutual(look: Look) -> bool:
    return look.op is None or look.op.startswith(MUTUAL)


# --- why ------------------------------------------------------------------------------------------


def _advancing(case: Case, key: Key, resources: ResourcesFacts) -> bool | None:
    stack = case.rank_facts["stack"][key]
    if stack.waits is not False or stack.phase in ("stopped", "exited"):
        return None
    asks = (resources.demand or 0.0) + (resources.throttled_share or 0.0) >= 0.5
    return True if asks or (resources.major_faults or 0.0) > 20.0 else None


ANALYSIS = PaceAnalysis()
