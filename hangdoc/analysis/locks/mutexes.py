"""Analysis `locks`: does a rank wait for a lock that no thread of its process will ever release?

The wait chain runs from each waiting thread to the lock's holder, and on. A ring is a deadlock; so is a lock held by a
thread that has exited. A plain lock does not record its holder: it is known only if the source of a living thread shows
it. Without a known holder, the lock is dead if every other thread of the process waits for the process itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.ranks.call_path import CallPath, threads_of
from hangdoc.analysis.ranks.judged_thread import judged_thread
from hangdoc.analysis.ranks.process import process_looks, was_held
from hangdoc.analysis.ranks.progress import ProgressFacts
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.analysis.thresholds import MIN_LOOKS, STALL_S, STILL_S, UNDISTURBED
from hangdoc.evidence import Process, Stack, Stacks
from hangdoc.evidence.locks import Locks, LockWait
from hangdoc.evidence.logs import Aftermath

RELEASES = frozenset({"release", "acquire", "notify", "notify_all", "set", "put", "submit", "__exit__"})
# The innermost frame of a thread that waits for another one: a lock, a queue, an event, a pool's result.
FOR_THREADS = re.compile(r"/lib/python3[^/]*/(threading|queue|concurrent/futures/\w+)\.py$")
_RUNS_TASKS = re.compile(r"/asyncio/events\.py:_run$")  # asyncio.Handle, which calls back into a task
SLEEPS = frozenset({"sleep", "wait"})
STOPS_LOOP = ", and its event loop runs no other task meanwhile"
MAX_OTHERS = 3  # listed beside the thread that trains


@dataclass(frozen=True, slots=True)
class MutexFacts:
    """Locks of one rank. None: not seen."""

    stuck: bool | None = None  # its main thread waits for a lock, or a thread, that is deadlocked
    # ring: threads wait for each other; itself: a thread acquires twice; queue: the holder waits for the very thread
    # that waits for its lock, as in `queue.put`; nobody: no holder; asleep: it waits for an event, a queue or a result,
    # and every thread that could provide it waits as well
    how: str | None = None
    lock: str | None = None  # the lock's name in the source: "self.lock"; None: no lock
    reentrant: bool | None = None  # it is a reentrant lock (RLock)
    sure: bool | None = None  # the holder was read from memory, not inferred
    lines: tuple[str, ...] = ()  # one sentence for each deadlocked thread
    suspected: bool | None = None  # its newest stacks look deadlocked, but too few undisturbed looks confirm it


UNSEEN = MutexFacts()
FREE = MutexFacts(stuck=False)


class MutexDetector(Detector[MutexFacts, None]):
    rank_facts = MutexFacts

    def derive(self, case: Case) -> tuple[dict[Key, MutexFacts], None]:
        return {key: _facts(case, key) for key in case.ranks}, None


def _facts(case: Case, key: Key) -> MutexFacts:
    stacks, locks = case.record(key, "stacks"), case.record(key, "locks")
    if not isinstance(stacks, Stacks) or not isinstance(locks, Locks):
        return UNSEEN
    if case.ranks[key].alive is False:
        return FREE
    if isinstance(case.record(key, "aftermath"), Aftermath):  # one look, at a rank that is presumed to stand still
        return _judged(case, key, stacks, locks, frozenset(locks.parked))
    facts = _judged(case, key, stacks, locks, _parked(case, key))
    if facts.stuck:
        return facts
    return replace(FREE, suspected=_judged(case, key, stacks, locks, frozenset(locks.parked)).stuck)


def _judged(case: Case, key: Key, stacks: Stacks, locks: Locks, parked: frozenset[int]) -> MutexFacts:
    """The facts if these threads are the parked ones."""
    if not parked:
        return FREE
    threads = Threads(stacks, locks, parked, {t.stack.tid: t.path for t in threads_of(case, key)})
    stack = case.facts(StackFacts)[key]
    dead = dict(threads.dead())
    thread = judged_thread(case, key)
    main = thread.stack.tid if thread else key[1]
    if not dead:
        return _asleep(case, key, threads, main) if stack.phase == "idle" else FREE
    if not (main in dead or (stack.phase == "idle" and threads.unreleasable(main, dead))):
        return FREE
    first = threads.waits.get(main) or threads.waits[next(iter(dead))]
    return MutexFacts(
        stuck=True,
        how=dead[first.tid],
        lock=first.name,
        reentrant=first.reentrant,
        sure=all(threads.known(tid) for tid in dead),
        lines=tuple(threads.line(tid) for tid in sorted(dead, key=lambda tid: tid != main)),
    )


def _asleep(case: Case, key: Key, threads: Threads, main: int) -> MutexFacts:
    """The facts of a rank without a deadlocked lock."""
    if main in threads.waits or not all(map(waits_for_thread, threads.stacks.threads)):
        return FREE
    own = next((stack for stack in threads.stacks.threads if stack.tid == main), None)
    progress = case.facts(ProgressFacts)[key]
    idle = (progress.window_s or 0.0) >= STALL_S and not progress.compute_share and not progress.wait_share
    if main not in threads.parked and not (idle and own and _polls_queue(own)):
        return FREE
    who, where = threads.name(main), threads.site(main)
    line = f"{who} waits at {where} for another thread of its process, but none of its threads runs"
    others = (
        f"{threads.name(tid)} waits at {site}{STOPS_LOOP if threads.runs_event_loop(tid) else ''}"
        for tid, site in threads.in_user_code()
        if tid != main
    )
    return MutexFacts(stuck=True, how="asleep", sure=False, lines=(line, *islice(others, MAX_OTHERS)))


def _polls_queue(stack: Stack) -> bool:
    """True of `queue.get(timeout=...)`: whatever it waits for between two tries, only a thread can fill the queue."""
    frames = [frame for frame in stack.frames if not frame.native][:2]
    return any(frame.function == "get" and frame.file.endswith("/queue.py") for frame in frames)


def lock_holder(case: Case, key: Key, tid: int) -> tuple[str, int] | None:
    """The lock that a thread waits for, and the thread that holds it: the last one of the chain, if that waits for no
    lock itself. None: it waits for no lock, or the holder is not known.
    """
    stacks, locks = case.record(key, "stacks"), case.record(key, "locks")
    if not isinstance(stacks, Stacks) or not isinstance(locks, Locks):
        return None
    threads = Threads(stacks, locks, frozenset(locks.parked), {})
    if tid not in threads.waits:
        return None
    seen, holder = {tid}, threads.owner(tid)
    while holder in threads.waits and holder not in seen:
        seen.add(holder)
        holder = threads.owner(holder)
    return (threads.waits[tid].name, holder) if holder and holder not in seen else None


def waits_for_thread(stack: Stack) -> bool:
    """True if only another thread of the process can end the wait that a thread is in."""
    innermost = next((frame for frame in stack.frames if not frame.native), None)
    return not stack.active and innermost is not None and bool(FOR_THREADS.search(innermost.file))


@dataclass(slots=True)
class Threads:
    """The threads of one process and their waits for locks."""

    stacks: Stacks
    locks: Locks
    parked: frozenset[int]  # threads that have not run for STILL_S, in a wait that only their own process can end
    paths: Mapping[int, CallPath]  # by thread
    waits: dict[int, LockWait] = field(default_factory=dict)  # by thread

    def __post_init__(self) -> None:
        self.waits = {wait.tid: wait for wait in self.locks.waits if wait.tid in self.parked}

    def dead(self) -> Iterator[tuple[int, str]]:
        """Deadlocked threads, and how: ring, itself, queue or nobody."""
        for tid in self.waits:
            path, owner = [tid], self.owner(tid)
            while owner in self.waits and owner not in path:
                path.append(owner)
                owner = self.owner(owner)
            if owner in path:
                yield tid, "itself" if self.owner(tid) == tid else "ring"
            elif owner and self._awaits_waiting(owner):
                yield tid, "queue"
            elif self._unowned(path[-1], owner):
                yield tid, "nobody"

    def _awaits_waiting(self, tid: int) -> bool:
        """True if this holder of a lock waits for another thread, as in `queue.put`, and no other thread can run."""
        own = next((stack for stack in self.stacks.threads if stack.tid == tid), None)
        return own is not None and waits_for_thread(own) and self.unreleasable(tid, self.waits)

    def owner(self, tid: int) -> int | None:
        """Holder of the lock that a thread waits for. 0: a thread that has exited; None: unknown."""
        wait = self.waits[tid]
        if wait.owner is not None:
            return wait.owner
        holders = sorted((not h.found, h.tid) for h in self.locks.holdings if h.semaphore == wait.semaphore)
        return holders[0][1] if holders else None

    def known(self, tid: int) -> bool:
        """True if the holder was read from memory, not inferred from names or from the source."""
        wait, owner = self.waits[tid], self.owner(tid)
        found = any(h.found for h in self.locks.holdings if h.semaphore == wait.semaphore and h.tid == owner)
        return owner is not None and (wait.owner is not None or found)

    def _unowned(self, tid: int, owner: int | None) -> bool:
        """No thread holds the lock, or its holder has exited."""
        if owner == 0:
            return True
        return owner is None and self.waits[tid].found and self.unreleasable(tid, self.waits)

    def unreleasable(self, tid: int, waiting: Mapping[int, object]) -> bool:
        """No other thread can end the wait: each is in `waiting`, waits for its own process, or is a bystander."""
        others = [stack for stack in self.stacks.threads if stack.tid != tid]
        return all(s.tid in waiting or self._waits_in_stdlib(s) or self._bystander(s) for s in others)

    def _waits_in_stdlib(self, stack: Stack) -> bool:
        """In `queue.get`, `Condition.wait` or `join`: only another Python thread can end that."""
        frame = next((frame for frame in stack.frames if not frame.native), None)
        inner = frame.file if frame else ""
        return stack.tid in self.parked and "/lib/python3" in inner and "-packages/" not in inner

    def _bystander(self, stack: Stack) -> bool:
        """An idle library thread, or a thread that sleeps in a loop and releases nothing in any of its functions."""
        if any(holding.tid == stack.tid for holding in self.locks.holdings):
            return False
        path = self.paths[stack.tid]
        own = [path.steps[depth] for depth in path.own]
        if not own:
            return not stack.active
        last = own[-1].place
        releases = {name.rpartition(".")[2] for step in own if step.place for name in step.place.around} & RELEASES
        if last is None or releases or any(step.place is None for step in own):
            return False
        sleeps = {name.rpartition(".")[2] for name in last.calls} & SLEEPS
        return bool(sleeps) and any(loop.header.startswith("while") for loop in last.loops)

    def line(self, tid: int) -> str:
        """`MainThread waits for self.a at flush (cache.py:31), held by Thread-1 since put (cache.py:20)`."""
        wait, owner = self.waits[tid], self.owner(tid)
        site = self.site(tid)
        at = f" at {site}" if site else ""
        return f"{self.name(tid)} waits for {wait.name}{at}, {self._format_holder(tid, wait, owner)}"

    def _format_holder(self, tid: int, wait: LockWait, owner: int | None) -> str:
        if not owner:
            return "held by a thread that has exited" if owner == 0 else "with no known holder among living threads"
        held = next((h for h in self.locks.holdings if (h.tid, h.semaphore) == (owner, wait.semaphore)), None)
        where = f" since {held.function} ({held.file.rsplit('/', 1)[-1]}:{held.line})" if held and held.line else ""
        return f"held by {'itself' if owner == tid else self.name(owner)}{where}"

    def in_user_code(self) -> Iterator[tuple[int, str]]:
        """The threads with a frame of the user's own code, and where they are."""
        yield from ((tid, path.user.site) for tid, path in self.paths.items() if path.own and path.user)

    def runs_event_loop(self, tid: int) -> bool:
        """It waits within a callback of its loop of asyncio, not for the next event."""
        frames = [frame for frame in self.paths[tid].frames if not frame[3]] if tid in self.paths else []
        at = next((at for at, frame in enumerate(frames) if _RUNS_TASKS.search(f"{frame[1]}:{frame[0]}")), 0)
        return at > 0 and "selectors.py" not in frames[0][1]

    def name(self, tid: int) -> str:
        return next((s.name for s in self.stacks.threads if s.tid == tid and s.name), None) or f"thread {tid}"

    def site(self, tid: int) -> str | None:
        """Its innermost line of user code, else the native function that asks for the lock."""
        path = self.paths.get(tid)
        if path is None:  # its stack is of another look: a text shows the process twice
            return None
        if path.user is not None:
            return path.user.site
        named = (name for name, _, _, native in path.frames if native and "::" in name)
        return next(named, "").partition("(")[0] or None


