"""Which processes of this host are training ranks, and of which job. Only /proc is read; nothing is asked of the job.

A rank is known by the environment it was started with. Where that is silent (`multiprocessing.spawn`, launchers that
set it after start) it is known by its process group's threads or by its connection to the job's store.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hangdoc.discovery.dead_ranks import absent_beside, absent_of, uncounted
from hangdoc.discovery.jobs import Member, targets_of
from hangdoc.discovery.launcher import launch_of
from hangdoc.discovery.process_table import Table
from hangdoc.evidence import Target, Unseen
from hangdoc.system import procfs
from hangdoc.system.account import account
from hangdoc.system.permissions import hidden_processes, owner_of, remedy


@dataclass(frozen=True, slots=True)
class Discovery:
    """The ranks found, by job and rank; one sentence with its remedy for each thing that stood in the way; the ranks of
    those jobs that belong on this host and are gone (their PID is negative); and what every verdict has to say with it:
    processes that are hidden from us, claims of ranks that are not believed."""

    targets: tuple[Target, ...]
    problems: tuple[Unseen, ...] = ()
    absent: tuple[Target, ...] = ()
    doubts: tuple[Unseen, ...] = ()


def discover(pids: Sequence[int] | None = None) -> Discovery:
    """Every training rank of this host, or those that `pids` mean: ranks, or launchers, which stand for their ranks.

    A given PID that is a Python process without any sign of a rank is a target too, its rank unknown.

    A rank number that the environment does not give is deduced only where the launch gives it: processes that
    multiprocessing made are numbered as they were created (torch.multiprocessing.spawn passes that number), provided
    that the one that serves the store came first and that no peer is on another host; the server of the store is
    rank 0; the only rank missing from a job whose other ranks are known is that one. Else it stays None.
    """
    table, hidden = Table(), hidden_processes()
    members = find(table)
    members += waiting_launchers(members, table)
    if pids is None:
        targets = targets_of(members, table)
        problems = () if members else (_nothing(table, hidden),)
        return Discovery(targets, problems, () if hidden else absent_of(targets), _doubts(members, targets, hidden))
    chosen: dict[int, Member] = {}
    refused: list[Unseen] = []
    for pid in dict.fromkeys(pids):
        meant, why = _meant(pid, members, table, hidden)
        chosen.update((member.pid, member) for member in meant)
        if why:
            refused.append(Unseen("discover", why, pid=pid, host=os.uname().nodename))
    targets, everyone = targets_of(chosen.values(), table), targets_of(members, table)
    absent = () if hidden else absent_beside(targets, everyone)
    return Discovery(targets, tuple(refused), absent, _doubts(chosen.values(), everyone, hidden))


def same_process(target: Target) -> bool | None:
    """Whether the target still runs: False when it is gone, a zombie, or its PID is another process's now."""
    found = procfs.stat(target.pid)
    if found is None:
        return False if not os.path.exists(f"/proc/{target.pid}") else None
    return found.start_ticks == target.start_ticks and found.state not in "ZX"


# --- which processes ------------------------------------------------------------------------------


def find(table: Table) -> list[Member]:
    """The ranks of this host, each once."""
    members = [member for claim in _claims(table) for member in _of_claim(claim, table)]
    members += _silent({member.pid for member in members}, table)
    ranks = {member.pid for member in members}
    # What has given birth to ranks and is in no process group itself was only their launcher.
    parents = {pid for rank in ranks for pid in table.ancestors(rank)}
    return [
        member
        for member in members
        if table.grouped(member.pid)
        or (member.pid not in parents and not _helps(member.pid, ranks, table) and not _orphan(member, members, table))
        or _is_first(member, members, table)
    ]


def _is_first(member: Member, members: list[Member], table: Table) -> bool:
    """It serves the store and has started the other ranks, of which none is rank 0: as Lightning's main process."""
    below = [other.identity for other in members if member.pid in table.ancestors(other.pid)]
    return bool(below) and table.serves(member.pid) and all(who and who.rank != 0 for who in below)


