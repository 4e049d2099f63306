"""Finds the training ranks of this host. Reads only /proc; sends nothing to the job.

The environment at start identifies a rank. If it names no rank (`multiprocessing.spawn`, launchers that set it after
start), the threads of its process group or its connection to the job's store do.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hangdoc.discovery.dead_ranks import mass_absences, missing_ranks, missing_ranks_of
from hangdoc.discovery.jobs import Member, targets_of
from hangdoc.discovery.launcher import STATIC, launch_of
from hangdoc.discovery.process_table import Table
from hangdoc.evidence import Target, Unseen
from hangdoc.system import procfs
from hangdoc.system.account import account
from hangdoc.system.permissions import hidden_processes, owner_of, remedy

RANK_CPU_S = 1.0  # a rank uses more to import PyTorch; the tools that a launcher runs use less


@dataclass(frozen=True, slots=True)
class Discovery:
    """The ranks of this host."""

    targets: tuple[Target, ...]  # sorted by job and rank
    problems: tuple[Unseen, ...] = ()  # why a rank was not found, with the remedy
    absent: tuple[Target, ...] = ()  # missing ranks of jobs that run only on this host; their PIDs are negative
    doubts: tuple[Unseen, ...] = ()  # for every verdict: hidden processes, implausible claims of ranks
    starting: tuple[int, ...] = ()  # given PIDs that may still start ranks: launchers, with `below` any process


def discover(
    pids: Sequence[int] | None = None, below: bool = False, joins: Callable[[int], bool] = lambda pid: False
) -> Discovery:
    """All training ranks of this host, or those of `pids`: ranks, or launchers in place of their ranks.

    A PID of a Python process without any sign of a rank is a target too, with unknown rank; not with `below`, which
    asks for ranks among these processes and their descendants.

    `joins`: whether a process does nothing but wait for the processes that it has started. What those of `pids` started
    are ranks, even before they meet.

    A rank number that the environment does not show is deduced from the launch, or stays None. Processes created by
    multiprocessing are numbered in order of creation (torch.multiprocessing.spawn passes that number), if the store's
    server is the first and no peer is on another host. The store's server is rank 0. If one rank is unknown and one
    number is missing, they match.
    """
    table, hidden = Table(), hidden_processes()
    members = find(table)
    members += waiting_launchers(members, table)
    if pids is None:
        targets = targets_of(members, table)
        problems = () if members else (_why_none(table, hidden),)
        return Discovery(targets, problems, () if hidden else missing_ranks(targets), _doubts(members, targets, hidden))
    chosen: dict[int, Member] = {}
    refused: list[Unseen] = []
    starting: list[int] = []
    for pid in dict.fromkeys(pids):
        meant, why = _below(pid, members, table) or _joined(pid, table, joins), None
        if not meant and not below:
            meant, why = _resolve_pid(pid, members, table, hidden)
        chosen.update((member.pid, member) for member in meant)
        if (
            not meant
            and pid in table.procs
            and (below or table.is_launcher(pid))
            and table.procs[pid].state not in "ZX"
        ):
            starting.append(pid)
        if why:
            refused.append(Unseen("discover", why, pid=pid, host=os.uname().nodename))
    targets, everyone = targets_of(chosen.values(), table), targets_of(members, table)
    absent = () if hidden else missing_ranks_of(targets, everyone)
    return Discovery(targets, tuple(refused), absent, _doubts(chosen.values(), everyone, hidden), tuple(starting))


def same_process(target: Target) -> bool | None:
    """True if the target still runs; False: it has ended, is a zombie, or its PID was reused; None: unknown."""
    found = procfs.stat(target.pid)
    if found is None:
        return False if not os.path.exists(f"/proc/{target.pid}") else None
    return found.start_ticks == target.start_ticks and found.state not in "ZX"


# --- ranks ----------------------------------------------------------------------------------------


def find(table: Table) -> list[Member]:
    """The ranks of this host, each once."""
    members = [member for claim in _claims(table) for member in _of_claim(claim, table)]
    members += _silent({member.pid for member in members}, table)
    ranks = {member.pid for member in members}
    # An ancestor of ranks that is in no process group is only their launcher.
    parents = {pid for rank in ranks for pid in table.ancestors(rank)}
    return [
        member
        for member in members
        if table.in_process_group(member.pid)
        or (
            member.pid not in parents
            and not _is_pool_worker(member.pid, ranks, table)
            and not _is_orphan(member, members, table)
        )
        or _is_starting_rank(member, members, table)
    ]


def _is_starting_rank(member: Member, members: list[Member], table: Table) -> bool:
    """True if it serves the store and started all other ranks, none of them rank 0: Lightning's main process."""
    below = [other.identity for other in members if member.pid in table.ancestors(other.pid)]
    return bool(below) and table.serves_store(member.pid) and all(who and who.rank != 0 for who in below)


