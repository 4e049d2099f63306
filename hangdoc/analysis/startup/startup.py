"""Analysis `startup`: does the job come together; who has come, who has not, and who cannot.

A rank in init_process_group waits for others that may still import torch: that is no stall while one of them is on its
way, and where they belong on hosts that are not seen, not before the wait is longer than starts are apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from hangdoc.analysis import Case, Key
from hangdoc.analysis.culprits import Suspect
from hangdoc.analysis.startup.rendezvous import UNANSWERED_S, Arrival, Roll, arrival, assembles, roll_call
from hangdoc.evidence import Holder, RankEvidence

HERE_S = 6.0  # patience where the missing belong on this host and none of them is on its way
ELSEWHERE_S = 20.0  # where they may be on hosts that are not seen, each started in its own time
UNREACHED_S = 6.0  # where no connection comes about


@dataclass(frozen=True, slots=True)
class StartupFacts:
    """One rank, or launcher, on its way into the job; None: it is not, or that was not seen."""

    waits: bool | None = None  # it stands in init_process_group or a rendezvous
    agent: bool = False  # it is a launcher that waits for other hosts, no rank yet
    part: str | None = None  # what it is to the job: "node 1, which starts ranks 2-3"
    connected: bool | None = None  # to the place where it means to meet the others
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
    holder_age_s: float | None = None
    sure: bool | None = None  # that the holder is a stranger is certain: it is none of any training job
    stuck: bool | None = None


@dataclass(frozen=True, slots=True)
class StartupJob:
    """How far the job has come together."""

    waiting: int = 0  # ranks and launchers that stand in init_process_group or a rendezvous
    expected: int | None = None  # ranks, or where launchers wait hosts, that the job is to have
    come: int | None = None  # of these, how many are at the meeting place, or known to be on their way
    hosts: bool = False  # it is hosts that are counted
    missing: tuple[int, ...] = ()  # ranks that have not come, where their numbers are known and they are few
    missed: int = 0  # how many have not come, where their numbers are known
    lacking: int | None = None  # how many are still to come; 0: all are there
    absent: tuple[Suspect, ...] = ()  # those of `missing`
    named: str | None = None  # who has not come: "rank 2", "ranks 4-5 (node 2)", "1 host"
    strangers: tuple[Suspect, ...] = ()  # processes of no part in the job that listen where it means to meet
    displaced: tuple[Suspect, ...] = ()  # the rank that should listen there, and they
    barred: bool = False  # somebody waits for the answer of such a stranger
    here: bool | None = None  # everybody belongs on this host
    waited_s: float | None = None  # since the last of them came, at least
    timeout_s: float | None = None  # the first of them gives up after so long
    pending: bool = False  # somebody waits, not yet for long enough to say that he waits in vain
    unnamed: bool = False  # so does one that has no connection to where it means to meet, a name that nobody looked up


@dataclass(slots=True)
class StartupAnalysis:
    name: str = "startup"
    order: int = 45
    rank_facts: type | None = StartupFacts
    job_facts: type | None = StartupJob

    def derive(self, case: Case) -> tuple[dict[Key, StartupFacts], StartupJob]:
        seen = {key: arrival(case, key) for key in case.ranks if case.ranks[key].alive is not False}
        waiting = {key: one for key, one in seen.items() if assembles(case, key)}
        roll = roll_call(case, seen, waiting)
        strange = {key: holder for key, one in seen.items() if (holder := _stranger(case, one))}
        barred = any(seen[key].connected and _waited(seen[key], UNANSWERED_S) for key in strange)
        in_vain = barred or (bool(waiting) and _in_vain(case, roll, seen, waiting))
        facts = {key: _facts(case, key, seen.get(key), strange.get(key), key in waiting, in_vain) for key in case.ranks}
        if barred:  # what tries again and again does not get there either
            facts = {key: replace(one, stuck=one.stuck or _retries(case, key) or None) for key, one in facts.items()}
        waits = [one.waited_s for one in facts.values() if one.waits and one.waited_s is not None]
        ends = [one.timeout_s for one in facts.values() if one.waits and one.timeout_s is not None]
        hosts = {rank.target.rank: rank.target.host for rank in case.ranks.values()}  # of a missing one, where known
        unnamed = not in_vain and any(map(_unnamed, waiting.values()))
        return facts, StartupJob(
            waiting=len(waiting),
            expected=roll.expected,
            come=roll.come,
            hosts=roll.hosts,
            missing=roll.missing,
            missed=roll.missed,
            lacking=roll.lacking,
            absent=tuple(Suspect(rank, None, hosts.get(rank)) for rank in roll.missing),
            named=roll.named,
            strangers=_suspects(strange),
            displaced=(*_servers(case, strange), *_suspects(strange)),
            barred=barred,
            here=roll.here,
            waited_s=min(waits, default=None),
            timeout_s=min(ends, default=None),
            pending=unnamed
            or (bool(waiting) and not in_vain and (roll.lacking != 0 or case.job_facts["mesh"].pending)),
            unnamed=unnamed,
        )


# --- strangers ------------------------------------------------------------------------------------


def _stranger(case: Case, one: Arrival) -> Holder | None:
    """Who listens where it means to meet the others, and is no part of its job.

    Of whom that cannot be told is none either where rank 0, whose place that is, was not there since we watch.
    """
    meeting = one.meeting
    if meeting is None or meeting.holder is None or meeting.holder.kin:
        return None
    if meeting.holder.kin is False:
        return meeting.holder
    gone = any(rank.target.rank == 0 and not _was_there(rank) for rank in case.ranks.values())
    return meeting.holder if gone and meeting.holder.pid is not None else None


def _was_there(rank: RankEvidence) -> bool:
    return rank.alive is not False or (rank.end is not None and rank.end.at_s is not None)


def _suspects(strange: Mapping[Key, Holder]) -> tuple[Suspect, ...]:
    return tuple(dict.fromkeys(Suspect(None, holder.pid, host) for (host, _), holder in strange.items()))


def _servers(case: Case, strange: Mapping[Key, Holder]) -> tuple[Suspect, ...]:
    """Rank 0, which should listen where strangers do; launchers have no rank yet."""
    hosts = {host for host, _ in strange}
    found = (rank for rank in case.ranks.values() if rank.target.rank == 0 and rank.target.host in hosts)
    return tuple(Suspect(0, rank.target.pid if rank.alive else None, rank.target.host) for rank in found)


def _retries(case: Case, key: Key) -> bool:
    """It is idle: between two attempts."""
    return case.ranks[key].alive is not False and case.rank_facts["stack"][key].phase == "idle"


# --- in vain --------------------------------------------------------------------------------------


def _in_vain(case: Case, roll: Roll, seen: Mapping[Key, Arrival], waiting: Mapping[Key, Arrival]) -> bool:
    """Whether those that wait cannot go on: everybody who can come has come, and somebody is missing or cut off."""
    if len(waiting) < len(seen):
        return False  # somebody is still busy with something else before he comes
    if any(_cut_off(one) for one in waiting.values()):
        return True
    if case.job_facts["settings"].sizes and all(_waited(one, HERE_S) for one in waiting.values()):
        return True
    if roll.coming or roll.lacking == 0:
        return False
    if roll.here and roll.lacking:
        return min(one.waited_s or 0.0 for one in waiting.values()) >= HERE_S
    return min(one.long_s for one in waiting.values()) >= ELSEWHERE_S


def _cut_off(one: Arrival) -> bool:
    """It has reached nobody for long."""
    return _trouble(one) is not None and _waited(one, UNREACHED_S)


def _waited(one: Arrival, seconds: float) -> bool:
    return (one.waited_s or 0.0) >= seconds


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


def _unnamed(one: Arrival) -> bool:
    """It is not connected, and what the name stands for is not known: it may stand for nothing."""
    return one.connected is False and one.meeting is not None and one.meeting.resolved is None


def _facts(
    case: Case, key: Key, one: Arrival | None, holder: Holder | None, waits: bool, in_vain: bool
) -> StartupFacts:
    target = case.ranks[key].target
    if one is None:
        return StartupFacts(agent=target.role == "agent")
    meeting = one.meeting
    if not waits and meeting is None and one.launch is None:
        return _elsewhere(target.role == "agent", target.master)
    trouble = _trouble(one) if waits else None
    timeout = meeting.timeout_s if meeting else None
    timeout = timeout if timeout is not None or one.launch is None else one.launch.timeout_s
    left = timeout - (one.waited_s or 0.0) if timeout is not None else None
    return StartupFacts(
        waits=waits,
        agent=target.role == "agent",
        part=_part(one),
        connected=one.connected,
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
        holder_age_s=holder.age_s if holder else None,
        sure=holder.kin is False if holder else None,
        stuck=True if waits and in_vain else None,
    )


@lru_cache(maxsize=256)
def _elsewhere(agent: bool, master: str | None) -> StartupFacts:
    """Of one that is not on its way into the job, and says nothing of where it has met the others."""
    return StartupFacts(waits=False, agent=agent, master=master, unreachable=False)


def _part(one: Arrival) -> str | None:
    if one.launch is None or one.launch.node is None:
        return None
    ranks = one.launch.ranks or ()
    number = f"node {one.launch.node}"
    if not ranks:
        return number
    return f"{number} with rank{'s' * (len(ranks) > 1)} {ranks[0]}" + (f"-{ranks[-1]}" if len(ranks) > 1 else "")


ANALYSIS = StartupAnalysis()
