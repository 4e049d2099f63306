"""Merges the hosts' views of a job: each process counts once, and a job on many hosts is one job."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hangdoc.discovery.environment import on_loopback
from hangdoc.evidence import RankEvidence, Sockets, Target

End = tuple[str, int, str, int]  # local address and port, remote address and port
Part = tuple[str, str]  # host, the host's name for the job
Trust = Callable[[Sequence[Part]], Mapping[Part, tuple[int, ...]]]  # larger means more trusted


@dataclass(slots=True)
class ProcessOwners:
    """The agent that answers for a process that several agents see: the one that shares most of its namespaces.

    An agent can claim a process that it does not see. The claim of a host therefore yields only to an agent that this
    host shows among its own processes (`shows`): a lying host can hide only its own.
    """

    order: Mapping[str, int]  # of the hosts: breaks ties of nearness
    shows: dict[tuple[str, str], bool] = field(default_factory=dict)  # (host, other): the host shows the other's agent
    # process -> (host, nearness, PID there) of each host that sees it
    _near: dict[str, tuple[tuple[str, int, int], ...]] = field(default_factory=dict)

    def note(self, host: str, seen: Mapping[Target, tuple[str, int]]) -> None:
        """Record what an agent has seen: the process behind each rank, and how near it is."""
        for target, (process, near) in seen.items():
            own = (host, near, target.pid)
            known = self._near.get(process, ())
            if own not in known:
                self._near[process] = (*(one for one in known if one[0] != host), own)

    def keep(self, hosts: Collection[str], processes: Collection[str]) -> None:
        """Forget lost hosts and processes that no host sees."""
        for process in [process for process in self._near if process not in processes]:
            del self._near[process]
        for process, seen in self._near.items():
            if any(host not in hosts for host, _, _ in seen):
                self._near[process] = tuple(one for one in seen if one[0] in hosts)

    def forget(self, host: str) -> None:
        """An agent was restarted: ask again whom it shows, and who shows it."""
        self.shows = {pair: shown for pair, shown in self.shows.items() if host not in pair}

    def owner(self, process: str, host: str) -> str | None:
        """The host that answers for a process seen by `host`: itself, or a nearer one that it shows."""
        seen = self._near.get(process, ())
        own = next((one for one in seen if one[0] == host), None)
        if own is None:
            return None
        nearer = [one for one in seen if self._place(one) > self._place(own) and self.shows.get((host, one[0]))]
        return max(nearer, key=self._place, default=own)[0]

    def _place(self, one: tuple[str, int, int]) -> tuple[int, int]:
        return one[1], -self.order[one[0]]

    def skipped(self) -> dict[str, tuple[int, ...]]:
        """PIDs that each host need not watch."""
        found: dict[str, list[int]] = defaultdict(list)
        for process, seen in self._near.items():
            if len(seen) > 1:
                for host, _, pid in seen:
                    if self.owner(process, host) != host:
                        found[host].append(pid)
        return {host: tuple(pids) for host, pids in found.items()}

    def others(self) -> dict[str, set[str]]:
        """Hosts that also see a process of each host."""
        found: dict[str, set[str]] = defaultdict(set)
        for seen in self._near.values():
            if len(seen) > 1:
                for host, _, _ in seen:
                    found[host].update(other for other, _, _ in seen if other != host)
        return found

    def contradictions(self) -> dict[str, dict[int, str]]:
        """By host and PID: the first other host that also answers for the process."""
        found: dict[str, dict[int, str]] = defaultdict(dict)
        for process, seen in self._near.items():
            if len(seen) > 1:
                kept = [(host, pid) for host, _, pid in seen if self.owner(process, host) == host]
                for host, pid in kept if len(kept) > 1 else ():
                    found[host][pid] = next(other for other, _ in kept if other != host)
        return found


@dataclass(slots=True)
class _Job:
    """A part of a job, or several merged parts."""

    parts: list[Part]
    names: Counter[str]
    masters: set[str]
    world_size: int | None
    ranks: set[int]
    accounts: dict[str, str | None]  # owner of the processes, by host
    rival: Part | None = None  # part that has the ranks that this one claims


def merge_jobs(targets: Iterable[Target], trust: Trust | None = None) -> tuple[dict[Part, str], dict[Part, Part]]:
    """The fleet's name for each host's job, and, for each part that is judged separately, the rival part with the same
    ranks.

    Parts are one job if they share a rendezvous that is not loopback, or the job ID of a scheduler; or if port and
    world size agree and their ranks are disjoint (a host may know the master by another name). If two hosts claim the
    same rank, the part with the larger `trust` gets the job.
    """
    parts: dict[Part, _Job] = {}
    for target in targets:
        job = parts.setdefault(
            (target.host, target.job), _Job([], Counter(), set(), None, set(), {target.host: target.account})
        )
        job.masters |= {target.master} if target.master else set()
        job.world_size = job.world_size or target.world_size
        job.ranks |= {target.rank} if target.rank is not None else set()
    meeting: dict[Hashable, list[_Job]] = defaultdict(list)
    for part, job in parts.items():
        job.parts, job.names = [part], Counter([part[1]])
        meeting[_key(part, job)].append(job)
    found: list[_Job] = []
    apart: list[_Job] = []
    for together in meeting.values():
        first, *rest = _trusted(together, trust)
        joined = [(first.parts[0], set(first.ranks))]
        for job in rest:
            if _fits(job, first):
                joined.append((job.parts[0], set(job.ranks)))
                _join(first, job)
            else:
                rivals = [part for part, ranks in joined if ranks & job.ranks or part[0] in job.accounts]
                job.rival = rivals[0]
                apart.append(job)
        found.append(first)
    whole: list[_Job] = []
    for job in found:
        fitting = [other for other in whole if _complement(other, job)]
        if len(fitting) == 1:
            _join(fitting[0], job)
        else:
            whole.append(job)
    names = _named(whole)
    for job in apart:
        host, name = job.parts[0]
        names[host, name] = f"{name} on {host}"
    return names, {job.parts[0]: job.rival for job in apart if job.rival}


def _fits(part: _Job, job: _Job) -> bool:
    """True if a part can belong to a job: its ranks are new, and it is not another user's on the same host."""
    ((host, account),) = part.accounts.items()
    return job.accounts[host] == account if host in job.accounts else part.ranks.isdisjoint(job.ranks)