def waiting_launchers(ranks: Sequence[Member], table: Table) -> list[Member]:
    """Launchers of a multi-node job that have started no rank yet: they wait in the rendezvous."""
    busy = {pid for rank in ranks for pid in table.ancestors(rank.pid)}
    found: list[Member] = []
    for pid, proc in table.procs.items():
        if pid in busy or proc.state in "ZX" or not proc.readable or not table.is_launcher(pid):
            continue
        launch = launch_of(proc.command, procfs.environ(pid) or {})
        if launch is None or launch.alone or not (table.is_python(pid) and table.loads_framework(pid)):
            continue
        if launch.backend == STATIC and _had_ranks(pid, table):
            continue  # it meets the other nodes only once: it is about to end
        if not any(_is_worker(kid, pid, table) for kid in table.descendants(pid)):
            found.append(Member(pid, proc.identity, launch=launch))
    members = {member.pid for member in found}
    return [member for member in found if members.isdisjoint(table.ancestors(member.pid))]


def _had_ranks(launcher: int, table: Table) -> bool:
    """True if one of its ranks has ended."""
    stat = procfs.stat(launcher)
    ended = any(table.procs[kid].state in "ZX" for kid in table.children(launcher))
    return ended or (stat is not None and stat.reaped_s >= RANK_CPU_S)


def _is_worker(kid: int, launcher: int, table: Table) -> bool:
    """True if the launcher gave it a rank, whatever it runs now."""
    who = table.procs[kid].identity
    return who is not None and who != table.procs[launcher].identity


def _is_pool_worker(pid: int, ranks: set[int], table: Table) -> bool:
    """True for a pool worker of a rank: it inherits what the rank wrote into its own environment."""
    parent = table.procs[pid].ppid
    return table.is_fork(pid) and parent in ranks and table.in_process_group(parent)


def _is_orphan(member: Member, members: list[Member], table: Table) -> bool:
    """True for a helper of a dead rank: it has been adopted, while the parent of the living ranks still runs."""
    if member.identity is None or not _is_adopted(member.pid, table):
        return False
    others = (other for other in members if other.identity and other.identity.master == member.identity.master)
    owner = account(member.pid)
    return any(not _is_adopted(other.pid, table) and account(other.pid) == owner for other in others)


def _is_adopted(pid: int, table: Table) -> bool:
    """True if its parent has ended: init is its parent now, or the `hangdoc watch -- COMMAND` that it runs below."""
    parent = table.procs[pid].ppid
    return parent == 1 or (parent in table.procs and table.is_supervisor(parent))


def _claims(table: Table) -> Iterable[list[int]]:
    """Groups of processes that share an inherited identity, each from its first process downwards."""
    claims: dict[int, list[int]] = defaultdict(list)
    depth = {pid: len(list(table.ancestors(pid))) for pid, proc in table.procs.items() if proc.identity}
    for pid in sorted(depth, key=lambda pid: (depth[pid], table.procs[pid].start_ticks, pid)):
        who = table.procs[pid].identity
        head = pid
        for ancestor in table.ancestors(pid):
            if table.procs[ancestor].identity == who:
                head = ancestor
        claims[head].append(pid)
    return claims.values()