def _parked(case: Case, key: Key) -> frozenset[int]:
    """Threads parked in all recent looks, for at least STILL_S and MIN_LOOKS, without running in between."""
    looks = [(at, {w.tid: w.semaphore for w in r.waits}, r.parked) for at, r in _locks(case, key)]
    if len(looks) < MIN_LOOKS or looks[-1][0] - looks[0][0] < STILL_S:
        return frozenset()
    end = looks[-1][0]
    since = next(at for at, _, _ in reversed(looks[: 1 - int(MIN_LOOKS)]) if end - at >= STILL_S)
    window = [(waits, parked) for at, waits, parked in looks if at >= since]
    records = [record for at, record in process_looks(case, key) if at >= since]
    ran = [(_runs(before), _runs(after)) for before, after in pairwise(records) if not was_held(before, after)]
    if len(ran) < UNDISTURBED:
        return frozenset()
    return frozenset(
        tid
        for tid in window[-1][1]
        if all(tid in parked and waits.get(tid) == window[-1][0].get(tid) for waits, parked in window)
        and all(before.get(tid) == after.get(tid) for before, after in ran)
    )


def _runs(record: Process) -> dict[int, tuple[int | None, float]]:
    """Voluntary context switches and CPU time of each thread; they advance if it runs."""
    return {thread.tid: (thread.voluntary, thread.cpu_s) for thread in record.threads}


def _locks(case: Case, key: Key) -> Iterator[tuple[float, Locks]]:
    for at, record in case.series(key, "locks"):
        if isinstance(record, Locks):
            yield at, record


ANALYSIS = MutexDetector()
