"""Probe `chain`: what a rank waits for outside itself, followed from process to process on this host.

Pipes, Unix sockets, local TCP connections, child processes and locks on files; in select, poll and epoll the
descriptors that these wait for. Only for ranks whose thread has hardly run since the previous round. Sources: /proc,
sock_diag, and the arguments of system calls.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from hangdoc.evidence import Process, Stacks, ThreadCpu
from hangdoc.evidence.waits import Awaited, Chain, Waiter
from hangdoc.introspect.frames import main_stack
from hangdoc.introspect.polled import polled
from hangdoc.redaction.text import redact
from hangdoc.system import procfs, syscalls
from hangdoc.system.command_text import command_text
from hangdoc.system.open_ends import OpenEnds, TcpEnd, open_mode
from hangdoc.system.syscalls import ON_SOCKETS, Call
from probes import Observation, Request, Tier
from probes.files import held_locks, lock_holders
from probes.io import TERMINAL, file_call, is_deadlocked

_DEEPEST = 6  # processes in a row
_MAX_PROCESSES = 16  # processes in a chain
_THREADS = 8  # of a rank
_AWAITED = 8  # by one thread
_CHILDREN = 8
_RAN_S = 0.002  # CPU time between two rounds: more than a timer that expires
_LONGEST = 60  # characters of a command
_PATH_MAX = 250
_ENDS_CACHE_S, _ENDS_SHARE = 2.0, 0.005  # age of a walk over the host's descriptors, and its share of the time


@dataclass(slots=True)
class ChainProbe:
    name: str = "chain"
    scope: str = "rank"
    tier: Tier = Tier.LOOK
    needs: str = "nothing"
    record: type = Chain
    order: int = 45
    steady: bool = False
    _ends: OpenEnds = field(default_factory=OpenEnds)
    _at_s: float = 0.0  # when these were read
    _followed: frozenset[int] = frozenset()  # ranks with a chain in the round before

    def observe(self, request: Request) -> Observation:
        before = {rank.target.pid: rank.records.get("cpu") for rank in getattr(request.previous, "ranks", ())}
        if time.monotonic() - self._at_s >= max(_ENDS_CACHE_S, self._ends.walk_s / _ENDS_SHARE):
            self._ends, self._at_s = OpenEnds(), time.monotonic()
        ranks = frozenset(target.pid for target in request.targets)
        found: dict[int, Chain] = {}
        for target in request.targets:
            records = (request.records or {}).get(target.pid, {})
            process, stacks, old = records.get("cpu"), records.get("stacks"), before.get(target.pid)
            if isinstance(process, Process) and isinstance(stacks, Stacks):
                known = old.threads if isinstance(old, Process) else ()
                asleep = _asleep(process, known, timers=target.pid in self._followed)
                threads = tuple(_threads(process.pid, asleep, stacks, self._ends))
                if any(one.awaits for one in threads):
                    found[target.pid] = Chain(threads, tuple(_others(threads, ranks, self._ends)))
        self._followed = frozenset(found)
        return Observation(found)


def _asleep(process: Process, before: Sequence[ThreadCpu], timers: bool) -> frozenset[int]:
    """The threads that sleep, and have not run since the previous round, or only as a timer expired (`timers`)."""
    known = {thread.tid: thread for thread in before}
    return frozenset(
        now.tid
        for now in process.threads
        if now.state in "SD"
        and (
            (old := known.get(now.tid)) is None
            or (now.cpu_s - old.cpu_s < _RAN_S and (timers or now.voluntary == old.voluntary))
        )
    )


def _threads(pid: int, asleep: frozenset[int], stacks: Stacks, ends: OpenEnds) -> Iterator[Waiter]:
    """The main thread of a rank if it sleeps; if only other threads can wake it, those that sleep as well."""
    main = main_stack(stacks.threads).tid if stacks.threads else pid
    first = _waiter(pid, main, ends) if main in asleep else None
    if first is None:
        return
    yield first
    if not first.awaits and first.call in ("lock", "poll"):
        others = (stack.tid for stack in stacks.threads if stack.tid in asleep and stack.tid != main)
        seen = (_waiter(pid, tid, ends) for tid in islice(others, _THREADS))
        yield from (one for one in seen if one is not None and one.awaits)


def _others(threads: Sequence[Waiter], ranks: frozenset[int], ends: OpenEnds) -> Iterator[Waiter]:
    """The processes that the threads wait for, nearest first; those that a rank waits for belong to its own chain."""
    known = {threads[0].pid}
    nearest: Sequence[Waiter] = threads
    for _ in range(_DEEPEST):
        pids = dict.fromkeys(pid for one in nearest for awaited in one.awaits for pid in awaited.peers or ())
        following = []
        for pid in pids:
            if pid not in known and len(known) <= _MAX_PROCESSES:
                known.add(pid)
                found = _process(pid, ends, follow=pid not in ranks)
                if found is not None:
                    yield found
                    following.append(found)
        nearest = following


def _process(pid: int, ends: OpenEnds, follow: bool) -> Waiter | None:
    """A process, for which its main thread stands, or else the only other thread that waits for something outside."""
    main = _waiter(pid, pid, ends, follow)
    if main is None or not follow or main.call != "lock" or main.awaits:
        return main
    if is_deadlocked(pid):
        return replace(main, locked=True)
    others = (_waiter(pid, tid, ends) for tid in islice(procfs.threads(pid), 1, 1 + _THREADS))
    waiting = [one for one in others if one is not None and one.awaits]
    return waiting[0] if len(waiting) == 1 else main


def _waiter(pid: int, tid: int, ends: OpenEnds, follow: bool = True) -> Waiter | None:
    stat = procfs.stat(pid)
    thread = procfs.stat(pid, tid)
    if stat is None or thread is None:
        return None
    call = syscalls.current_call(pid, tid) if thread.state in "SD" else None
    awaits = tuple(islice(_awaited(pid, tid, thread.state, call, ends), _AWAITED)) if call and follow else ()
    return Waiter(
        pid=pid,
        tid=tid,
        command=command_text(pid, _LONGEST, folder=False) or stat.comm,
        state=thread.state if thread.state == "D" else stat.state,
        call=call.kind if call else "",
        cpu_s=stat.cpu_s,
        moved=procfs.moved_bytes(pid),
        age_s=procfs.age_s(stat.start_ticks),
        writes=call is not None and call.kind in ("write", "send", "sync", "change"),
        awaits=awaits,
    )


# --- what a thread waits for ----------------------------------------------------------------------


def _awaited(pid: int, tid: int, state: str, call: Call, ends: OpenEnds) -> Iterator[Awaited]:
    if call.kind == "poll":
        yield from _descriptors(pid, polled(pid, call, timed=True), ends)
    elif call.kind in ON_SOCKETS:
        yield from _descriptors(pid, (call.arguments[0] & 0x7FFFFFFF,), ends, blocked=True)
    elif call.kind == "child":
        children = procfs.children(pid)
        # In another PID namespace, the number that it waits for is not ours.
        yield Awaited("child", peers=(call.child,) if call.child in children else tuple(children[:_CHILDREN]))
    elif call.kind == "flock":
        yield from _lock(pid, call.arguments[0] & 0x7FFFFFFF, ends)
    elif call.kind == "lock" and not call.private:
        yield Awaited("futex")
    elif call.names == syscalls.FD and _is_anonymous(pid, call.arguments[0] & 0x7FFFFFFF):
        yield from _descriptors(pid, (call.arguments[0] & 0x7FFFFFFF,), ends, blocked=True)
    elif call.names or call.kind == "fault":
        for seen in file_call(pid, tid, state):
            if seen.kind == "fifo":
                yield Awaited("fifo", seen.path, ends.holders(seen.path, "r" if seen.writes else "w"))
            else:
                yield Awaited("file", seen.path[:_PATH_MAX], filesystem=seen.filesystem)


def _is_anonymous(pid: int, fd: int) -> bool:
    return (procfs.link(f"/proc/{pid}/fd/{fd}") or "").startswith(("pipe:", "socket:"))


def _descriptors(pid: int, fds: Sequence[int], ends: OpenEnds, blocked: bool = False) -> Iterator[Awaited]:
    """What these descriptors wait for. In an event loop (not `blocked`), without those with which it wakes itself."""
    links = {fd: procfs.link(f"/proc/{pid}/fd/{fd}") or "" for fd in fds}
    inodes = {int(link[8:-1]) for link in links.values() if link.startswith("socket:[")}
    tcp = ends.tcp_ends(pid, inodes) if inodes else {}
    unix = ends.unix_peers(pid, inodes - tcp.keys()) if inodes - tcp.keys() else {}
    for fd, link in links.items():
        found = _descriptor(pid, fd, link, tcp, unix, ends)
        if found is not None and (blocked or not _wakes(pid, found)):
            yield found


def _wakes(pid: int, awaited: Awaited) -> bool:
    """Both ends are in the process: a child that was forked has them as well, but does not use them."""
    return awaited.peers == (pid,) or (awaited.way == "unix" and pid in (awaited.peers or ()))


def _descriptor(
    pid: int, fd: int, link: str, tcp: dict[int, TcpEnd], unix: dict[int, tuple[int, ...]], ends: OpenEnds
) -> Awaited | None:
    if link.startswith("pipe:["):
        return Awaited("pipe", link, ends.holders(link, "w" if open_mode(pid, fd) == "r" else "r"))
    if link.startswith("socket:["):
        inode = int(link[8:-1])
        if inode in tcp:
            return _connection(tcp[inode])
        return Awaited("unix", link, unix[inode]) if inode in unix else Awaited("other", link)
    if link == "anon_inode:[pidfd]":
        info = procfs.text(f"/proc/{pid}/fdinfo/{fd}") or ""
        child = next((line.split()[1] for line in info.splitlines() if line.startswith("Pid:")), "-1")
        return Awaited("child", peers=(int(child),) if int(child) > 0 else ())
    if TERMINAL.match(link):
        return Awaited("other", link)
    return None


def _connection(end: TcpEnd) -> Awaited:
    fields = end.fields
    if end.served:
        return Awaited("clients", _address(fields["local"], fields["local_port"]))
    unanswered = fields.get("retransmits") or 0
    # tcpi_last_data_sent is also that of a retransmission (linux: net/ipv4/tcp_output.c).
    ages = [fields.get(name) for name in ("last_receive_s", "last_ack_s" if unanswered else "last_send_s")]
    return Awaited(
        "tcp",
        _address(fields["remote"], fields["remote_port"]),
        peers=end.peers,
        silent_s=min((age for age in ages if age is not None), default=None),
        state=fields["state"],
        unanswered=unanswered,
        accepted=end.accepted,
        remote=end.peers is None,
    )


def _address(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _lock(pid: int, fd: int, ends: OpenEnds) -> Iterator[Awaited]:
    """The file that a process waits to lock, and the holders of the lock."""
    path = procfs.link(f"/proc/{pid}/fd/{fd}")
    locks = held_locks()
    wanted = {lock.file for lock in locks if lock.waits and lock.pid == pid}
    if path is not None and wanted:
        opened = [other for other in ends.holders(path) if other != pid]
        held = [lock_holders(lock, opened) for lock in locks if not lock.waits and lock.file in wanted]
        holders = tuple(sorted({holder for several, _ in held for holder in several}))
        inherited = bool(holders) and all(forked for _, forked in held)
        yield Awaited("lock", redact("path", path)[:_PATH_MAX], holders or None, inherited=inherited)


PROBE = ChainProbe()