def _of_claim(claim: list[int], table: Table) -> list[Member]:
    """The rank among the processes with its identity; several if the identity was given to a whole group."""
    able = [pid for pid in claim if _may_train(pid, table)]
    grouped = _topmost([pid for pid in able if table.in_process_group(pid) or table.serves_store(pid)], table)
    if len(grouped) == 1 and not _fork_of_idle(grouped[0], able, table):
        return [Member(grouped[0], table.procs[grouped[0]].identity)]
    if grouped:
        return _multiprocessing(grouped, table)
    loaded = [pid for pid in able if table.loads_framework(pid) and not _is_worker_of(pid, able, table)]
    if not loaded:
        able = [pid for pid in able if table.is_python(pid)]
        return [Member(able[0], table.procs[able[0]].identity)] if able else []
    # Not in a process group yet. A wrapper that has loaded PyTorch as well is an ancestor of the trainer.
    deepest = loaded[0]
    for pid in loaded[1:]:
        if deepest in table.ancestors(pid):
            deepest = pid
    return [Member(deepest, table.procs[deepest].identity)]


def _may_train(pid: int, table: Table) -> bool:
    proc = table.procs[pid]
    if pid == os.getpid() or table.is_launcher(pid) or table.is_helper(pid):
        return False
    if not table.in_process_group(pid) and any(
        table.is_helper(ancestor)
        and not table.is_supervisor(ancestor)
        and table.procs[ancestor].identity == proc.identity
        for ancestor in table.ancestors(pid)
    ):
        return False  # a helper's own process; with an identity of its own it is a rank, as below `hangdoc demo`
    return table.is_python(pid) or (
        proc.identity is not None and proc.identity.family == "mpi" and table.loads_framework(pid)
    )


def _topmost(pids: list[int], table: Table) -> list[int]:
    return [pid for pid in pids if not any(other in table.ancestors(pid) for other in pids)]


def _is_worker_of(pid: int, able: list[int], table: Table) -> bool:
    """True for a multiprocessing worker of another process with the same identity."""
    return table.is_fork(pid) and table.procs[pid].ppid in able


def _fork_of_idle(pid: int, able: list[int], table: Table) -> bool:
    """True for one of several multiprocessing workers of a parent that is in no process group."""
    who = table.procs[pid].identity
    if who and who.family != "slurm" and who.local_rank is not None:
        return False  # an exact identity belongs to one process
    return _is_worker_of(pid, able, table) and len(_siblings(pid, table)) > 1


def _silent(ranks: set[int], table: Table) -> list[Member]:
    """Ranks without an identity: in a process group, or connected to the store of one under construction."""
    grouped: list[int] = []
    servers: list[int] = []
    others: list[int] = []
    for pid, proc in table.procs.items():
        if proc.identity or proc.state in "ZX" or not proc.readable:
            continue
        # Reading the memory maps of all processes costs too much: a program that embeds Python must be in a group.
        if not (table.runs_python(pid) or table.in_process_group(pid)) or not _may_train(pid, table):
            continue
        if any(ancestor in ranks for ancestor in table.ancestors(pid)):
            continue
        (grouped if table.in_process_group(pid) else servers if table.serves_store(pid) else others).append(pid)
    found = grouped + servers
    ports = {port for pid in servers for port in table.connections(pid).stores}
    if ports:  # otherwise save the reads
        loaded = [pid for pid in others if table.loads_framework(pid)]
        found += [pid for pid in loaded if any(port in ports for _, port in table.connections(pid).remotes)]
    found = _topmost(sorted(found, key=lambda pid: (table.procs[pid].start_ticks, pid)), table)
    made = [pid for pid in found if table.is_fork(pid)]
    return [*_multiprocessing(made, table), *(Member(pid, None) for pid in found if pid not in made)]


def _multiprocessing(made: list[int], table: Table) -> list[Member]:
    """Ranks created by multiprocessing, with their index in order of creation."""
    members: list[Member] = []
    for parent in dict.fromkeys(table.procs[pid].ppid for pid in made):
        siblings = _siblings(next(pid for pid in made if table.procs[pid].ppid == parent), table)
        for place, pid in enumerate(siblings):
            if table.procs[pid].state not in "ZX":  # a dead rank keeps its index
                members.append(Member(pid, table.procs[pid].identity, parent, place, len(siblings)))
    return members


