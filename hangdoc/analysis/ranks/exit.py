"""Analysis `exit`: which ranks have ended, how, and which ended first; later ends may only be consequences.

When a rank fails, the launcher sends SIGTERM to the remaining ranks, and a peer that loses its connections raises or
aborts. So the earliest unrequested end is the cause. Among ends first seen together, a SIGKILL or a crash ranks before
an abort, and an abort before an exit code.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from dataclasses import dataclass, replace

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.ranks.phases import WAITING
from hangdoc.analysis.ranks.stack import last_seen
from hangdoc.evidence import End, Process, RankEvidence, Stacks
from hangdoc.evidence.resources import Cgroup

# SIGKILL, a fault signal, abort(), an exit code, a signal that asks it to end, exit code 0; likeliest cause first
KINDS = ("killed", "crashed", "aborted", "failed", "told", "finished")
_RANKING = (*KINDS, "unknown")
FAULTS = frozenset({"killed", "crashed", "aborted", "failed"})
REQUESTED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE})


@dataclass(frozen=True, slots=True)
class ExitFacts:
    """One rank's end; None: it still runs, or unknown."""

    kind: str | None = None  # killed | crashed | aborted | failed | told | finished, see KINDS
    text: str | None = None  # "signal 9 (SIGKILL)", "exit code 1"
    first: bool | None = None  # it ended by a fault, and no rank of its host ended before it
    native_thread: bool | None = None  # a thread that runs no Python aborted it, as the watchdog of NCCL does
    unordered: bool | None = None  # other ranks of its host ended with an error at the same look
    rank_known: bool | None = None  # false: a process that may be a helper of a rank
    oom: bool | None = None  # the kernel's OOM killer killed it
    oom_kills: int | None = None  # increase of its cgroup's oom_kill counter
    oom_counter: str | None = None  # file with that counter
    phase: str | None = None  # its phase, operation and site when its stacks were last seen
    op: str | None = None
    site: str | None = None
    seen_s: float | None = None  # time from that look to its end
    waited: bool | None = None  # it waited for other ranks at that look
    rss_bytes: int | None = None  # resident memory when last seen
    limit_bytes: int | None = None  # lowest memory limit of its cgroups


UNSEEN = ExitFacts()


@dataclass(frozen=True, slots=True)
class ExitJob:
    """The ends of the job's ranks."""

    ended: int  # number of ranks that have ended
    all_ended: bool  # every rank has ended
    fault: bool  # a rank is known to have ended by a fault
    fault_s: float | None  # time since then; None: it was before the first look, or none did
    well: bool  # every rank has ended with exit code 0
    kernel: tuple[str, ...]  # kernel log lines about the ranks that ended first


class ExitAnalysis(Analysis[ExitFacts, ExitJob]):
    rank_facts = ExitFacts
    job_facts = ExitJob

    def derive(self, case: Case) -> tuple[dict[Key, ExitFacts], ExitJob]:
        facts = {key: _facts(case, key) for key in case.ranks}
        ended = [key for key, rank in case.ranks.items() if rank.alive is False]
        unfinished = [key for key in ended if facts[key].kind != "finished"]
        first = _first({key: (facts[key].kind, case.ranks[key].end) for key in unfinished})
        facts = {
            key: replace(own, first=key in first, unordered=_is_unordered(case, key, facts)) if own.kind else own
            for key, own in facts.items()
        }
        return facts, ExitJob(
            ended=len(ended),
            all_ended=len(ended) == len(facts) > 0,
            fault=bool(first),
            fault_s=min((age for key in first if (age := _age_s(case, key)) is not None), default=None),
            well=len(ended) == len(facts) > 0 and all(own.kind == "finished" for own in facts.values()),
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
        native_thread=end.native_thread if end.signal == signal.SIGABRT else None,
        rank_known=rank.target.rank is not None,
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
    """The ranks that ended by a fault before any other rank of their host; empty if the first end was requested."""
    earliest: dict[str, list[tuple[float, Key, str]]] = defaultdict(list)  # by host: their clocks are not comparable
    for key, (kind, end) in ends.items():
        at_s = end.at_s if end and end.at_s is not None else -1.0  # before the first look, so before every seen end
        earliest[key[0]].append((at_s, key, kind or "unknown"))
    first = [(kind, key) for each in earliest.values() for at_s, key, kind in each if at_s == min(each)[0]]
    worst = min((kind for kind, _ in first), key=_RANKING.index, default="unknown")
    return {key for kind, key in first if kind == worst} if worst in FAULTS else set()


def _is_unordered(case: Case, key: Key, facts: dict[Key, ExitFacts]) -> bool:
    """True if a look found this rank ended, and another of its host ended with an exit code: either may be first."""
    end = case.ranks[key].end
    return any(
        other != key and other[0] == key[0] and own.kind == "failed" and _at_s(case.ranks[other].end) == _at_s(end)
        for other, own in facts.items()
    )


def _at_s(end: End | None) -> float | None:
    return end.at_s if end else None


def _age_s(case: Case, key: Key) -> float | None:
    """Time from a rank's end to the newest snapshot of its host (s)."""
    end, shots = case.ranks[key].end, case.shots(key[0])
    return shots[-1].at_s - end.at_s if shots and end and end.at_s is not None else None


def _seen_s(case: Case, key: Key, rank: RankEvidence) -> float | None:
    """Time from the last look at a rank's stacks to its end (s)."""
    looks = [at_s for at_s, _ in case.series(key, "stacks")]
    return max(0.0, rank.end.at_s - looks[-1]) if looks and rank.end and rank.end.at_s is not None else None


ANALYSIS = ExitAnalysis()