def waiting_launchers(ranks: Sequence[Member], table: Table) -> list[Member]:
    """Launchers of a job on several hosts that have started no rank: they wait in the rendezvous for one another."""
    busy = {pid for rank in ranks for pid in table.ancestors(rank.pid)}
    found: list[Member] = []
    for pid, proc in table.procs.items():
        if pid in busy or proc.state in "ZX" or not proc.readable or not table.is_launcher(pid):
            continue
        launch = launch_of(proc.command, procfs.environ(pid) or {})
        if launch is None or launch.alone or not (table.is_python(pid) and table.trains(pid)):
            continue
        if not any(_is_worker(kid, pid, table) for kid in table.descendants(pid)):
            found.append(Member(pid, proc.identity, launch=launch))
    members = {member.pid for member in found}
    return [member for member in found if members.isdisjoint(table.ancestors(member.pid))]


def _is_worker(kid: int, launcher: int, table: Table) -> bool:
    """A process that a launcher has given a rank, whatever it runs until it trains."""
    who = table.procs[kid].identity
    return who is not None and who != table.procs[launcher].identity


def _helps(pid: int, ranks: set[int], table: Table) -> bool:
    """A pool worker that a rank has made: it inherits what the rank wrote into its own environment."""
    parent = table.procs[pid].ppid
    return table.is_fork(pid) and parent in ranks and table.grouped(parent)


def _orphan(member: Member, members: list[Member], table: Table) -> bool:
    """A helper that a rank which has died leaves behind: init has adopted it, while the ranks' own parent lives."""
    if member.identity is None or table.procs[member.pid].ppid != 1:
        return False
    others = (other for other in members if other.identity and other.identity.master == member.identity.master)
    mine = account(member.pid)
    return any(table.procs[other.pid].ppid != 1 and account(other.pid) == mine for other in others)


def _claims(table: Table) -> Iterable[list[int]]:
    """Processes that share one identity by inheritance, each claim from its first process downwards."""
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
    """The rank among the processes that carry its identity; several where it was given to a whole group."""
    able = [pid for pid in claim if _may_train(pid, table)]
    grouped = _topmost([pid for pid in able if table.grouped(pid) or table.serves(pid)], table)
    if len(grouped) == 1 and not _fork_of_idle(grouped[0], able, table):
        return [Member(grouped[0], table.procs[grouped[0]].identity)]
    if grouped:
        return _multiprocessing(grouped, table)
    loaded = [pid for pid in able if table.trains(pid) and not _made_by(pid, able, table)]
    if not loaded:
        able = [pid for pid in able if table.is_python(pid)]
        return [Member(able[0], table.procs[able[0]].identity)] if able else []
    # Not in a group yet. A wrapper that has PyTorch loaded as well stands above the true trainer.
    deepest = loaded[0]
    for pid in loaded[1:]:
        if deepest in table.ancestors(pid):
            deepest = pid
    return [Member(deepest, table.procs[deepest].identity)]


def _may_train(pid: int, table: Table) -> bool:
    proc = table.procs[pid]
    if pid == os.getpid() or table.is_launcher(pid) or table.is_helper(pid):
        return False
    if any(table.is_helper(ancestor) and not table.grouped(pid) for ancestor in table.ancestors(pid)):
        return False
    return table.is_python(pid) or (proc.identity is not None and proc.identity.family == "mpi" and table.trains(pid))


def _topmost(pids: list[int], table: Table) -> list[int]:
    return [pid for pid in pids if not any(other in table.ancestors(pid) for other in pids)]


def _made_by(pid: int, able: list[int], table: Table) -> bool:
    """A worker that multiprocessing made for another process of the same claim."""
    return table.is_fork(pid) and table.procs[pid].ppid in able


def _fork_of_idle(pid: int, able: list[int], table: Table) -> bool:
    """One of several workers that a parent outside the process group made with multiprocessing."""
    who = table.procs[pid].identity
    if who and who.family != "slurm" and who.local_rank is not None:
        return False  # an identity as exact as that is one process's
    return _made_by(pid, able, table) and len(_siblings(pid, table)) > 1


