"""Analysis `chain`: the processes that a rank waits for outside itself, and whether somebody can end its wait.

A wait for several descriptors, or for a pipe that several processes have open, ends with any of them. So a rank cannot
go on only if every way leads to a process that cannot. Where a process or a server is only silent, the wait counts as
endless once it has lasted longer than any that a job expects, and other ranks wait for this one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.data.storage import FOR_THREADS, HANDS_OUT, REMOTE
from hangdoc.analysis.data.workers import is_stall
from hangdoc.analysis.locks.mutexes import lock_holder
from hangdoc.analysis.network.links import NetworkJob
from hangdoc.analysis.ranks.judged_thread import judged_thread
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.analysis.startup.startup import StartupJob
from hangdoc.analysis.thresholds import (
    ACTIVE_BYTES,
    DEAD_AFTER_S,
    DEAD_REPEATS,
    EXPECTED_S,
    IDLE_CORES,
    PIPE_CPU_S,
    STALL_S,
)
from hangdoc.evidence.waits import Awaited, Chain, Waiter

_PHASES = frozenset({"idle", "input", "checkpoint", "unknown"})  # in which a rank may wait for something outside
MAX_PATHS = 64  # through the chain of one rank: processes may wait for each other in many ways
MAX_DEPTH = 8
# How a chain may end, most telling first. CERTAIN: the last process cannot go on.
CERTAIN = ("stopped", "dead", "locked", "nobody")
ENDS = (
    *CERTAIN, "disk", "silent", "inherited", "circle", "sleeps", "polls", "rank", "clients", "timer", "unknown", "runs",
)  # fmt: skip
# Nothing shows that the wait ever ends, so that its length decides.
SILENT = frozenset({"disk", "silent", "inherited", "circle", "sleeps", "polls"})
# Processes that wait for one another, or that do not know what they hold: only somebody else could end the wait.
ENDLESS = frozenset({"circle", "inherited", *CERTAIN})
CONNECTED = frozenset({"tcp", "unix"})
STOPPED, DEAD = "Tt", "ZX"

Link = tuple[Waiter, Awaited]


@dataclass(frozen=True, slots=True)
class ChainFacts:
    """The chain of waits that starts at one rank. None: it waits for nothing outside itself, or was not seen."""

    text: str | None = None  # "waits on a pipe from PID 71 (curl), which reads from 10.0.0.7:443: no byte for 14 s"
    lock: str | None = None  # its main thread waits for this lock, and the chain starts at the thread that holds it
    way: str | None = None  # what the rank itself waits for: pipe | fifo | unix | tcp | child | lock | file | other
    writes: bool | None = None  # it waits to write
    # stopped | dead | locked | nobody: has the other end open | disk | silent: a server | circle: the rank itself |
    # inherited: a forked process has a lock that it does not know of | sleeps | timer: sleeps for some time |
    # polls: sleeps again and again | rank: another one of the job | clients: any may come | runs |
    # unknown
    end: str | None = None
    pid: int | None = None  # last process of the chain; None: the rank itself
    process: str | None = None  # that process: "curl (pid 71)"
    peer: bool | None = None  # that process is another rank of the job
    server: str | None = None  # address of the last connection of the chain: "10.0.0.7:443"
    # Its own connection retransmits in vain: "retransmitted 7 times without an answer, nothing arrived for 26 s".
    cut: str | None = None
    silent_s: float | None = None  # for which nothing has come, at least
    quiet: bool | None = None  # no process that could end the wait works or has sent anything for STALL_S
    certain: bool | None = None  # every process that could end the wait is unable to
    stuck: bool | None = None  # the wait does not end by itself


UNSEEN = ChainFacts()


class ChainDetector(Detector[ChainFacts, None]):
    rank_facts = ChainFacts  # the probe makes a record only of a rank that waits for something outside itself

    def derive(self, case: Case) -> tuple[dict[Key, ChainFacts], None]:
        return {key: _facts(case, key) for key in case.ranks}, None


def _facts(case: Case, key: Key) -> ChainFacts:
    stack = case.facts(StackFacts)[key]
    if case.ranks[key].alive is False or stack.phase not in _PHASES:
        return UNSEEN
    series = _standing(case, key)
    if not series:
        return UNSEEN
    chain = series[-1][1]
    roots, lock = _roots(case, key, chain)
    busy = _busy(case, key, series)
    polling = frozenset(pid for pid in _polling(series, busy) if (key[0], pid) not in case.ranks)
    graph = _Graph(case, key, {one.pid: one for one in chain.others}, busy, polling)
    paths = list(islice((path for root in roots for path in graph.paths(root)), MAX_PATHS))
    if not paths:
        return UNSEEN
    links, end, last = min(paths, key=lambda path: (ENDS.index(path[1]), len(path[0])))
    watched_s = series[-1][0] - series[0][0]
    silent_s = _silent_s(case, links, last, watched_s)
    certain = all(graph.is_certain(root) for root in roots)
    quiet = (
        len(paths) < MAX_PATHS
        and all(end in CERTAIN or end in SILENT for _, end, _ in paths)
        and min(silent_s, watched_s) >= STALL_S
    )
    ends = {end for _, end, _ in paths}
    endless = ends <= ENDLESS and not ends <= {*CERTAIN}
    waited_s = silent_s
    if endless or ends == {"polls"}:  # so long has the job waited
        idle_s = case.job(NetworkJob).idle_s
        waited_s = max(silent_s, (case.job(StartupJob).waited_s if idle_s is None else idle_s) or 0.0)
    silent = quiet and waited_s >= EXPECTED_S and _is_awaited(case, key, endless)
    cut = _cut(links, silent_s) if len(paths) == 1 else None
    stuck = silent or (certain and is_stall(case, watched_s)) or (cut is not None and _is_awaited(case, key, False))
    other = last if last is not None and last.pid != key[1] else None
    return ChainFacts(
        text=(f"waits for {lock}, held by a thread that " if lock else "")
        + _text(case, key, links, end, last, silent_s),
        lock=lock,
        way=links[0][1].way,
        writes=links[0][0].writes,
        end=end,
        pid=other.pid if other else None,
        process=f"{other.command} (pid {other.pid})" if other else None,
        peer=(other is not None and (key[0], other.pid) in case.ranks) or None,
        server=links[-1][1].target if links[-1][1].way == "tcp" else None,
        cut=cut,
        silent_s=silent_s,
        quiet=quiet or None,
        certain=certain or None,
        stuck=stuck or None,
    )


def _standing(case: Case, key: Key) -> list[tuple[float, Chain]]:
    """The looks that found the rank in its present wait, oldest first. Empty: the newest did not."""
    found: list[tuple[float, Chain]] = []
    for shot, rank in reversed(case.rounds(key)):
        if shot.tier == "pulse":
            continue
        chain = rank.records.get("chain")
        if not isinstance(chain, Chain) or (found and _start(chain) != _start(found[-1][1])):
            break
        found.append((shot.at_s, chain))
    return found[::-1]


def _start(chain: Chain) -> frozenset[tuple[int, str, frozenset[tuple[str, str, tuple[int, ...]]]]]:
    """What the rank itself waits for."""
    return frozenset(
        (one.tid, one.call, frozenset((awaited.way, awaited.target, awaited.peers or ()) for awaited in one.awaits))
        for one in chain.threads
    )


def _roots(case: Case, key: Key, chain: Chain) -> tuple[list[Waiter], str | None]:
    """The thread that stands for the rank, or else the threads that it waits for, and the lock for which it does."""
    thread = judged_thread(case, key)
    tid = thread.stack.tid if thread is not None else key[1]
    own = [one for one in chain.threads if one.tid == tid and one.awaits]
    if own:
        return own, None
    if held := lock_holder(case, key, tid):
        return [one for one in chain.threads if one.tid == held[1] and one.awaits], held[0]
    stack = case.facts(StackFacts)[key]
    waits = FOR_THREADS.search(stack.op or "") or stack.op in ("select", "poll") or stack.phase == "input"
    return [one for one in chain.threads if one.awaits] if waits else [], None


def _busy(case: Case, key: Key, series: Sequence[tuple[float, Chain]]) -> Collection[int]:
    """The processes of a chain that have worked, or appeared, since the wait began."""
    (start_s, first), (end_s, last) = series[0], series[-1]
    before = {one.pid: one for one in first.others}
    enough_s = PIPE_CPU_S + IDLE_CORES * (end_s - start_s)
    return {
        one.pid
        for one in last.others
        if one.state == "R"
        or one.pid not in before
        or one.cpu_s - before[one.pid].cpu_s > enough_s
        or (one.moved or 0) - (before[one.pid].moved or 0) >= ACTIVE_BYTES
    }


def _polling(series: Sequence[tuple[float, Chain]], busy: Collection[int]) -> frozenset[int]:
    """The processes that only sleep, again and again: by themselves, or in children that sleep."""
    seconds = series[-1][0] - series[0][0]
    if seconds < STALL_S:
        return frozenset()
    looks = [{one.pid: one for one in chain.others} for _, chain in series]
    return _waiting_for_naps(looks, seconds) | (_napping(looks) - frozenset(busy))


def _waiting_for_naps(looks: Sequence[Mapping[int, Waiter]], seconds: float) -> frozenset[int]:
    """The processes that wait for a child that sleeps, and then for the next: `until [ -r F ]; do sleep 1; done`.

    What a child has read counts as moved by its parent once it is reaped, so that this says nothing of the parent.
    """
    naps = [{pid: child for pid, one in look.items() if (child := _sleeping_child(one, look))} for look in looks]
    return frozenset(
        pid
        for pid, child in naps[-1].items()
        if all(pid in asleep for asleep in naps)
        and any(asleep[pid] != child for asleep in naps)
        and looks[-1][pid].cpu_s - looks[0][pid].cpu_s <= PIPE_CPU_S + IDLE_CORES * seconds
    )


def _napping(looks: Sequence[Mapping[int, Waiter]]) -> frozenset[int]:
    """The processes that every look found asleep for some time, and that woke up in between: some bytes moved."""
    asleep = frozenset.intersection(
        *(frozenset(pid for pid, one in look.items() if one.call == "time") for look in looks)
    )
    return frozenset(pid for pid in asleep if (looks[-1][pid].moved or 0) > (looks[0][pid].moved or 0))


def _sleeping_child(waiter: Waiter, others: Mapping[int, Waiter]) -> int | None:
    """The only child for which a process waits, if it sleeps for some time."""
    children = [pid for one in waiter.awaits if one.way == "child" for pid in one.peers or ()]
    child = others.get(children[0]) if len(children) == 1 else None
    return child.pid if child is not None and child.call == "time" else None


@dataclass(frozen=True, slots=True)
class _Graph:
    """The waits of the processes behind one rank."""

    case: Case
    key: Key
    others: Mapping[int, Waiter]
    busy: Collection[int]  # processes that work
    polling: Collection[int]  # processes that only sleep, again and again
    _certain: dict[int, bool] = field(default_factory=dict)  # results of `is_certain`, by PID; False while asked

    def paths(
        self, waiter: Waiter, links: tuple[Link, ...] = ()
    ) -> Iterator[tuple[tuple[Link, ...], str, Waiter | None]]:
        """Every way through the chain: its links, how it ends, and the last process."""
        before = links[-1][0].pid if links else waiter.pid
        behind = ((one, pid) for one in waiter.awaits for pid in self.peers(waiter, one) or (None,))
        for awaited, pid in behind:
            if links and _takes_requests(awaited, before):
                continue  # it would take requests
            way = (*links, (waiter, awaited))
            peer = self.others.get(pid) if pid is not None else None
            if peer is None:
                yield way, "circle" if pid == self.key[1] else _end_without_peer(awaited), None
                continue
            end = self.end(peer, waiter.pid)
            if end in ("sleeps", "timer") and awaited.way in CONNECTED:
                end = "silent"
            if end in ("sleeps", "timer") and awaited.inherited:
                end = "inherited"
            if end is None and len(way) < MAX_DEPTH and all(peer.pid != other.pid for other, _ in way):
                for path in self.paths(peer, way):
                    # The buffer is full, and the process that should read from it waits for something else.
                    unread = not links and waiter.writes and path[1] in ("clients", "unknown")
                    yield (way, "silent", peer) if unread else path
            else:
                yield way, end or "circle", peer

    def end(self, waiter: Waiter, before: int) -> str | None:
        """How a chain ends at this process, for which process `before` waits. None: it waits for something itself."""
        if waiter.state in STOPPED:
            return "stopped"
        if waiter.state in DEAD:
            return "dead"
        if waiter.pid in self.polling:
            return "polls"
        if waiter.pid in self.busy:
            return "runs"
        if (self.key[0], waiter.pid) in self.case.ranks:
            return "rank"
        if waiter.locked:
            return "locked"
        if waiter.call == "time":
            return "timer"
        return "sleeps" if all(_takes_requests(one, before) for one in waiter.awaits) else None

    def peers(self, waiter: Waiter, awaited: Awaited) -> tuple[int, ...]:
        """The processes that can end a wait, without the one that waits if there is any other."""
        peers = awaited.peers or ()
        return tuple(pid for pid in peers if pid != waiter.pid) or peers

    def is_certain(self, root: Waiter) -> bool:
        """Every process that could end the wait of this thread is unable to."""
        return bool(root.awaits) and all(self._has_no_end(root, awaited) for awaited in root.awaits)

    def _has_no_end(self, waiter: Waiter, awaited: Awaited) -> bool:
        peers = self.peers(waiter, awaited)
        if not peers:
            return _end_without_peer(awaited) in CERTAIN
        return all(self._is_unable(self.others.get(pid), waiter.pid) for pid in peers)

    def _is_unable(self, waiter: Waiter | None, before: int) -> bool:
        if waiter is None:
            return False
        end = self.end(waiter, before)
        if end is not None:
            return end in CERTAIN
        if waiter.pid not in self._certain:
            self._certain[waiter.pid] = False  # a circle proves nothing
            self._certain[waiter.pid] = self.is_certain(waiter)
        return self._certain[waiter.pid]


def _takes_requests(awaited: Awaited, before: int) -> bool:
    """A server waits for its clients, among them perhaps process `before`."""
    return awaited.way == "clients" or (awaited.way == "unix" and awaited.peers == (before,))


def _end_without_peer(awaited: Awaited) -> str:
    if awaited.way in ("pipe", "fifo"):
        return "nobody" if awaited.peers == () else "unknown"
    if awaited.way == "tcp":
        return "silent"
    if awaited.way == "clients":
        return "clients"
    return "disk" if awaited.way == "file" and REMOTE.match(awaited.filesystem or "") else "unknown"


def _silent_s(case: Case, links: Sequence[Link], last: Waiter | None, watched_s: float) -> float:
    """Seconds for which nothing has come, at least: since the last byte on the way, or as long as the job is idle.

    A process of the chain that is younger than that has not been waited for all the time.
    """
    ages = [awaited.silent_s for _, awaited in links if awaited.silent_s is not None]
    if ages:
        return min(ages)
    idle_s = case.job(NetworkJob).idle_s or 0.0
    waited_for = [*(waiter for waiter, _ in links[1:]), *([last] if last is not None else [])]
    ages_s = [waiter.age_s for waiter in waited_for if waiter.age_s is not None]
    return max(watched_s, min([idle_s, *ages_s]) if links[0][1].way == "child" else 0.0)


def _cut(links: Sequence[Link], silent_s: float) -> str | None:
    """How long the rank's own connection has retransmitted without an answer; None: it has not, or not for long."""
    awaited = links[0][1]
    if awaited.way != "tcp" or awaited.unanswered < DEAD_REPEATS or silent_s <= DEAD_AFTER_S:
        return None
    return f"retransmitted {awaited.unanswered} times without an answer, nothing arrived for {silent_s:.0f} s"


