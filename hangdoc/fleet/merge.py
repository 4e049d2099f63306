"""Many views of a job put together: a process that two agents see counts once, a job on many hosts is one job."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hangdoc.evidence import Target
from hangdoc.identity import on_loopback

Part = tuple[str, str]  # host, what the job is called there


@dataclass(slots=True)
class Owners:
    """Which agent answers for a process that several of them see: the one that shares most of its namespaces."""

    order: Mapping[str, int]  # of the hosts: of two that are as near the first answers
    # process -> host, near, PID there: of each host that sees it
    _near: dict[str, tuple[tuple[str, int, int], ...]] = field(default_factory=dict)

    def note(self, host: str, seen: Mapping[Target, tuple[str, int]]) -> None:
        """What an agent has seen: which process a rank is, and how near."""
        for target, (process, near) in seen.items():
            mine = (host, near, target.pid)
            known = self._near.get(process, ())
            if mine not in known:
                self._near[process] = (*(one for one in known if one[0] != host), mine)

    def keep(self, hosts: Collection[str], processes: Collection[str]) -> None:
        """Forget hosts that are lost and processes that nobody sees."""
        for process in [process for process in self._near if process not in processes]:
            del self._near[process]
        for process, seen in self._near.items():
            if any(host not in hosts for host, _, _ in seen):
                self._near[process] = tuple(one for one in seen if one[0] in hosts)

    def owner(self, process: str) -> str | None:
        seen = self._near.get(process)
        if not seen:
            return None
        return seen[0][0] if len(seen) == 1 else max(seen, key=lambda one: (one[1], -self.order[one[0]]))[0]

    def skipped(self) -> dict[str, tuple[int, ...]]:
        """By host the PIDs that it need not look at."""
        found: dict[str, list[int]] = defaultdict(list)
        for process, seen in self._near.items():
            if len(seen) > 1:
                mine = self.owner(process)
                for host, _, pid in seen:
                    if host != mine:
                        found[host].append(pid)
        return {host: tuple(pids) for host, pids in found.items()}


@dataclass(slots=True)
class _Job:
    """A part of a job, or several put together."""

    parts: list[Part]
    names: Counter[str]
    masters: set[str]
    world_size: int | None
    ranks: set[int]


def jobs(targets: Iterable[Target]) -> dict[Part, str]:
    """What each host's jobs are called in the fleet: the same where they are parts of one job.

    They are where they meet at one place that is not loopback; where they go by one id of a scheduler; and where
    port and world size agree and the ranks complement one another (a host may know the master by another name).
    """
    parts: dict[Part, _Job] = {}
    for target in targets:
        job = parts.setdefault((target.host, target.job), _Job([], Counter(), set(), None, set()))
        job.masters |= {target.master} if target.master else set()
        job.world_size = job.world_size or target.world_size
        job.ranks |= {target.rank} if target.rank is not None else set()
    found: dict[Hashable, _Job] = {}
    for part, job in parts.items():
        job.parts, job.names = [part], Counter([part[1]])
        known = found.setdefault(_key(part, job), job)
        if known is not job:
            _join(known, job)
    whole: list[_Job] = []
    for job in found.values():
        fitting = [other for other in whole if _complement(other, job)]
        if len(fitting) == 1:
            _join(fitting[0], job)
        else:
            whole.append(job)
    return _named(whole)


def _key(part: Part, job: _Job) -> Hashable:
    master = next((master for master in sorted(job.masters) if not on_loopback(master)), None)
    if master:
        return "at", master
    specific = not job.masters and "pid " not in part[1] and part[1] != "none"
    return ("id", part[1], job.world_size) if specific else ("alone", part)


def _complement(one: _Job, other: _Job) -> bool:
    ports = [{master.rpartition(":")[2] for master in job.masters} for job in (one, other)]
    return (
        one.world_size is not None
        and one.world_size == other.world_size
        and bool(ports[0] & ports[1])
        and bool(one.ranks and other.ranks)
        and one.ranks.isdisjoint(other.ranks)
        and {host for host, _ in one.parts}.isdisjoint(host for host, _ in other.parts)
    )


def _join(job: _Job, other: _Job) -> None:
    job.parts += other.parts
    job.names += other.names
    job.masters |= other.masters
    job.ranks |= other.ranks
    job.world_size = job.world_size or other.world_size


def _named(found: Sequence[_Job]) -> dict[Part, str]:
    """The shortest name that its hosts give it; jobs of one name are told apart by where they meet, or run."""
    names = [min(job.names, key=lambda name: (len(name), name)) for job in found]
    often = Counter(names)
    for at, job in enumerate(found):
        if often[names[at]] > 1:
            names[at] += f"@{min(job.masters)}" if job.masters and not _local(job) else f" on {job.parts[0][0]}"
    return {part: name for job, name in zip(found, names, strict=True) for part in job.parts}


def _local(job: _Job) -> bool:
    return all(on_loopback(master) for master in job.masters)
