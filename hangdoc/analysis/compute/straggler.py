"""Analysis `pace`: the straggler of a job that makes progress: which rank, by how much, and why if known.

A straggler hardly waits while its peers wait for it, in every part of the window, and while steps go by. An occasional
evaluation, checkpoint or pause on one rank does not make a straggler, unless the job does little else again and again.
A straggler also demands a core: a rank that sleeps may wait for something itself. It is one only if it sleeps for most
of every step, while its peers are in a collective that needs the data of every rank: a retry with a backoff, a rate
limit. In a broadcast they may wait for the next request by design.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.compute.resources import ResourcesFacts
from hangdoc.analysis.compute.wait_time import WaitTime, moves_throughout, unmoved_share, wait_times
from hangdoc.analysis.compute.workload import (
    gil_rival,
    in_each_step,
    more_work,
    rounds_alone,
    same_code,
    steps_alone,
)
from hangdoc.analysis.network.data_connections import is_even
from hangdoc.analysis.network.links import NetworkJob
from hangdoc.analysis.ranks.call_path import Step
from hangdoc.analysis.ranks.phases import WAITING
from hangdoc.analysis.ranks.progress import Look, ProgressFacts, ProgressJob, looks_at
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.analysis.thresholds import (
    BUSY_CORES,
    BUSY_HELPER,
    FULL_CORE,
    HALF,
    IDLE_CORES,
    IN_EACH_PART,
    LATE,
    LATE_IN_SLICE,
    LATE_WITH_MORE_WORK,
    LESS_CPU,
    LOCATED_LOOKS,
    MIN_OWN_SHARE,
    MOSTLY,
    MUCH_MORE_CPU,
    OFTEN_BLOCKED,
    PEERS_UNMOVED,
    RAN_IN_SLICE,
    ROUND_ALONE_S,
    ROUNDS_ALONE,
    SLICE_S,
    STEPS_ALONE,
    VERY_LATE,
)

# Every member waits for every other; in a broadcast or scatter, for the rank that has the data.
SYMMETRIC = ("all_", "reduce_scatter", "barrier", "monitored_barrier")
MUTUAL = (*SYMMETRIC, "wait", "broadcast", "scatter")
OPERATIONS = (*SYMMETRIC, "broadcast", "scatter", "gather", "reduce", "isend", "irecv", "send", "recv", "batch_isend")


@dataclass(frozen=True, slots=True)
class StragglerFacts:
    """One rank over the window. Shares are 0..1. None: not watched for long enough."""

    waits: float | None = None  # share of the time that it waited for other ranks
    late_share: float | None = None  # share of the time that its peers waited for it: their median wait minus its own
    late_least: float | None = None  # late_share in the third of the window where it was lowest
    late_s: float | None = None  # lateness per step, seconds
    steadiness: float | None = None  # share of the window's slices with lateness; None: known from stacks only
    others_stood: float | None = None  # share of the looks at its peers that found no movement (median over peers)
    others_ran: float | None = None  # share of the slices in which its peers ran (median over peers)
    same_code: bool | None = None  # while its peers waited, it ran lines that they run too
    each_step: bool | None = None  # while its peers waited, it ran lines of its own, in every step
    # How often, at least, it ran lines of its own while its peers waited, and then met them; 0: they wait less.
    rounds: int = 0
    steps: int = 0  # in how many steps one after the other, at least, it did so
    late: bool | None = None  # it is the straggler: late in every part of the window, while steps go by
    mutual: bool | None = None  # its peers wait mostly in collectives where every rank waits for every other
    symmetric: bool | None = None  # its peers wait mostly in collectives that need the data of every rank
    doing: str | None = None  # its most common phase while it did not wait: compute, input, idle, ...
    slept: bool | None = None  # while it did not wait, it mostly slept
    less: float | None = None  # its peers' share of their demanded CPU time, divided by its own share
    # Its CPU time divided by its peers' for the same steps; None if ranks busy-wait. User time only, if known: of two
    # equal ranks, one may spend half its time on pages that its allocator frees and reallocates in each step.
    more_cpu: float | None = None
    computes: float | None = None  # cores used (user time, as above) while it did not wait
    line: str | None = None  # at which it is for most of that time: "tidy (kg.py:55): `gc.collect()`"
    line_share: float | None = None  # share of the looks that found it there, of those that did not find it waiting
    rival: str | None = None  # where other threads of its process hold the GIL: "run (feed.py:37)"
    rival_share: float | None = None  # share of the looks at it that found them with the GIL
    work: str | None = None  # work that it has more of: "inputs in train: 128 rows, 64 on other ranks"
    cause: str | None = None  # nice | neighbour | crowded | queue | cores | work; None: unknown
    advancing: bool | None = None  # it demands a core or waits for page faults: slow, not stuck


class StragglerDetector(Detector[StragglerFacts, None]):
    rank_facts = StragglerFacts

    def derive(self, case: Case) -> tuple[dict[Key, StragglerFacts], None]:
        resources = case.facts(ResourcesFacts)
        unseen = {advancing: StragglerFacts(advancing=advancing) for advancing in (True, None)}
        facts = {key: unseen[_advancing(case, key, resources[key])] for key in case.ranks}
        waits = wait_times(case)
        if len(waits) < 2 or len(waits) < len(case.ranks):
            return facts, None
        progress = case.job(ProgressJob)
        peers = Peers(case, waits)
        moves = {key: moves_throughout(case, key) for key in waits}
        moving = sum(moves.values())
        for key in waits:
            derived = _facts(case, key, waits[key], peers, facts[key])
            # Of peers that are always found in the same collective, the number of the late rank's step shows it, if it
            # is theirs, too: an evaluation counts its batches, but reaches nobody meanwhile.
            alone = derived.each_step or _alone_again(derived, progress)
            steps_go_by = moving > moves[key] or bool(alone and moves[key] and _peers_step(case, key))
            facts[key] = replace(derived, late=steps_go_by and _is_late(derived, progress))
        return facts, None


def _peers_step(case: Case, key: Key) -> bool:
    """True if bytes reach the peers of a rank, or, where no connection was seen, they work now and then."""
    if (moving := case.job(NetworkJob).moving) is not None:
        return moving
    shares = (facts.cpu_share for other, facts in case.facts(ProgressFacts).items() if other != key)
    return any((share or 0.0) >= IDLE_CORES for share in shares)


class RankValues:
    """One number per rank, with leave-one-out statistics."""

    def __init__(self, values: Iterable[float]) -> None:
        self.sorted = sorted(values)

    def median(self, without: float | None = None) -> float:
        """Median, optionally excluding one occurrence of `without`. Raises IndexError if no value is left."""
        skipped = len(self.sorted) if without is None else bisect_left(self.sorted, without)
        count = len(self.sorted) - (without is not None)
        low, high = (self.sorted[i + (i >= skipped)] for i in ((count - 1) // 2, count // 2))
        return low if count % 2 else (low + high) / 2

    def up_to(self, limit: float) -> int:
        """Number of values that do not exceed `limit`."""
        return bisect_right(self.sorted, limit)


class Peers:
    """Statistics over all ranks, to compare each rank with its peers."""

    def __init__(self, case: Case, waits: Mapping[Key, WaitTime]) -> None:
        resources = [case.facts(ResourcesFacts)[key] for key in waits]
        self.parts = [RankValues(values) for values in zip(*(wait.parts for wait in waits.values()), strict=True)]
        slices = [wait.slices for wait in waits.values() if wait.slices is not None]
        # The slices that every rank has; None if a rank has none.
        self.slices = (
            [RankValues(values) for values in zip(*slices, strict=False)] if len(slices) == len(waits) else None
        )
        self.unmoved = {key: unmoved_share(case, key) for key in waits}
        self.all_unmoved = RankValues(self.unmoved.values())
        self.user_time_known = all(rank.user_cores is not None for rank in resources)
        self.used = RankValues(used for rank in resources if (used := self.cores_used(rank)))
        self.gets = RankValues(1.0 - rank.delay_share for rank in resources if rank.delay_share is not None)
        self.cores = RankValues(rank.cores or 0 for rank in resources)
        self.nice = any(rank.nicer == 0 for rank in resources)
        self.spins = any(wait.spins for wait in waits.values())
        self.waiting = {key: _waiting(case, key) for key in waits}
        self.all_waiting = [sum(counts) for counts in zip(*self.waiting.values(), strict=True)]

    def cores_used(self, rank: ResourcesFacts) -> float | None:
        """Cores used in user time, or in all CPU time if user time is unknown on some rank."""
        return rank.user_cores if self.user_time_known else rank.cores_used


def _facts(case: Case, key: Key, wait: WaitTime, peers: Peers, facts: StragglerFacts) -> StragglerFacts:
    parts = _lateness(wait.parts, peers.parts)
    share = sum(parts) / len(parts)
    step_s = case.job(ProgressJob).step_s
    own_looks = [look for look in looks_at(case, key) if look.phase not in WAITING]
    phases = [look.phase for look in own_looks]
    line, line_share = _usual_line(own_looks) if share >= LATE_WITH_MORE_WORK else (None, None)
    rival = gil_rival(case, key, own_looks) if share >= LATE_WITH_MORE_WORK else None
    own = case.facts(ResourcesFacts)[key]
    own_used = peers.cores_used(own)
    used = _median_of_peers(peers.used, own_used or None)
    own_gets = None if own.delay_share is None else 1.0 - own.delay_share
    gets = _median_of_peers(peers.gets, own_gets)
    waiting, mutual, symmetric = (total - own for total, own in zip(peers.all_waiting, peers.waiting[key], strict=True))
    facts = replace(
        facts,
        waits=wait.share,
        late_share=max(0.0, share),
        late_least=max(0.0, min(parts)),
        late_s=share * step_s if step_s is not None and share > 0 else None,
        steadiness=_steadiness(wait.slices, peers.slices, share),
        others_stood=peers.all_unmoved.median(peers.unmoved[key]),
        others_ran=_ran(wait.slices, peers.slices),
        mutual=mutual > waiting / 2 if waiting else None,
        symmetric=symmetric > waiting / 2 if waiting else None,
        more_cpu=own_used / used if own_used is not None and used and not peers.spins else None,
        computes=own_used / max(MIN_OWN_SHARE, 1.0 - wait.share) if own_used is not None and not peers.spins else None,
        doing=max(dict.fromkeys(phases), key=phases.count) if phases else None,
        slept=own.demand < BUSY_CORES * max(MIN_OWN_SHARE, 1.0 - wait.share) if own.demand is not None else None,
        less=gets / (own_gets or 1e-9) if own_gets is not None and gets is not None else None,
        line=line,
        line_share=line_share,
        rival=rival[0] if rival else None,
        rival_share=rival[1] if rival else None,
        work=more_work(case, key) if share >= LATE_WITH_MORE_WORK else None,
        same_code=same_code(case, key) if share >= LATE_WITH_MORE_WORK else None,
        each_step=in_each_step(case, key) if share >= LATE_WITH_MORE_WORK else None,
        rounds=rounds_alone(case, key) if share >= MOSTLY else 0,
        steps=steps_alone(case, key) if share >= MOSTLY else 0,
    )
    return replace(facts, cause=_cause(facts, own, peers)) if share >= LATE_WITH_MORE_WORK else facts


def _usual_line(looks: Sequence[Look]) -> tuple[str | None, float | None]:
    """The innermost line of user code that most of these looks have in common, and their share. None: too few looks.

    With the innermost function below it in which most of them are, at whatever line.
    """
    least = HALF * len(looks)
    own = [[step for step in look.own if step.function != "<module>"] for look in looks]
    depth, paths = _in_common(own, least, lambda step: step.site)
    if depth == 0 or len(looks) < LOCATED_LOOKS:
        return None, None
    step = paths[0][depth - 1]
    line = f"{step.site}: `{step.place.text}`" if step.place and step.place.text else step.site
    share = len(paths) / len(looks)
    functions, paths = _in_common([path[depth:] for path in paths], least, _function)
    return line + (f", most often in {_function(paths[0][functions - 1])}" if functions else ""), share


def _function(step: Step) -> str:
    return f"{step.function} ({step.base})"


def _in_common(
    paths: Sequence[Sequence[Step]], least: float, name: Callable[[Step], str]
) -> tuple[int, Sequence[Sequence[Step]]]:
    """How many steps, by their names, at least so many paths have in common, outermost first; and these paths."""
    depth = 0
    while names := [name(path[depth]) for path in paths if len(path) > depth]:
        usual, count = Counter(names).most_common(1)[0]
        if count < least:
            break
        paths = [path for path in paths if len(path) > depth and name(path[depth]) == usual]
        depth += 1
    return depth, paths


def _median_of_peers(values: RankValues, own: float | None) -> float | None:
    """Median without one occurrence of `own`. None: no peer's value is known."""
    return values.median(own) if len(values.sorted) > (own is not None) else None