def _silent(ranks: set[int], table: Table) -> list[Member]:
    """Ranks whose environment says nothing: in a process group, or talking to the store of one that forms."""
    grouped: list[int] = []
    servers: list[int] = []
    others: list[int] = []
    for pid, proc in table.procs.items():
        if proc.identity or proc.state in "ZX" or not proc.readable:
            continue
        # The memory map of every process of a host would cost too much: what only embeds Python must show its group.
        if not (table.runs_python(pid) or table.grouped(pid)) or not _may_train(pid, table):
            continue
        if any(ancestor in ranks for ancestor in table.ancestors(pid)):
            continue
        (grouped if table.grouped(pid) else servers if table.serves(pid) else others).append(pid)
    found = grouped + servers
    ports = {port for pid in servers for port in table.ends(pid).stores}
    if ports:  # only then is it worth the reading
        loaded = [pid for pid in others if table.trains(pid)]
        found += [pid for pid in loaded if any(port in ports for _, port in table.ends(pid).remotes)]
    found = _topmost(sorted(found, key=lambda pid: (table.procs[pid].start_ticks, pid)), table)
    made = [pid for pid in found if table.is_fork(pid)]
    return [*_multiprocessing(made, table), *(Member(pid, None) for pid in found if pid not in made)]


def _multiprocessing(made: list[int], table: Table) -> list[Member]:
    """Ranks made by one parent with multiprocessing, with the place of each in the order of creation."""
    members: list[Member] = []
    for parent in dict.fromkeys(table.procs[pid].ppid for pid in made):
        siblings = _siblings(next(pid for pid in made if table.procs[pid].ppid == parent), table)
        for place, pid in enumerate(siblings):
            if table.procs[pid].state not in "ZX":  # a rank that has died keeps its place
                members.append(Member(pid, table.procs[pid].identity, parent, place, len(siblings)))
    return members


def _siblings(pid: int, table: Table) -> list[int]:
    """The processes made like `pid` by its parent, those that have not joined the group yet and the dead included."""
    like = table.procs[pid]
    found = []
    for other in table.kids(like.ppid):
        proc = table.procs[other]
        dead = proc.state in "ZX" and proc.comm == like.comm
        alive = table.is_fork(other) and _may_train(other, table) and table.trains(other) and not _serves_objects(other)
        if other == pid or dead or alive:
            found.append(other)
    return found


def _serves_objects(pid: int) -> bool:
    """The server of a multiprocessing.Manager: it listens on a socket of its own kind."""
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
    return (*found, *uncounted(targets))


# --- what the user meant --------------------------------------------------------------------------


def _meant(pid: int, members: list[Member], table: Table, hidden: str | None) -> tuple[list[Member], str | None]:
    """The ranks that a PID given by the user stands for, or why there are none."""
    meant = [member for member in members if member.pid == pid or pid in table.ancestors(member.pid)]
    if meant:
        return meant, None
    proc = table.procs.get(pid)
    if proc is None:
        stat = procfs.stat(pid)
        if stat and stat.kernel:
            return [], f"PID {pid} is a kernel thread; `hangdoc watch` without --pids finds the ranks"
        if hidden:
            return [], f"PID {pid} is not seen, and may exist all the same: {hidden}"
        return [], f"PID {pid} does not exist on this host; `hangdoc watch` without --pids finds the ranks"
    if proc.state in "ZX":
        why = f"it has ended and its parent, PID {proc.ppid}, has not collected it"
        return [], f"PID {pid} is a zombie: {why}; give a living one"
    above = [member for member in members if member.pid in table.ancestors(pid)]
    if above:
        return above[:1], f"PID {pid} is a helper of the rank with PID {above[0].pid}: that one is watched"
    if not proc.readable:
        return [], f"PID {pid} (of user {owner_of(pid)}) may not be read; {remedy(pid)}"
    if table.is_launcher(pid):
        return [], f"PID {pid} ({proc.comm}) is a launcher, and none of its ranks runs; wait until it has started them"
    if not table.is_python(pid):
        why = "is not a Python process and no training rank runs under it"
        return [], f"PID {pid} ({proc.comm}) {why}; give a rank's PID"
    return [Member(pid, proc.identity)], None


def _nothing(table: Table, hidden: str | None) -> Unseen:
    """Why no rank was found, where we were not asked for a certain one."""
    refused = [pid for pid, proc in table.procs.items() if not proc.readable and table.grouped(pid)]
    if refused:
        why = f"PID {refused[0]} looks like a training rank, but may not be read; {remedy(refused[0])}"
    elif hidden:
        why = f"no training rank is seen: {hidden}"
    else:
        why = "no training rank runs on this host; start the job, or give PIDs with --pids"
    return Unseen("discover", why, host=os.uname().nodename)