def _trusted(together: list[_Job], trust: Trust | None) -> list[_Job]:
    """The parts as they come if no rank or host occurs twice, else the most trusted first."""
    often = Counter(rank for job in together for rank in job.ranks)
    hosts = Counter(host for job in together for host in job.accounts)
    if trust is None or max((*often.values(), *hosts.values()), default=1) < 2:
        return together
    worth = trust([job.parts[0] for job in together])
    return sorted(together, key=lambda job: worth[job.parts[0]], reverse=True)


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


def corroborated(shots: Mapping[str, Sequence[RankEvidence]], parts: Collection[Part]) -> dict[Part, int]:
    """For each part, the connections of its ranks whose other end another host also shows: no host can make these up
    alone.
    """
    ends: dict[End, set[str]] = defaultdict(set)
    own: dict[Part, set[End]] = {part: set() for part in parts}
    for host, ranks in shots.items():
        for rank in ranks:
            sockets = rank.records.get("sockets")
            for one in sockets.connections if isinstance(sockets, Sockets) else ():
                if one.state == "established":
                    ends[one.remote, one.remote_port, one.local, one.local_port].add(host)  # as the other end sees it
                    if (host, rank.target.job) in own:
                        own[host, rank.target.job].add((one.local, one.local_port, one.remote, one.remote_port))
    return {part: sum(bool(ends.get(end, set()) - {part[0]}) for end in made) for part, made in own.items()}


def _join(job: _Job, other: _Job) -> None:
    job.parts += other.parts
    job.names += other.names
    job.masters |= other.masters
    job.accounts |= other.accounts
    job.ranks |= other.ranks
    job.world_size = job.world_size or other.world_size


def _named(found: Sequence[_Job]) -> dict[Part, str]:
    """The shortest of its hosts' names; jobs of the same name get their rendezvous or host appended."""
    names = [min(job.names, key=lambda name: (len(name), name)) for job in found]
    often = Counter(names)
    for at, job in enumerate(found):
        if often[names[at]] > 1:
            names[at] += f"@{min(job.masters)}" if job.masters and not _local(job) else f" on {job.parts[0][0]}"
    return {part: name for job, name in zip(found, names, strict=True) for part in job.parts}


def _local(job: _Job) -> bool:
    return all(on_loopback(master) for master in job.masters)
