"""Groups the ranks of one host into jobs, and finds each job's name, launcher and rank numbers."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace

from msgspec import structs

from hangdoc.discovery.environment import Identity, on_loopback
from hangdoc.discovery.job_grouping import Part, is_same_job, split_jobs
from hangdoc.discovery.launcher import Launch
from hangdoc.discovery.process_table import Table, program
from hangdoc.evidence import Target, limits
from hangdoc.redaction.text import redact_identifier
from hangdoc.system import procfs
from hangdoc.system.account import account

_MPI_LAUNCHERS = re.compile(r"mpirun|mpiexec|orterun|orted|prte|prun|hydra_")
_RANK_ARGUMENT = re.compile(r"--?(?:global[-_])?rank(?:=([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class Member:
    """A process found to be a rank."""

    pid: int
    identity: Identity | None
    maker: int | None = None  # the parent that created it and its siblings with multiprocessing
    place: int | None = None  # index among those siblings, in order of creation
    siblings: int | None = None
    launch: Launch | None = None  # options, if it is a launcher that has not started ranks yet


@dataclass(frozen=True, slots=True)
class _Job:
    key: Hashable  # equal for the ranks of a job
    name: str  # shown to the user
    launcher: str  # torchrun | mpi | slurm | spawn | plain
    launcher_pid: int | None
    master: str | None


Pair = tuple[Member, _Job]


def targets_of(members: Iterable[Member], table: Table) -> tuple[Target, ...]:
    """The targets of all jobs, sorted by job and rank, with unique job names."""
    found = list(members)
    ranks = {member.pid for member in found}
    stores = _stores(found, table)
    accounts = {pid: account(pid) for pid in ranks}
    by_key: dict[Hashable, list[Pair]] = defaultdict(list)
    for member in found:
        job = _job(member, stores, table)
        by_key[job.key, accounts[member.pid]].append((member, job))  # a job has one user
    groups = _regrouped(by_key.values(), table)
    targets: list[Target] = []
    for pairs, name in zip(groups, _names([pairs[0][1] for pairs in groups]), strict=True):
        job_targets = [
            structs.replace(_target(member, job, ranks, table), job=name, account=accounts[member.pid])
            for member, job in pairs
        ]
        targets += _number(job_targets, [member for member, _ in pairs], table)
    return tuple(sorted(targets, key=lambda t: (t.job, t.rank is None, t.rank or 0, t.pid)))


def _regrouped(groups: Iterable[list[Pair]], table: Table) -> list[list[Pair]]:
    """Jobs, after correction of shared and split rendezvous addresses (see `job_grouping`)."""
    jobs: list[list[Part]] = []
    pairs = {pair[0].pid: pair for group in groups for pair in group}
    for group in groups:
        for job in split_jobs([_part(member, table) for member, _ in group], table):
            known = next((other for other in jobs if is_same_job(other, job, table)), None)
            if known is None:
                jobs.append(job)
            else:
                known += job
    found = [[pairs[part.pid] for part in job] for job in jobs]
    often = Counter(members[0][1] for members in found)
    first = {members[0][1]: members[0][0].pid for members in reversed(found)}
    for members in found:  # jobs with equal names: later ones get a PID
        member, about = members[0]
        if often[about] > 1 and first[about] != member.pid:
            members[0] = member, replace(about, name=f"{about.name} (pid {member.pid})")
    return found


def _part(member: Member, table: Table) -> Part:
    launch, who = member.launch, member.identity
    if launch:
        return Part(member.pid, launch.node, launch.most, (launch.fewest, launch.most, launch.per_node, launch.backend))
    alone = who if member.maker is None else None  # otherwise the whole group has this identity
    number = alone.rank if alone else None
    return Part(member.pid, number, alone.world_size if alone else None, program(table.procs[member.pid].command))


def _target(member: Member, job: _Job, ranks: set[int], table: Table) -> Target:
    if member.launch:
        start, host = table.procs[member.pid].start_ticks, os.uname().nodename
        world = member.launch.world_size
        return Target(
            member.pid, start, host, None, None, world, launcher=job.launcher, master=job.master, role="agent"
        )
    who = member.identity
    alone = member.maker is None  # otherwise the whole group has this identity
    return Target(
        pid=member.pid,
        start_ticks=table.procs[member.pid].start_ticks,
        host=os.uname().nodename,
        rank=(who.rank if who else _rank_argument(table.procs[member.pid].command)) if alone else None,
        local_rank=(who.local_rank if who else None) if alone else member.place,
        world_size=who.world_size if who and alone else None,
        launcher=job.launcher,
        launcher_pid=job.launcher_pid,
        children=tuple(sorted(_helpers(member.pid, ranks, table))),
        master=job.master,
    )


def _helpers(pid: int, ranks: set[int], table: Table) -> Iterator[int]:
    """Descendants of a rank, without other ranks and their descendants."""
    for kid in table.children(pid):
        if kid not in ranks:
            yield kid
            yield from _helpers(kid, ranks, table)


def _rank_argument(command: Iterable[str]) -> int | None:
    """The rank from an argument: `--rank 3` or `--rank=3`."""
    words = iter(command)
    for word in words:
        match = _RANK_ARGUMENT.fullmatch(word)
        if match:
            return limits.parse_count(match[1] or next(words, ""))
    return None


# --- jobs -----------------------------------------------------------------------------------------


def _job(member: Member, stores: dict[int, str], table: Table) -> _Job:
    who, pid = member.identity, member.pid
    if member.launch:
        where = member.launch.endpoint
        name = member.launch.run_id if member.launch.run_id != "none" else (who.slurm if who else None) or "none"
        return _Job(
            ("rendezvous", where, _namespace(pid) if on_loopback(where) else None), name, "torchrun", None, where
        )
    master = (who.master if who else None) or stores.get(pid)
    here = _namespace(pid) if on_loopback(master) else None
    above = next((up for up in table.ancestors(pid) if table.is_launcher(up)), None)
    if who and who.run_id is not None and who.family == "torch" and member.maker is None:
        name = who.run_id if who.run_id != "none" else who.slurm or "none"
        return _Job(("run", who.run_id, master, here), name, "torchrun", above or table.procs[pid].ppid, master)
    if member.maker is not None:
        name = (who.slurm if who else None) or f"pid {member.maker}"
        return _Job(("pid", member.maker), name, "spawn", member.maker, master)
    mpi = [up for up in table.ancestors(pid) if _MPI_LAUNCHERS.match(table.procs[up].comm)]
    if who and who.family == "mpi" and (mpi or not who.slurm):
        launcher = mpi[-1] if mpi else table.procs[pid].ppid
        return _Job(("mpi", who.namespace or launcher), who.namespace or f"mpi pid {launcher}", "mpi", launcher, master)
    if who and who.slurm:
        return _Job(("slurm", who.slurm, who.master), who.slurm, "slurm", above, master)
    if master:
        return _Job(("master", master, here), master, "plain", above, master)
    launcher = above or table.procs[pid].ppid
    return _Job(("pid", launcher), f"pid {launcher}", "plain", above, None)


def _stores(members: list[Member], table: Table) -> dict[int, str]:
    """Store (address:port) of the ranks without MASTER_ADDR, by PID: the one that they serve or connect to."""
    members = [member for member in members if not member.launch]
    masters = {m.pid: m.identity.master for m in members if m.identity and m.identity.master}
    stated = {(master.rpartition(":")[2], _namespace(pid)): master for pid, master in masters.items()}
    silent = [member.pid for member in members if member.pid not in masters]
    served = {(port, _namespace(pid)) for pid in silent for port in table.connections(pid).stores}
    found: dict[int, str] = {}
    for pid in silent:
        for address, port in sorted(table.connections(pid).remotes):
            if (port, _namespace(pid)) in served:
                found[pid] = stated.get((str(port), _namespace(pid))) or f"{address}:{port}"
    return found


def _namespace(pid: int) -> str | None:
    return procfs.link(f"/proc/{pid}/ns/net")


def _names(jobs: list[_Job]) -> list[str]:
    """The shortest unique name for each job."""
    names = [redact_identifier(job.name) for job in jobs]  # redact first, so that unique names stay unique
    for detail in ("master", "launcher_pid"):
        often = Counter(names)
        for at, job in enumerate(jobs):
            value = getattr(job, detail)
            if often[names[at]] > 1 and value is not None and value != names[at]:
                names[at] += f"@{value}" if detail == "master" else f" (pid {value})"
    return names


# --- rank numbers ---------------------------------------------------------------------------------


def _number(targets: list[Target], members: list[Member], table: Table) -> list[Target]:
    """Deduce missing rank numbers of one job from its launch; see `discover`."""
    silent = [target.pid for target in targets if target.rank is None]
    if not silent or any(member.launch for member in members):  # launchers have no number
        return targets
    places = {member.pid: member.place for member in members if member.place is not None}
    servers = [pid for pid in silent if table.connections(pid).stores]
    near = all(
        table.connections(pid).clients_local if servers else table.connections(pid).local for pid in servers or silent
    )
    ranks: dict[int, int | None] = {target.pid: target.rank for target in targets}
    if near and len(places) == len(targets) and all(places[pid] == 0 for pid in servers):
        ranks.update(places)
    elif len(servers) == 1:
        ranks[servers[0]] = 0
    world = next((t.world_size for t in targets if t.world_size), None)
    if world is None and near:
        joined = servers and all(table.in_process_group(pid) for pid in silent)
        world = max((m.siblings for m in members if m.siblings), default=len(targets) if joined else None)
    left = [pid for pid, rank in ranks.items() if rank is None]
    known = set(ranks.values())
    if len(left) == 1 and world and limits.count_absent(world, known) == 1:
        (ranks[left[0]],) = limits.absent_ranks(world, known)
    return [structs.replace(t, rank=ranks[t.pid], world_size=t.world_size or world) for t in targets]