def _is_awaited(case: Case, key: Key, endless: bool) -> bool:
    """Other ranks wait for this one, in an operation in which it does not hand out work that it may be waiting for.

    Where the wait ends at processes of `ENDLESS`, it is a wait for no work.
    """
    ops: Mapping[Key, str] = case.once("waits for peers", lambda: _waits(case))
    fed: frozenset[Key] = case.once("waits for work", lambda: frozenset(k for k in ops if HANDS_OUT.search(ops[k])))
    return not ops.keys() <= {key} and (endless or fed <= {key})


def _waits(case: Case) -> Mapping[Key, str]:
    """The operation of each rank that waits for its peers."""
    stack = case.facts(StackFacts)
    waiting = (
        one for one in stack if stack[one].waits or (stack[one].phase == "startup" and stack[one].op != "import")
    )
    return {one: stack[one].op or "" for one in waiting}


# --- as text --------------------------------------------------------------------------------------


def _text(case: Case, key: Key, links: Sequence[Link], end: str, last: Waiter | None, silent_s: float) -> str:
    """The chain in one sentence, without its subject."""
    parts = []
    for (waiter, awaited), peer in zip(links, [*(waiter for waiter, _ in links[1:]), last], strict=True):
        name = process_name(case, key, peer) if peer is not None else None
        if name is None and end == "circle":
            name = f"rank {case.ranks[key].target.rank} itself"
        parts.append(_format_link(waiter, awaited, name))
    return ", which ".join(parts) + _format_end(end, silent_s)


