"""Analysis `locks`: does a rank wait for a lock of its own process that no thread will ever release?

Each thread that waits is followed to the thread that has the lock, and so on: a ring is a deadlock, and so is a lock
whose thread has ended. Who has a plain lock is known only where the source of a living thread says so; if none does,
nobody will release it where every other thread of the process only waits for the process itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.call_path import Step, is_library, tell, user_step
from hangdoc.analysis.ranks.process import process_looks, was_held
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import Process, Source, Stack, Stacks
from hangdoc.evidence.locks import Locks, LockWait

STANDS_S = 1.9  # so long the threads must not have run: as long as `stall` watches before it says so
MIN_LOOKS = 4
UNDISTURBED = 2  # times between two looks: what others' debuggers woke says nothing
GIVES = frozenset({"release", "acquire", "notify", "notify_all", "set", "put", "submit", "__exit__"})
SLEEPS = frozenset({"sleep", "wait"})


@dataclass(frozen=True, slots=True)
class MutexFacts:
    """One rank; None: not seen."""

    stuck: bool | None = None  # its main thread waits for what no thread of the process will ever do
    how: str | None = None  # ring: threads wait for one another; itself: one thread, twice; nobody: no thread has it
    lock: str | None = None  # as the source has it: "self.lock"
    reentrant: bool | None = None
    sure: bool | None = None  # who has the lock was read, not concluded
    lines: tuple[str, ...] = ()  # one for each thread that cannot go on


UNSEEN = MutexFacts()
FREE = MutexFacts(stuck=False)


@dataclass(slots=True)
class MutexAnalysis:
    name: str = "locks"
    order: int = 40
    rank_facts: type | None = MutexFacts
    job_facts: type | None = None

    def derive(self, case: Case) -> tuple[dict[Key, MutexFacts], None]:
        return {key: _facts(case, key) for key in case.ranks}, None


def _facts(case: Case, key: Key) -> MutexFacts:
    stacks, locks = case.record(key, "stacks"), case.record(key, "locks")
    if not isinstance(stacks, Stacks) or not isinstance(locks, Locks):
        return UNSEEN
    if not locks.waits or case.ranks[key].alive is False or not (still := _still(case, key)):
        return FREE
    threads = Threads(stacks, locks, still, _told(stacks, case.record(key, "source")))
    stack: StackFacts = case.rank_facts["stack"][key]
    dead = dict(threads.dead())
    main = next((s.tid for s in stacks.threads if s.name == "MainThread"), stacks.threads[0].tid)
    if not dead or not (main in dead or (stack.phase == "idle" and threads.nobody_can(main, dead))):
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


@dataclass(slots=True)
class Threads:
    """The threads of one process, of which some wait for locks."""

    stacks: Stacks
    locks: Locks
    still: frozenset[int]  # threads that have not run for long, in a wait that only the process itself can end
    told: Mapping[int, Sequence[Step]]  # what each does, outermost frame first
    waits: dict[int, LockWait] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.waits = {wait.tid: wait for wait in self.locks.waits if wait.tid in self.still}

    def dead(self) -> Iterator[tuple[int, str]]:
        """The threads that wait for a lock in vain, and how."""
        for tid in self.waits:
            path, owner = [tid], self.owner(tid)
            while owner in self.waits and owner not in path:
                path.append(owner)
                owner = self.owner(owner)
            if owner in path:
                yield tid, "itself" if self.owner(tid) == tid else "ring"
            elif self._nobodys(path[-1], owner):
                yield tid, "nobody"

    def owner(self, tid: int) -> int | None:
        """The thread that has the lock it waits for; 0: a thread that has ended; None: not known."""
        wait = self.waits[tid]
        if wait.owner is not None:
            return wait.owner
        having = sorted((not h.found, h.tid) for h in self.locks.holdings if h.semaphore == wait.semaphore)
        return having[0][1] if having else None

    def known(self, tid: int) -> bool:
        """Whether the owner of the lock it waits for was read from memory, not told from names, nor concluded."""
        wait, owner = self.waits[tid], self.owner(tid)
        found = any(h.found for h in self.locks.holdings if h.semaphore == wait.semaphore and h.tid == owner)
        return owner is not None and (wait.owner is not None or found)

    def _nobodys(self, tid: int, owner: int | None) -> bool:
        if owner == 0:
            return True
        return owner is None and self.waits[tid].found and self.nobody_can(tid, self.waits)

    def nobody_can(self, tid: int, waiting: Mapping[int, object]) -> bool:
        """Every other thread waits in vain, or waits for this process itself, or only wakes now and then to sleep."""
        others = [stack for stack in self.stacks.threads if stack.tid != tid]
        return all(s.tid in waiting or self._parked(s) or self._bystander(s) for s in others)

    def _parked(self, stack: Stack) -> bool:
        """In `queue.get`, `Condition.wait`, `join`: some other Python thread must end that."""
        frame = next((frame for frame in stack.frames if not frame.native), None)
        inner = frame.file if frame else ""
        return stack.tid in self.still and "/lib/python3" in inner and "-packages/" not in inner

    def _bystander(self, stack: Stack) -> bool:
        """A thread of a library, or one that sleeps in a loop and gives nothing back in any of its functions."""
        if any(holding.tid == stack.tid for holding in self.locks.holdings):
            return False
        own = [step for step in self.told[stack.tid] if not is_library(step.file)]
        if not own:
            return not stack.active
        last = own[-1].place
        gives = {name.rpartition(".")[2] for step in own if step.place for name in step.place.around} & GIVES
        if last is None or gives or any(step.place is None for step in own):
            return False
        sleeps = {name.rpartition(".")[2] for name in last.calls} & SLEEPS
        return bool(sleeps) and any(loop.header.startswith("while") for loop in last.loops)

    def line(self, tid: int) -> str:
        """`MainThread waits for self.a at flush (cache.py:31), which Thread-1 has since put (cache.py:20)`."""
        wait, owner = self.waits[tid], self.owner(tid)
        return f"{self._name(tid)} waits for {wait.name} at {self._site(tid)}, which {self._has(tid, wait, owner)}"

    def _has(self, tid: int, wait: LockWait, owner: int | None) -> str:
        if not owner:
            return "a thread that has ended acquired" if owner == 0 else "no living thread has in its source"
        held = next((h for h in self.locks.holdings if (h.tid, h.semaphore) == (owner, wait.semaphore)), None)
        where = f" since {held.function} ({held.file.rsplit('/', 1)[-1]}:{held.line})" if held else ""
        return f"{'it' if owner == tid else self._name(owner)} has{where}"

    def _name(self, tid: int) -> str:
        return next((s.name for s in self.stacks.threads if s.tid == tid and s.name), None) or f"thread {tid}"

    def _site(self, tid: int) -> str:
        step = user_step(self.told[tid])
        return step.site if step else "?"


def _told(stacks: Stacks, source: Source | None) -> dict[int, list[Step]]:
    return {stack.tid: tell(stack, source, stacks.globals) for stack in stacks.threads}


def _still(case: Case, key: Key) -> frozenset[int]:
    """The threads that were parked in all of the last looks, for long enough, and were not woken in between."""
    looks = [(at, {w.tid: w.semaphore for w in r.waits}, r.parked) for at, r in _locks(case, key)]
    if len(looks) < MIN_LOOKS or looks[-1][0] - looks[0][0] < STANDS_S:
        return frozenset()
    end = looks[-1][0]
    since = next(at for at, _, _ in reversed(looks[: -MIN_LOOKS + 1]) if end - at >= STANDS_S)
    window = [(waits, parked) for at, waits, parked in looks if at >= since]
    records = [record for at, record in process_looks(case, key) if at >= since]
    ran = [(_runs(one), _runs(other)) for one, other in pairwise(records) if not was_held(one, other)]
    if len(ran) < UNDISTURBED:
        return frozenset()
    return frozenset(
        tid
        for tid in window[-1][1]
        if all(tid in parked and waits.get(tid) == window[-1][0].get(tid) for waits, parked in window)
        and all(before.get(tid) == after.get(tid) for before, after in ran)
    )


def _runs(record: Process) -> dict[int, tuple[int | None, float]]:
    return {thread.tid: (thread.voluntary, thread.cpu_s) for thread in record.threads}


def _locks(case: Case, key: Key) -> Iterator[tuple[float, Locks]]:
    for at, record in case.series(key, "locks"):
        if isinstance(record, Locks):
            yield at, record


ANALYSIS = MutexAnalysis()