def _lateness(waits: Sequence[float], every: Sequence[RankValues]) -> list[float]:
    """The peers' median share of waiting minus the rank's own, in each part of the window."""
    return [ranks.median(share) - share for ranks, share in zip(every, waits, strict=False)]


def _steadiness(waits: Sequence[float] | None, every: Sequence[RankValues] | None, share: float) -> float | None:
    """Share of the slices in which the rank was at least a third as late as on average."""
    if waits is None or every is None or share <= 0.0:
        return None
    late = _lateness(waits, every)
    return sum(lateness >= LATE_IN_SLICE * share for lateness in late) / len(late)


def _ran(waits: Sequence[float] | None, every: Sequence[RankValues] | None) -> float | None:
    """Share of the slices in which the peers did not wait all the time (median over peers)."""
    if waits is None or not every:
        return None
    return sum(ranks.median(own) <= 1.0 - RAN_IN_SLICE for ranks, own in zip(every, waits, strict=False)) / len(every)


def _is_late(facts: StragglerFacts, progress: ProgressJob) -> bool:
    """True if the rank is a straggler."""
    share, least = facts.late_share or 0.0, facts.late_least or 0.0
    if facts.doing == "idle":
        return bool(facts.symmetric and facts.each_step) and share >= HALF and least >= VERY_LATE
    if facts.slept or not (_alone_again(facts, progress) or _in_every_step(facts, progress)):
        return False
    threshold = _threshold(facts)
    return threshold is not None and share >= threshold and least >= IN_EACH_PART * threshold


