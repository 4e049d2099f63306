"""Ranks in the same state share one line: a job of 4,096 ranks must fit on a screen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hangdoc.formatting import fold_hosts, name_ranks
from hangdoc.render.sanitize import clean
from hangdoc.verdict import Culprit, Job, RankLine

# Phases in which a rank waits for other ranks, or for its GPU.
WAITING = frozenset({"collective", "p2p", "gpu", "startup", "teardown"})


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks in the same phase, operation and site."""

    lines: tuple[RankLine, ...]

    @property
    def phase(self) -> str:
        return clean(self.lines[0].phase)

    @property
    def what(self) -> str:
        """The operation, or the phase if there is none."""
        return clean(self.lines[0].op or self.lines[0].phase)

    @property
    def site(self) -> str:
        return clean(self.lines[0].site or "")

    @property
    def name(self) -> str:
        """`rank 2`, `ranks 0-5,7`; PIDs if the ranks are unknown, hosts if both are."""
        if all(line.rank is None and line.pid is None for line in self.lines) and self.lines[0].host:
            return hosts_text({line.host for line in self.lines})
        return name((line.rank, line.pid) for line in self.lines)

    @property
    def where(self) -> str:
        """`pid 4278 on node-a`; only the hosts for several ranks, or if the name is the PID."""
        first = self.lines[0]
        if first.rank is None and first.pid is None:
            return ""
        hosts = {line.host for line in self.lines if line.host}
        pid = f"pid {first.pid}" if len(self.lines) == 1 and first.rank is not None and first.pid else ""
        return " ".join(part for part in (pid, f"on {hosts_text(hosts)}" if hosts else "") if part)


def fold(lines: Iterable[RankLine]) -> list[Group]:
    """Groups in the order of their first rank."""
    found: dict[tuple[str, str | None, str | None], list[RankLine]] = {}
    for line in lines:
        found.setdefault((line.phase, line.op, line.site), []).append(line)
    return [Group(tuple(group)) for group in found.values()]


def culprit_groups(culprits: Iterable[Culprit], job: Job) -> list[Group]:
    """Culprits as groups, with phase and operation from the job's line for that rank."""
    by_process = {(line.host, line.pid): line for line in job.ranks if line.pid is not None}
    by_rank: dict[int | None, RankLine] = {line.rank: line for line in job.ranks if line.rank is not None}
    found = []
    for culprit in culprits:
        line = by_rank.get(culprit.rank) if culprit.pid is None else by_process.get((culprit.host or "", culprit.pid))
        if line is None:
            line = RankLine(culprit.rank, culprit.pid, culprit.host or "", "")
        found.append(replace(line, site=culprit.site or line.site))
    return fold(found)


def name(ranks: Iterable[tuple[int | None, int | None]]) -> str:
    """Name (rank, PID) pairs by rank, or by PID if the rank is unknown."""
    pairs = list(ranks)
    known = [rank for rank, _ in pairs if rank is not None]
    pids = [pid for rank, pid in pairs if rank is None and pid is not None]
    parts = [name_ranks(known)] if known else []
    if pids:
        shown = ",".join(map(str, pids[:4])) + (f" and {len(pids) - 4} more" if len(pids) > 4 else "")
        parts.append(f"pid{'s' if len(pids) > 1 else ''} {shown}")
    return ", ".join(parts) or "unknown rank"


def hosts_text(hosts: Iterable[str]) -> str:
    """`node[01-16]`."""
    return fold_hosts({clean(host) for host in hosts})
