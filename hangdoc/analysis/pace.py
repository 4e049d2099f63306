"""Analysis `pace`: who sets the pace of a job that goes on, by how much, and why where it can be seen.

The rank that is waited for is the one that hardly waits while the others do, in every third of the window and with
steps going by: an evaluation, a checkpoint or a pause of one rank is neither. How long a rank waits is told by its
threads' own clocks (asleep is what neither runs nor queues); its stacks tell what it sleeps for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from hangdoc.analysis import Case, Key
from hangdoc.analysis.clocks import Clock, clocks, processes, spent
from hangdoc.analysis.phases import WAITING
from hangdoc.analysis.progress import Look, looks_at
from hangdoc.analysis.resources import ResourcesFacts
from hangdoc.analysis.story import is_library
from hangdoc.analysis.workload import more_work
from hangdoc.evidence import Process

PARTS = 3  # of the window, in each of which it must be so
MIN_WINDOW_S = 6.0
MIN_LOOKS = 8
LATE = 0.25  # share of the time the others wait for it: less is within what an ordinary busy host does
LATE_IN_PART = 0.12
HEAVIER = (
    1.5  # times the CPU time of the others in as many steps: on a busy host, which delays all, half of that will do
)
MUTUAL = ("all_", "reduce_scatter", "barrier", "monitored_barrier", "wait")  # every member waits for every other
LESS = 1.4  # times less of the CPU time it asks for than the others get, to be the reason


@dataclass(frozen=True, slots=True)
class PaceFacts:
    """One rank over the window; None: not seen long enough."""

    waits: float | None = None  # share of the time it waited for other ranks
    late_share: float | None = None  # share of the time that the others waited for it, itself not waiting
    late_least: float | None = None  # the same in the third of the window where it was least
    late_s: float | None = None  # in each step
    late: bool | None = None  # it sets the pace: steady, with steps going by
    mutual: bool | None = None  # the others wait in operations where every rank waits for every other
    doing: str | None = None  # what it was mostly seen at while it did not wait: compute input idle ...
    slept: bool | None = None  # ... asleep rather than on a core
    less: float | None = None  # times less of the CPU time it asks for than the others get of theirs
    more_cpu: float | None = None  # times the CPU time that the others used in the same steps; not where waiting spins
    work: str | None = None  # what it has more of: "inputs in train: 128 rows, 64 on the others"
    cause: str | None = None  # nice | neighbour | crowded | queue | cores | work; None: not seen
    advancing: bool | None = None  # it asks for a core all the time and gets little of it: slow, not stuck


@dataclass(frozen=True, slots=True)
class PaceJob:
    steps: bool | None  # steps went by in every third of the window
    period_s: float | None
    late_share: float | None  # of the rank that sets the pace
    spread: float | None  # difference between the ranks that wait most and least
    delayed_alike: (
        bool | None
    )  # every rank stands in run queues for a good part of its time, none much more than another


@dataclass(slots=True)
class PaceAnalysis:
    name: str = "pace"
    order: int = 55
    rank_facts: type | None = PaceFacts
    job_facts: type | None = PaceJob

    def derive(self, case: Case) -> tuple[dict[Key, PaceFacts], PaceJob]:
        resources: dict[Key, ResourcesFacts] = case.rank_facts["resources"]
        facts = {key: PaceFacts(advancing=_advancing(case, key, resources[key])) for key in case.ranks}
        waits = {key: found for key in case.ranks if (found := _waits(case, key))}
        period = case.job_facts["progress"].period_s
        delays = [one.delay_share for one in resources.values() if one.delay_share is not None]
        alike = min(delays) >= 0.2 and 1.0 - min(delays) < LESS * (1.0 - max(delays)) if len(delays) > 1 else None
        if len(waits) < 2 or len(waits) < len(case.ranks):
            return facts, PaceJob(None, period, None, None, alike)
        steps = {key: _steps(case, key) for key in waits}
        for key in waits:
            facts[key] = _facts(case, key, waits, steps, facts[key])
        shares = [one.waits for one in facts.values() if one.waits is not None]
        late = [one.late_share for one in facts.values() if one.late_share is not None]
        return facts, PaceJob(any(steps.values()), period, max(late), max(shares) - min(shares), alike)


def _facts(
    case: Case, key: Key, waits: Mapping[Key, list[float]], steps: Mapping[Key, bool], facts: PaceFacts
) -> PaceFacts:
    others = [other for other in waits if other != key]
    parts = [median(waits[other][i] for other in others) - mine for i, mine in enumerate(waits[key])]
    share, least = sum(parts) / len(parts), min(parts)
    period = case.job_facts["progress"].period_s
    looks = [look for look in looks_at(case, key) if look.phase not in WAITING]
    phases = [look.phase for look in looks]
    resources: dict[Key, ResourcesFacts] = case.rank_facts["resources"]
    mine, theirs = resources[key], [resources[other] for other in others]
    used = [one.cores_used for one in theirs if one.cores_used]
    spin = any(_spins(looks_at(case, other), dict(processes(case, other))) for other in waits)
    heavier = mine.cores_used / median(used) if mine.cores_used is not None and used and not spin else None
    enough = 0.5 if (heavier or 0.0) >= HEAVIER else 1.0
    gets = [1.0 - one.delay_share for one in theirs if one.delay_share is not None]
    facts = replace(
        facts,
        waits=sum(waits[key]) / PARTS,
        late_share=max(0.0, share),
        late_least=max(0.0, least),
        late_s=share * period if period is not None and share > 0 else None,
        late=share >= LATE * enough and least >= LATE_IN_PART * enough and any(steps[other] for other in others),
        mutual=_mutual(case, others),
        more_cpu=heavier,
        doing=max(dict.fromkeys(phases), key=phases.count) if phases else None,
        slept=(mine.demand or 0.0) < 0.5 if mine.demand is not None else None,
        less=median(gets) / max(0.01, 1.0 - mine.delay_share) if mine.delay_share is not None and gets else None,
    )
    if not facts.late:
        return facts
    facts = replace(facts, work=more_work(case, key, others))
    return replace(facts, cause=_cause(facts, mine, theirs))


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


# --- how long a rank waits ------------------------------------------------------------------------


def _waits(case: Case, key: Key) -> list[float] | None:
    """Share of the time a rank waited for others, in each part of the window; None where it was not seen enough."""
    looks = looks_at(case, key)
    series = processes(case, key)
    if len(looks) < MIN_LOOKS or len(series) < MIN_LOOKS or series[-1][0] - series[0][0] < MIN_WINDOW_S:
        return None
    start, end = looks[0].at_s, looks[-1].at_s
    edges = [start + (end - start) * i / PARTS for i in range(PARTS + 1)]
    slept_for, spins = _slept_for_others(looks, dict(series)), _spins(looks, dict(series))
    told, found = clocks(series), []
    for first, last in pairwise(edges):
        within = [look for look in looks if first <= look.at_s <= last]
        part = [clock for clock in told if first - 0.01 <= clock.at_s <= last + 0.01]
        if len(within) < 2 or len(part) < 2:
            return None
        asleep = None if spins else _asleep(part)
        waited = sum(look.phase in WAITING for look in within) / len(within)
        found.append(waited if asleep is None else asleep * slept_for)
    return found


def _asleep(part: Sequence[Clock]) -> float | None:
    """Share of the time in which no thread ran or wanted to; None where the kernel does not tell."""
    time = spent(part)
    return None if time.delay_s is None else max(0.0, 1.0 - time.asked_s / time.seconds)


def _slept_for_others(looks: Sequence[Look], processes: Mapping[float, Process]) -> float:
    """Of the looks that found no thread on a core, the share in which it waited for other ranks."""
    asleep = [look for look in looks if look.at_s in processes and not _on_core(processes[look.at_s])]
    return sum(look.phase in WAITING for look in asleep) / len(asleep) if asleep else 1.0


def _on_core(process: Process) -> bool:
    """On a core, or kept from one by storage: in state D it waits for no rank."""
    return any(thread.state in "RD" for thread in process.threads if thread.tid == process.pid or thread.state == "D")


def _spins(looks: Sequence[Look], processes: Mapping[float, Process]) -> bool:
    """It waits for others with a thread on a core, as MPI does: its CPU clock tells nothing."""
    waiting = [processes[look.at_s] for look in looks if look.phase in WAITING and look.at_s in processes]
    return len(waiting) > 1 and sum(_on_core(process) for process in waiting) > len(waiting) / 2


def _steps(case: Case, key: Key) -> bool:
    """Whether a rank came on in every part of the window: it is not one long wait."""
    looks = looks_at(case, key)
    start, end = looks[0].at_s, looks[-1].at_s
    moved = {
        min(PARTS - 1, int(PARTS * (after.at_s - start) / max(1e-9, end - start)))
        for before, after in pairwise(looks)
        if _mark(before) != _mark(after)
    }
    return len(moved) == PARTS


def _mark(look: Look) -> tuple[object, ...]:
    lines = tuple((step.function, step.line) for step in look.story if not is_library(step.file))
    numbers = tuple(v.number for step in look.story for _, v in sorted(step.variables.items()) if v.number is not None)
    return lines, numbers


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