def _alone_again(facts: StragglerFacts, progress: ProgressJob) -> bool:
    """The rank works alone most of the time, for a short time again and again: slow, though not in every step."""
    often = facts.rounds >= ROUNDS_ALONE
    return often and (progress.window_s or math.inf) <= facts.rounds * ROUND_ALONE_S


def _threshold(facts: StragglerFacts) -> float | None:
    """Lowest late_share of a straggler. None: nothing explains the lateness, so the rank is no straggler."""
    if (facts.more_cpu or 0.0) >= MUCH_MORE_CPU:
        return LATE_WITH_MORE_WORK if facts.cause == "work" else LATE
    if facts.cause is None and facts.computes is not None and facts.computes < FULL_CORE:
        return None  # something unseen delayed it: the hypervisor, the disk, its allocator
    return LATE if facts.cause not in (None, "queue") else VERY_LATE


def _in_every_step(facts: StragglerFacts, progress: ProgressJob) -> bool:
    """The rank is late in every step, and not just in an occasional evaluation.

    An evaluation on one rank runs its own lines, and its peers make no steps meanwhile. Where a slice holds a whole
    step, nearly every slice must show the lateness, whatever lines run: each rank collects garbage now and then, and in
    one window one of them may do so more often. Without a number that counts steps: peers that wait nearly all the
    time, and yet run in nearly every slice, make steps meanwhile; an evaluation after epochs that short is reported as
    well.
    """
    shares = facts.late_share or 0.0, facts.steadiness or 0.0, facts.others_ran or 0.0
    if (
        facts.each_step
        or facts.steps >= STEPS_ALONE
        or (facts.symmetric and not progress.steps_counted and min(shares) >= MOSTLY)
    ):
        return True
    period_s = progress.period_s
    if period_s is None or period_s > 2 * SLICE_S:
        return facts.same_code is True
    if not facts.same_code and (facts.others_stood or 0.0) > PEERS_UNMOVED:
        return False
    # More rows in its batches are more work in each step, however the slices fall.
    return facts.steadiness is None or facts.steadiness >= (HALF if facts.cause == "work" else MOSTLY)