def _format_link(waiter: Waiter, awaited: Awaited, peer: str | None) -> str:
    """`peer`: the process on the other side, as shown to people; None: there is none, or it is not known."""
    match awaited.way:
        case "pipe":
            return f"waits on a pipe {'to' if waiter.writes else 'from'} {peer}" if peer else "waits on a pipe"
        case "fifo":
            of = f" of {peer}" if peer else ""
            return f"{'writes to' if waiter.writes else 'reads'} the named pipe {awaited.target}{of}"
        case "unix":
            verb = "writes to" if waiter.writes and peer else "waits on"
            return f"{verb} a Unix socket" + (f" of {peer}" if peer else "")
        case "tcp":
            return _format_connection(waiter, awaited, peer)
        case "clients":
            return f"waits for clients at {awaited.target}"
        case "child":
            return f"waits for its child {peer}" if peer else "waits for a child process"
        case "lock":
            return f"waits for the lock on {awaited.target}, held by {peer or 'a process that hangdoc does not see'}"
        case "file":
            on = f" ({awaited.filesystem})" if awaited.filesystem else ""
            return f"{'writes to' if waiter.writes else 'reads'} {awaited.target}{on}"
        case "futex":
            return "waits for a lock in shared memory"
    return f"waits on {awaited.target}"


