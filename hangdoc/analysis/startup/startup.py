"""Analysis `startup`: does the job assemble; which ranks have arrived, which are missing, which cannot arrive.

A rank in init_process_group waits for peers that may still be importing torch. That is no stall while one of them is on
its way. If missing ranks may be on hosts that are not seen, it is no stall before the wait exceeds the usual difference
between start times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.ranks.process import process_looks
from hangdoc.analysis.ranks.progress import ProgressFacts
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.analysis.startup.config_skew import SettingsJob
from hangdoc.analysis.startup.gloo_mesh import MeshJob
from hangdoc.analysis.startup.rendezvous import Arrival, RollCall, arrival, assembles, roll_call
from hangdoc.analysis.thresholds import (
    IDLE_CORES,
    LINGERS_S,
    PATIENCE_ELSEWHERE_S,
    PATIENCE_S,
    UNANSWERED_S,
    WATCHED_S,
)
from hangdoc.evidence import Holder, RankEvidence


@dataclass(frozen=True, slots=True)
class StartupFacts:
    """One rank or launcher on its way into the job. None: it is not, or unknown."""

    waits: bool | None = None  # it is in init_process_group or a rendezvous
    agent: bool = False  # a launcher that waits for other hosts, not yet a rank
    part: str | None = None  # its part in the job: "node 1 with ranks 2-3"
    connected: bool | None = None  # to the rendezvous
    dropped: bool = False  # the listener has closed its connection
    master: str | None = None  # address:port of the rendezvous
    resolved: str | None = None  # addresses of its host name
    tried: str | None = None  # ip:port that did not answer
    tried_s: float | None = None  # for how long, at least
    trouble: str | None = None  # why it cannot connect: silent | unresolved | refused | unreached
    waited_s: float | None = None  # at least
    timeout_s: float | None = None  # of the rendezvous
    left_s: float | None = None  # until the timeout, at most
    unreachable: bool | None = None  # it cannot connect to the rendezvous
    holder: str | None = None  # command of an unrelated process that listens at the rendezvous address
    holder_pid: int | None = None
    holder_age_s: float | None = None
    sure: bool | None = None  # the holder is certainly unrelated: it is part of no training job
    doubled: bool = False  # another process of the job has its rank number
    lingers: bool | None = None  # it has not joined, and only sleeps and retries while its peers wait for long
    stuck: bool | None = None


@dataclass(frozen=True, slots=True)
class StartupJob:
    """How far the job has assembled."""

    waiting: int = 0  # ranks and launchers in init_process_group or a rendezvous
    expected: int | None = None  # ranks (hosts if launchers wait) that the job needs
    come: int | None = None  # of these, how many are at the rendezvous or known to be on their way
    hosts: bool = False  # hosts are counted, not ranks
    missing: tuple[int, ...] = ()  # missing ranks, if their numbers are known and they are few
    missed: int = 0  # how many ranks are missing, if their numbers are known
    lacking: int | None = None  # how many have not arrived; 0: all are there
    absent: tuple[Suspect, ...] = ()  # the ranks in `missing`
    named: str | None = None  # who is missing: "rank 2", "ranks 4-5 (node 2)", "1 host"
    strangers: tuple[Suspect, ...] = ()  # unrelated processes that listen at the rendezvous address
    displaced: tuple[Suspect, ...] = ()  # rank 0, which should listen there, and the strangers
    barred: bool = False  # a rank waits in vain for the answer of a stranger
    here: bool | None = None  # all ranks belong on this host
    waited_s: float | None = None  # since the last arrival, at least
    timeout_s: float | None = None  # of the first rank that gives up
    pending: bool = False  # ranks wait, but not long enough to call it a stall
    unnamed: bool = False  # also true for a rank that is not connected and has an unresolved host name


class StartupDetector(Detector[StartupFacts, StartupJob]):
    rank_facts = StartupFacts
    job_facts = StartupJob

    def derive(self, case: Case) -> tuple[dict[Key, StartupFacts], StartupJob]:
        seen = {key: arrival(case, key) for key in case.ranks if case.ranks[key].alive is not False}
        waiting = {key: one for key, one in seen.items() if assembles(case, key)}
        roll = roll_call(case, seen, waiting)
        strangers = {key: holder for key, one in seen.items() if (holder := _stranger(case, one))}
        barred = any(_barred(seen[key], key in waiting) for key in strangers)
        in_vain = barred or (bool(waiting) and _in_vain(case, roll, seen, waiting))
        facts = {
            key: _facts(case, key, seen.get(key), strangers.get(key), key in waiting, in_vain) for key in case.ranks
        }
        twice = [key for key in seen if case.ranks[key].target.rank in roll.doubled]
        facts |= {key: replace(facts[key], doubled=True) for key in twice}
        if barred:  # a rank that retries again and again does not connect either
            facts = {key: replace(one, stuck=one.stuck or _retries(case, key) or None) for key, one in facts.items()}
        waits = [one.waited_s for one in facts.values() if one.waits and one.waited_s is not None]
        if min(waits, default=0.0) >= LINGERS_S:
            late = [key for key in seen if key not in waiting and _lingers(case, key)]
            facts |= {key: replace(facts[key], lingers=True, stuck=True) for key in late}
        ends = [one.timeout_s for one in facts.values() if one.waits and one.timeout_s is not None]
        hosts = {rank.target.rank: rank.target.host for rank in case.ranks.values()}  # of missing ranks, if known
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
            strangers=_suspects(strangers),
            displaced=(*_servers(case, strangers), *_suspects(strangers)),
            barred=barred,
            here=roll.here,
            waited_s=min(waits, default=None),
            timeout_s=min(ends, default=None),
            pending=unnamed or (bool(waiting) and not in_vain and (roll.lacking != 0 or case.job(MeshJob).pending)),
            unnamed=unnamed,
        )


# --- strangers -----------------------------------------------------------------------------------


def _stranger(case: Case, one: Arrival) -> Holder | None:
    """The listener at the rendezvous address, if it is not part of the job.

    When ownership is unknown, report the listener only if rank 0 had exited before we watched: the address is that of
    rank 0.
    """
    meeting = one.meeting
    if meeting is None or meeting.holder is None or meeting.holder.kin:
        return None
    if meeting.holder.kin is False:
        return meeting.holder
    gone = any(rank.target.rank == 0 and not _was_there(rank) for rank in case.ranks.values())
    return meeting.holder if gone and meeting.holder.pid is not None else None


def _barred(one: Arrival, waits: bool) -> bool:
    """True if it waits in vain at the address of a stranger, which does not answer or closes every connection."""
    return _waited(one, UNANSWERED_S if one.connected else PATIENCE_S) and (waits or one.connected is True)


def _was_there(rank: RankEvidence) -> bool:
    return rank.alive is not False or (rank.end is not None and rank.end.at_s is not None)


def _suspects(strangers: Mapping[Key, Holder]) -> tuple[Suspect, ...]:
    return tuple(dict.fromkeys(Suspect(None, holder.pid, host) for (host, _), holder in strangers.items()))


def _servers(case: Case, strangers: Mapping[Key, Holder]) -> tuple[Suspect, ...]:
    """Rank 0, which should listen at the address of a stranger; launchers have no rank yet."""
    hosts = {host for host, _ in strangers}
    found = (rank for rank in case.ranks.values() if rank.target.rank == 0 and rank.target.host in hosts)
    return tuple(Suspect(0, rank.target.pid if rank.alive else None, rank.target.host) for rank in found)


def _retries(case: Case, key: Key) -> bool:
    """True if it is idle between two attempts."""
    return case.ranks[key].alive is not False and case.facts(StackFacts)[key].phase == "idle"


# --- sleeping before it joins ---------------------------------------------------------------------


def _lingers(case: Case, key: Key) -> bool:
    """True if a rank slept nearly all the time, as between two attempts, and neither it nor a helper of it worked."""
    stack, progress = case.facts(StackFacts)[key], case.facts(ProgressFacts)[key]
    looks = process_looks(case, key)
    if stack.phase != "idle" or stack.op != "sleep" or not looks or (progress.window_s or 0.0) < WATCHED_S:
        return False
    (start_s, first), (end_s, last) = looks[0], looks[-1]
    used_s = [sum((process.cpu_s, *(child.cpu_s for child in process.children))) for process in (first, last)]
    return used_s[1] - used_s[0] < IDLE_CORES * (end_s - start_s)


# --- waiting in vain ------------------------------------------------------------------------------


def _in_vain(case: Case, roll: RollCall, seen: Mapping[Key, Arrival], waiting: Mapping[Key, Arrival]) -> bool:
    """True if waiting cannot succeed: every rank that can come has, and some are missing, cut off or look elsewhere."""
    if len(waiting) < len(seen):
        return False  # a rank is still busy with something else
    if any(_cut_off(one) for one in waiting.values()):
        return True
    settings = case.job(SettingsJob)
    if (settings.sizes or settings.run_names) and all(_waited(one, PATIENCE_S) for one in waiting.values()):
        return True
    if roll.coming or roll.lacking == 0:
        return False
    if roll.here and roll.lacking:
        return min(one.waited_s or 0.0 for one in waiting.values()) >= PATIENCE_S
    return min(one.long_s for one in waiting.values()) >= PATIENCE_ELSEWHERE_S


def _cut_off(one: Arrival) -> bool:
    """True if it has reached no peer for long."""
    return _trouble(one) is not None and _waited(one, PATIENCE_S)


def _waited(one: Arrival, seconds: float) -> bool:
    return (one.waited_s or 0.0) >= seconds


def _trouble(one: Arrival) -> str | None:
    """Why it cannot reach the rendezvous; None: it is there, or unknown."""
    if one.connected is not False or one.meeting is None:
        return None
    if one.unresolved:
        return "unresolved"
    if one.unanswered_s is not None and one.unanswered_s >= UNANSWERED_S:
        return "silent"
    if one.refused:
        return None if one.meeting.kin else "refused"  # the rank that serves the store is on its way
    return "unreached" if one.long_s >= PATIENCE_ELSEWHERE_S else None


def _unnamed(one: Arrival) -> bool:
    """True if it is not connected, and nothing has resolved the name: it may not resolve at all."""
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
        dropped=one.dropped,
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
    """A rank that is not on its way into the job and gives no rendezvous."""
    return StartupFacts(waits=False, agent=agent, master=master, unreachable=False)


def _part(one: Arrival) -> str | None:
    if one.launch is None or one.launch.node is None:
        return None
    ranks = one.launch.ranks or ()
    number = f"node {one.launch.node}"
    if not ranks:
        return number
    return f"{number} with rank{'s' * (len(ranks) > 1)} {ranks[0]}" + (f"-{ranks[-1]}" if len(ranks) > 1 else "")


ANALYSIS = StartupDetector()