def _siblings(pid: int, table: Table) -> list[int]:
    """Multiprocessing siblings of `pid`, including those not yet in the group and zombies."""
    like = table.procs[pid]
    found = []
    for other in table.children(like.ppid):
        proc = table.procs[other]
        dead = proc.state in "ZX" and proc.comm == like.comm
        alive = (
            table.is_fork(other)
            and _may_train(other, table)
            and table.loads_framework(other)
            and not _serves_objects(other)
        )
        if other == pid or dead or alive:
            found.append(other)
    return found


def _serves_objects(pid: int) -> bool:
    """True for the server of a multiprocessing.Manager: it listens on a `pymp-` socket."""
    links = {procfs.link(f"/proc/{pid}/fd/{fd}") for fd in procfs.descriptors(pid)}
    for line in (procfs.text(f"/proc/{pid}/net/unix") or "").splitlines():
        fields = line.split()
        if len(fields) >= 8 and "pymp-" in fields[7] and fields[3] == "00010000" and f"socket:[{fields[6]}]" in links:
            return True
    return False


def _doubts(members: Iterable[Member], targets: Sequence[Target], hidden: str | None) -> tuple[Unseen, ...]:
    host = os.uname().nodename
    found = [Unseen("discover", hidden, host=host)] if hidden else []
    for member in members:
        if member.identity and member.identity.doubts:
            found.append(Unseen("discover", "; ".join(member.identity.doubts), pid=member.pid, host=host))
    return (*found, *mass_absences(targets))


# --- PIDs given by the user -----------------------------------------------------------------------


def _resolve_pid(pid: int, members: list[Member], table: Table, hidden: str | None) -> tuple[list[Member], str | None]:
    """What a given PID stands for that has no ranks below it, or why that is nothing."""
    proc = table.procs.get(pid)
    if proc is None:
        stat = procfs.stat(pid)
        if stat and stat.kernel:
            return [], f"PID {pid} is a kernel thread; `hangdoc watch` without --pids finds the ranks"
        if hidden:
            return [], f"PID {pid} is not visible, but may exist: {hidden}"
        return [], f"PID {pid} does not exist on this host; `hangdoc watch` without --pids finds the ranks"
    if proc.state in "ZX":
        why = f"it has ended and its parent, PID {proc.ppid}, has not collected it"
        return [], f"PID {pid} is a zombie: {why}; give a running one"
    above = [member for member in members if member.pid in table.ancestors(pid)]
    if above:
        return above[:1], f"PID {pid} is a helper of the rank with PID {above[0].pid}; hangdoc watches that rank"
    if not proc.readable:
        return [], f"PID {pid} (of user {owner_of(pid)}) may not be read; {remedy(pid)}"
    if table.is_launcher(pid):
        return [], f"PID {pid} ({proc.comm}) is a launcher without a running rank; wait until it has started them"
    if not table.is_python(pid):
        why = "is not a Python process and no training rank runs under it"
        return [], f"PID {pid} ({proc.comm}) {why}; give a rank's PID"
    return [Member(pid, proc.identity)], None


def _below(pid: int, members: list[Member], table: Table) -> list[Member]:
    """The ranks among a process and its descendants."""
    return [member for member in members if member.pid == pid or pid in table.ancestors(member.pid)]


def _joined(pid: int, table: Table, joins: Callable[[int], bool]) -> list[Member]:
    """The processes that one at or below `pid` has started by multiprocessing and waits for, if there are several."""
    if pid not in table.procs:
        return []
    for parent in (pid, *table.descendants(pid)):
        made = [kid for kid in table.children(parent) if table.is_fork(kid) and table.loads_framework(kid)]
        if len(made) > 1 and table.is_python(parent) and joins(parent):
            return _multiprocessing(made, table)
    return []


def _why_none(table: Table, hidden: str | None) -> Unseen:
    """Why no rank was found on this host."""
    refused = [pid for pid, proc in table.procs.items() if not proc.readable and table.in_process_group(pid)]
    if refused:
        why = f"PID {refused[0]} looks like a training rank, but may not be read; {remedy(refused[0])}"
    elif hidden:
        why = f"no training rank is visible: {hidden}"
    else:
        why = "no training rank runs on this host; start the job, or give PIDs with --pids"
    return Unseen("discover", why, host=os.uname().nodename)