def _cause(facts: StragglerFacts, own: ResourcesFacts, peers: Peers) -> str | None:
    """What sets the late rank apart from its peers."""
    if (facts.less or 0.0) >= LESS_CPU:
        if (own.nicer or 0) > 0 and peers.nice:
            return "nice"
        if (own.crowd or 0) > (own.cores or 0) and own.bound:
            return "crowded"
        if (own.neighbour_cores or 0.0) >= BUSY_HELPER:
            return "neighbour"
        return "queue"
    if own.cores is not None and peers.cores.up_to(own.cores) == 1:  # only itself: all peers have more cores
        return "cores"
    return "work" if facts.work else None


def _waiting(case: Case, key: Key) -> tuple[int, int, int]:
    """Numbers of looks that found the rank waiting, of these in a mutual collective, and of these in a symmetric one.

    Neighbours in a pipeline do not wait in mutual collectives. A handle may be that of any operation: it counts as a
    symmetric one if all ranks exchange as much.
    """
    waiting = [look for look in looks_at(case, key) if look.phase in WAITING]
    mutual = [look for look in waiting if look.phase == "collective" and _is_mutual(look)]
    symmetric = (
        _is_symmetric(look) or (look.op == "wait" and case.once("even exchange", lambda: is_even(case)))
        for look in mutual
    )
    return len(waiting), len(mutual), sum(symmetric)