def _format_connection(waiter: Waiter, awaited: Awaited, peer: str | None) -> str:
    if awaited.state == "syn_sent":
        return f"connects to {awaited.target}"
    at = awaited.target if peer is None else f"{awaited.target}, a connection to {peer}"
    at += "" if awaited.accepted or peer is None else " that nobody accepts"
    return f"{'sends to' if waiter.writes else 'reads from'} {at}"


def _format_end(end: str, silent_s: float) -> str:
    match end:
        case "stopped":
            return ", which is stopped"
        case "dead":
            return ", which is dead"
        case "locked":
            return ", whose threads all wait for locks of their own process"
        case "nobody":
            return ": no process has its other end open"
        case "silent":
            return f": no byte for {silent_s:.0f} s"
        case "sleeps":
            return ", which does not run"
        case "runs":
            return ", which works"
        case "timer":
            return ", which sleeps for some time"
        case "polls":
            return ", which only sleeps, again and again"
        case "inherited":
            return ", which inherited it when it was forked"
        case "rank" | "clients" | "unknown":
            return ""
    return f": nothing for {silent_s:.0f} s"


def process_name(case: Case, key: Key, waiter: Waiter) -> str:
    """The rank of a process, "rank 3"; of any other process "PID 71 (curl)"."""
    evidence = case.ranks.get((key[0], waiter.pid))
    number = evidence.target.rank if evidence is not None else None
    return f"PID {waiter.pid} ({waiter.command})" if number is None else f"rank {number}"


ANALYSIS = ChainDetector()
