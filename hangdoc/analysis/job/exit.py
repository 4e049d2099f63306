"""Analysis `exit`: which ranks have ended, how, and which of them ended first: the others may only be its victims.

A launcher that notices sends the others SIGTERM; a peer whose connections are closed ends with an exception, or aborts.
So of the ends that nobody asked for the earliest counts. Of those noticed together a kill by another hand or a crash
counts before an abort, and that before an exit code.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from dataclasses import dataclass, replace

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.phases import WAITING
from hangdoc.analysis.ranks.stack import last_seen
from hangdoc.evidence import End, Process, RankEvidence, Stacks
from hangdoc.evidence.resources import Cgroup

KINDS = ("killed", "crashed", "aborted", "failed", "told", "finished")  # the more telling first
_RANKING = (*KINDS, "unknown")
FAULTS = frozenset({"killed", "crashed", "aborted", "failed"})
REQUESTED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE})


@dataclass(frozen=True, slots=True)
class ExitFacts:
    """One rank's end; None: it still runs, or is not known."""

    kind: str | None = None  # one of KINDS: by SIGKILL, a fault of its code, abort(), an exit code, on request, code 0
    text: str | None = None  # "signal 9 (SIGKILL)", "exit code 1"
    first: bool | None = None  # it ended by a fault, and no other rank before it
    oom: bool | None = None  # the kernel killed it for want of memory
    oom_kills: int | None = None  # that the counter of its cgroup gained
    oom_counter: str | None = None  # file of that counter
    phase: str | None = None  # what it did when it was last seen
    op: str | None = None
    site: str | None = None
    seen_s: float | None = None  # so long before its end
    waited: bool | None = None  # it waited for other ranks then
    rss_bytes: int | None = None  # resident memory, then
    limit_bytes: int | None = None  # lowest memory limit of its cgroups


UNSEEN = ExitFacts()


@dataclass(frozen=True, slots=True)
class ExitJob:
    ended: int  # ranks that are gone
    all_ended: bool
    fault: bool  # a rank ended by a fault, as far as is known
    fault_s: float | None  # so long ago; None: before we watched
    well: bool  # every rank has ended, all with exit code 0
    kernel: tuple[str, ...]  # what the kernel's log says of those that ended first


@dataclass(slots=True)
class ExitAnalysis:
    name: str = "exit"
    order: int = 15
    rank_facts: type | None = ExitFacts
    job_facts: type | None = ExitJob

    def derive(self, case: Case) -> tuple[dict[Key, ExitFacts], ExitJob]:
        facts = {key: _facts(case, key) for key in case.ranks}
        ended = [key for key, rank in case.ranks.items() if rank.alive is False]
        broken_off = [key for key in ended if facts[key].kind != "finished"]
        first = _first({key: (facts[key].kind, case.ranks[key].end) for key in broken_off})
        facts = {key: replace(one, first=key in first) if one.kind else one for key, one in facts.items()}
        return facts, ExitJob(
            ended=len(ended),
            all_ended=len(ended) == len(facts) > 0,
            fault=bool(first),
            fault_s=min((age for key in first if (age := _age_s(case, key)) is not None), default=None),
            well=len(ended) == len(facts) > 0 and all(one.kind == "finished" for one in facts.values()),
            kernel=tuple(line for key in first if (end := case.ranks[key].end) for line in end.kernel),
        )


def _facts(case: Case, key: Key) -> ExitFacts:
    rank = case.ranks[key]
    if rank.alive is not False:
        return UNSEEN
    end = rank.end or End()
    phase = op = site = None
    if isinstance(case.record(key, "stacks"), Stacks):
        stack = last_seen(case, key)
        phase, op, site = stack.phase, stack.op, stack.site
    process, limits = case.record(key, "cpu"), case.record(key, "cgroup")
    return ExitFacts(
        kind=_kind(end),
        text=rank.exit,
        oom=bool(end.oom_kills) or any("ill" in line and "rocess" in line for line in end.kernel),
        oom_kills=end.oom_kills,
        oom_counter=end.oom_counter,
        phase=phase,
        op=op,
        site=site,
        seen_s=_seen_s(case, key, rank),
        waited=phase in WAITING if phase else None,
        rss_bytes=process.rss_bytes if isinstance(process, Process) else None,
        limit_bytes=min((m.bytes for m in limits.memory), default=None) if isinstance(limits, Cgroup) else None,
    )


def _kind(end: End) -> str | None:
    if end.code is not None:
        return "failed" if end.code else "finished"
    if end.signal is None:
        return None
    if end.signal == signal.SIGKILL:
        return "killed"
    if end.signal == signal.SIGABRT:
        return "aborted"
    return "told" if end.signal in REQUESTED else "crashed"


def _first(ends: dict[Key, tuple[str | None, End | None]]) -> set[Key]:
    """The ranks that ended by a fault before any other of their host; none where the first to end was asked to."""
    earliest: dict[str, list[tuple[float, Key, str]]] = defaultdict(list)  # clocks of two hosts are never compared
    for key, (kind, end) in ends.items():
        at_s = end.at_s if end and end.at_s is not None else -1.0  # before we watched: before all the others
        earliest[key[0]].append((at_s, key, kind or "unknown"))
    first = [(kind, key) for each in earliest.values() for at_s, key, kind in each if at_s == min(each)[0]]
    worst = min((kind for kind, _ in first), key=_RANKING.index, default="unknown")
    return {key for kind, key in first if kind == worst} if worst in FAULTS else set()


def _age_s(case: Case, key: Key) -> float | None:
    """How long ago a rank ended, when its host was looked at last."""
    end, shots = case.ranks[key].end, case.shots(key[0])
    return shots[-1].at_s - end.at_s if shots and end and end.at_s is not None else None


def _seen_s(case: Case, key: Key, rank: RankEvidence) -> float | None:
    """How long before its end its stacks were seen last."""
    looks = [at_s for at_s, _ in case.series(key, "stacks")]
    return max(0.0, rank.end.at_s - looks[-1]) if looks and rank.end and rank.end.at_s is not None else None


ANALYSIS = ExitAnalysis()
