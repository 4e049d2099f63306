"""Analysis `startup`: does the job come together; who has come, who has not, and who cannot.

A rank in init_process_group waits for others that may still import torch: that is no stall while one of them is on its
way, and where they belong on hosts that are not seen, not before the wait is longer than starts are apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.analysis.arrival import UNANSWERED_S, Arrival, arrival, assembles
from hangdoc.fold import fold_ranks, name_ranks
from hangdoc.jobs import on_loopback

HERE_S = 6.0  # patience where the missing belong on this host and none of them is on its way
ELSEWHERE_S = 20.0  # where they may be on hosts that are not seen, each started in its own time
UNREACHED_S = 6.0  # where no connection comes about


@dataclass(frozen=True, slots=True)
class StartupFacts:
    """One rank, or launcher, on its way into the job; None: it is not, or that was not seen."""

    waits: bool | None = None  # it stands in init_process_group or a rendezvous
    agent: bool = False  # it is a launcher that waits for other hosts, no rank yet
    part: str | None = None  # what it is to the job: "node 1, which starts ranks 2-3"
    master: str | None = None  # address:port where it means to meet the others
    resolved: str | None = None  # the addresses that this name stands for
    tried: str | None = None  # ip:port that did not answer
    tried_s: float | None = None  # since when, at least
    trouble: str | None = None  # why it does not get there: silent | unresolved | refused | unreached
    waited_s: float | None = None  # at least
    timeout_s: float | None = None  # it gives up after so long
    left_s: float | None = None  # until then, at most
    unreachable: bool | None = None  # it cannot get to the place where it means to meet the others
    holder: str | None = None  # command of the stranger that listens there
    holder_pid: int | None = None
    stuck: bool | None = None


@dataclass(frozen=True, slots=True)
class Suspect:
    """A culprit that is no rank among those seen."""

    rank: int | None
    pid: int | None = None
    host: str | None = None


@dataclass(frozen=True, slots=True)
class StartupJob:
    """How far the job has come together."""

    waiting: int = 0  # ranks and launchers that stand in init_process_group or a rendezvous
    expected: int | None = None  # ranks, or where launchers wait hosts, that the job is to have
    come: int | None = None  # of these, how many are at the meeting place, or known to be on their way
    hosts: bool = False  # it is hosts that are counted
    missing: tuple[int, ...] = ()  # ranks that have not come, where their numbers are known
    lacking: int | None = None  # how many are still to come; 0: all are there
    absent: tuple[Suspect, ...] = ()  # those of `missing`
    named: str | None = None  # who has not come: "rank 2", "ranks 4-5 (node 2)", "1 host"
    strangers: tuple[Suspect, ...] = ()  # processes of no part in the job that listen where it means to meet
    here: bool | None = None  # everybody belongs on this host
    waited_s: float | None = None  # since the last of them came, at least
    timeout_s: float | None = None  # the first of them gives up after so long
    pending: bool = False  # somebody waits, not yet for long enough to say that he waits in vain


@dataclass(slots=True)
class StartupAnalysis:
    name: str = "startup"
    order: int = 45
    rank_facts: type | None = StartupFacts
    job_facts: type | None = StartupJob

    def derive(self, case: Case) -> tuple[dict[Key, StartupFacts], StartupJob]:
        seen = {key: arrival(case, key) for key in case.ranks if case.ranks[key].alive is not False}
        waiting = {key: one for key, one in seen.items() if assembles(case, key)}
        roll = _roll(case, seen, waiting)
        in_vain = bool(waiting) and _in_vain(case, roll, seen, waiting)
        facts = {key: _facts(case, key, seen.get(key), key in waiting, in_vain) for key in case.ranks}
        waits = [one.waited_s for one in facts.values() if one.waits and one.waited_s is not None]
        ends = [one.timeout_s for one in facts.values() if one.waits and one.timeout_s is not None]
        return facts, StartupJob(
            waiting=len(waiting),
            expected=roll.expected,
            come=roll.come,
            hosts=roll.hosts,
            missing=roll.missing,
            lacking=roll.lacking,
            absent=tuple(Suspect(rank, None, _host(case, rank)) for rank in roll.missing),
            named=_named(roll),
            strangers=_strangers(seen),
            here=roll.here,
            waited_s=min(waits, default=None),
            timeout_s=min(ends, default=None),
            pending=bool(waiting) and not in_vain and roll.lacking != 0,
        )


# --- the roll: who has come -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Roll:
    expected: int | None
    come: int | None
    missing: tuple[int, ...]
    lacking: int | None
    hosts: bool
    here: bool
    nodes: tuple[int, ...]  # numbers of the hosts that have not come, where they are known
    coming: bool  # one that has not come was started, or a rank is busy with something else before it comes


def _roll(case: Case, seen: Mapping[Key, Arrival], waiting: Mapping[Key, Arrival]) -> _Roll:
    targets = [case.ranks[key].target for key in waiting or seen]
    here = bool(targets) and all(on_loopback(target.master) for target in targets)
    if any(one.launch for one in waiting.values()):
        return _roll_of_hosts(waiting, here)
    size = case.job_facts["world"].size
    kin = {one.number for arrived in waiting.values() if arrived.meeting for one in arrived.meeting.kin}
    present = {n for key in seen if (n := case.ranks[key].target.rank) is not None}
    there = present | kin
    busy = len(waiting) < len(seen)
    if size is None or any(case.ranks[key].target.rank is None for key in seen) or None in kin:
        return _Roll(size, None, (), None, False, here, (), busy)
    served = _served(waiting)
    known = here or (served is not None and served <= len(there))  # of those not seen none has come
    missing = tuple(n for n in range(size) if n not in there) if known else ()
    come = max(len(there), served or 0)
    lacking = max(0, size - come) if here or served is not None else None
    # One that was started and has not yet connected is on its way.
    coming = busy or (bool(kin - present) and (served is None or served < len(there)))
    return _Roll(size, come, missing, lacking, False, here, (), coming)


def _served(waiting: Mapping[Key, Arrival]) -> int | None:
    """Ranks that are connected to the store, where a rank of this host serves it: not where a launcher does."""
    ranks = {pid for _, pid in waiting}
    for one in waiting.values():
        if one.meeting is not None and one.meeting.holder is not None:
            ranks.update(kin.pid for kin in one.meeting.kin if not kin.agent)
            if one.meeting.holder.pid in ranks:
                return one.meeting.clients
    return None


def _roll_of_hosts(waiting: Mapping[Key, Arrival], here: bool) -> _Roll:
    launches = [one.launch for one in waiting.values() if one.launch]
    fewest = max((launch.fewest or 0 for launch in launches), default=0)
    kin = [k for one in waiting.values() if one.meeting for k in one.meeting.kin if k.agent]
    served = next((one.meeting.clients for one in waiting.values() if one.meeting and one.meeting.clients), None)
    there = len({pid for _, pid in waiting} | {k.pid for k in kin})
    come = max(there, served or 0)
    nodes = {launch.node for launch in launches} | {k.number for k in kin}
    fixed = all(launch.fewest == launch.most for launch in launches)
    each = {launch.per_node for launch in launches}
    known = here or (served is not None and served <= there)
    numbered = known and fixed and None not in nodes | each and len(each) == 1
    absent = [node for node in range(fewest) if node not in nodes] if numbered else []
    per_node = next(iter(each)) or 1
    missing = tuple(node * per_node + local for node in absent for local in range(per_node))
    lacking = max(0, fewest - come) if fewest and (here or served is not None) else None
    # One that was started and has not yet connected is on its way.
    coming = served is not None and served < there
    return _Roll(fewest or None, come, missing, lacking, True, here, tuple(absent), coming)


def _host(case: Case, rank: int) -> str | None:
    """The host that a missing rank belongs on, where that is known."""
    return next((one.target.host for one in case.ranks.values() if one.target.rank == rank), None)


def _named(roll: _Roll) -> str | None:
    if roll.missing:
        ranks = name_ranks(roll.missing)
        return f"{ranks} (node{'s' * (len(roll.nodes) > 1)} {fold_ranks(roll.nodes)})" if roll.nodes else ranks
    if not roll.lacking:
        return None
    return f"{roll.lacking} {'host' if roll.hosts else 'rank'}{'s' * (roll.lacking > 1)}"


def _strangers(seen: Mapping[Key, Arrival]) -> tuple[Suspect, ...]:
    found = {
        (key[0], one.meeting.holder.pid): None
        for key, one in seen.items()
        if one.strange and one.meeting and one.meeting.holder
    }
    return tuple(Suspect(None, pid, host) for host, pid in found)


# --- in vain --------------------------------------------------------------------------------------


def _in_vain(case: Case, roll: _Roll, seen: Mapping[Key, Arrival], waiting: Mapping[Key, Arrival]) -> bool:
    """Whether those that wait cannot go on: everybody who can come has come, and somebody is missing or cut off."""
    if len(waiting) < len(seen):
        return False  # somebody is still busy with something else before he comes
    if any(_cut_off(case, key, one) for key, one in waiting.items()):
        return True
    if roll.coming or roll.lacking == 0:
        return False
    if roll.here and roll.lacking:
        return min(one.waited_s or 0.0 for one in waiting.values()) >= HERE_S
    return min(one.long_s for one in waiting.values()) >= ELSEWHERE_S


def _cut_off(case: Case, key: Key, one: Arrival) -> bool:
    """It reached a stranger, or nobody for long."""
    waited = one.waited_s or 0.0
    if one.strange:
        return waited >= UNANSWERED_S
    return _trouble(one) is not None and waited >= UNREACHED_S


def _trouble(one: Arrival) -> str | None:
    """Why it does not get to where it means to meet the others; None where it is there, or nothing is known."""
    if one.connected is not False or one.meeting is None:
        return None
    if one.unresolved:
        return "unresolved"
    if one.unanswered_s is not None and one.unanswered_s >= UNANSWERED_S:
        return "silent"
    if one.refused:
        return None if one.meeting.kin else "refused"  # the one that serves is on its way
    return "unreached" if one.long_s >= ELSEWHERE_S else None


def _facts(case: Case, key: Key, one: Arrival | None, waits: bool, in_vain: bool) -> StartupFacts:
    target = case.ranks[key].target
    if one is None:
        return StartupFacts(agent=target.role == "agent")
    meeting = one.meeting
    trouble = _trouble(one) if waits else None
    holder = meeting.holder if meeting and one.strange else None
    timeout = meeting.timeout_s if meeting else None
    timeout = timeout if timeout is not None or one.launch is None else one.launch.timeout_s
    left = timeout - (one.waited_s or 0.0) if timeout is not None else None
    return StartupFacts(
        waits=waits,
        agent=target.role == "agent",
        part=_part(one),
        master=target.master,
        resolved=", ".join(meeting.resolved) if meeting and meeting.resolved else None,
        tried=one.tried,
        tried_s=one.unanswered_s,
        trouble=trouble,
        waited_s=one.waited_s if waits else None,
        timeout_s=timeout if waits else None,
        left_s=max(0.0, one.left_s if one.left_s is not None else left) if waits and left is not None else None,
        unreachable=trouble is not None,
        holder=holder.command if holder else None,
        holder_pid=holder.pid if holder else None,
        stuck=True if waits and in_vain else None,
    )


def _part(one: Arrival) -> str | None:
    if one.launch is None or one.launch.node is None:
        return None
    ranks = one.launch.ranks or ()
    number = f"node {one.launch.node}"
    if not ranks:
        return number
    return f"{number} with rank{'s' * (len(ranks) > 1)} {ranks[0]}" + (f"-{ranks[-1]}" if len(ranks) > 1 else "")


ANALYSIS = StartupAnalysis()