def _is_mutual(look: Look) -> bool:
    return look.op is None or _is_one_of(look.op, MUTUAL)


def _is_symmetric(look: Look) -> bool:
    """True for a collective that needs the data of every rank, or the wait for its handle in the code that made it."""
    if look.op != "wait" or not look.own:
        return _is_one_of(look.op or "", SYMMETRIC)
    place = look.own[-1].place
    called = [call.rpartition(".")[2] for call in place.around] if place else []
    started = [call for call in called if _is_one_of(call, OPERATIONS)]
    return bool(started) and all(_is_one_of(call, SYMMETRIC) for call in started)


def _is_one_of(op: str, kinds: tuple[str, ...]) -> bool:
    return op.lstrip("_").startswith(kinds)  # `_all_gather_base` of old torch


def _advancing(case: Case, key: Key, resources: ResourcesFacts) -> bool | None:
    stack = case.facts(StackFacts)[key]
    if stack.waits is not False or stack.phase in ("stopped", "exited"):
        return None
    asks = (resources.demand or 0.0) + (resources.throttled_share or 0.0) >= BUSY_CORES
    faults = resources.faulting and (resources.blocked_share or 0.0) >= OFTEN_BLOCKED
    return True if asks or faults else None


ANALYSIS = StragglerDetector()
