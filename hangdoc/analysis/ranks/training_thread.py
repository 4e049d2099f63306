"""Which thread of a rank trains: the main one, unless that only waits while a thread started for training works.

Ray, executors and notebooks run the training loop in a thread of its own. While that thread is in plain Python, nothing
in its frames shows that it trains. So a thread counts as one that trains if a thread that starts in the same function
was seen in a collective or in torch's backward, optimizer or modules, on any rank, in any look.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.call_path import CallPath, Thread, per_path, thread_in, threads_of
from hangdoc.analysis.ranks.phases import GPU, WAITING, ProcessContext, phase_of
from hangdoc.analysis.ranks.process_context import is_busy, process_context
from hangdoc.evidence import Source, Stack, Stacks

TRAINS = frozenset({"backward", "optimizer", "forward"})  # operations of a thread that computes
# Functions that wait for another thread of the process to finish.
FOR_THREAD = re.compile(
    r"/threading\.py:(join|_wait_for_tstate_lock)$|/concurrent/futures/\w+\.py:(result|wait|shutdown)$"
)

RPC_CALLS = "torch/distributed/rpc/internal.py"  # `_run_function` runs a call of a peer
RPC_SHUTDOWN = "rpc shutdown"  # operation of a thread that waits until no rank has a call to make

Phase = tuple[str, "str | None"]
Start = tuple[tuple[str, str], ...]  # file and function of its outermost frames, up to the first of the user
MAIN: Start = ()


def training_thread(case: Case, key: Key) -> int | None:
    """Index of the thread that represents a rank, in `threads_of`; None: its stacks were not seen."""
    known: dict[Key, int | None] = case.once("training threads", dict)
    if key not in known:
        threads, stacks = threads_of(case, key), case.record(key, "stacks")
        context = process_context(case, key, is_busy(case.record(key, "cpu")), stacks) if threads else None
        known[key] = _choose(case, threads, context) if context else None
    return known[key]


def in_look(case: Case, thread: Thread, stacks: Stacks, source: Source | None) -> Thread:
    """The thread in another look at the same rank; if it did not run yet, the one that starts in the same function."""
    own = thread.stack
    for same in (lambda other: (other.tid, other.name) == (own.tid, own.name), lambda other: other.name == own.name):
        found = next(filter(same, stacks.threads), None)
        if found is not None:
            return thread_in(case, found, stacks, source)
    threads = [thread_in(case, stack, stacks, source) for stack in stacks.threads]
    return next((other for other in threads if start(other.path) == start(thread.path)), threads[0])


def phase(case: Case, path: CallPath, context: ProcessContext) -> Phase:
    """`phase_of`, derived once a path and context."""
    known: dict[tuple[CallPath, ProcessContext], Phase] = case.once("phases", dict)
    found = known.get((path, context))
    if found is None:
        found = known[path, context] = phase_of(path, context)
    return found


@per_path
def start(path: CallPath) -> Start:
    """Where a thread starts: equal for threads that run the same function, whatever their lines."""
    steps = path.steps[: path.own[0] + 1] if path.own else path.steps
    return tuple([(step.file, step.function) for step in steps])


def _choose(case: Case, threads: Sequence[Thread], context: ProcessContext) -> int:
    if len(threads) == 1:
        return 0
    main = _main([thread.stack for thread in threads])
    phases = [phase(case, thread.path, context) for thread in threads]
    others = [at for at, thread in enumerate(threads) if at != main and (_trains(phases[at]) or thread.path.own)]
    if phases[main] == ("collective", RPC_SHUTDOWN):
        calls = [at for at in others if threads[at].path.own and runs_remote_call(threads[at].path)]
        if calls:  # what a peer has asked for is all that the rank does
            return max(calls, key=lambda at: (_trains(phases[at]), -at))
    idle = phases[main][0] in ("idle", "unknown")
    if not idle and not (others and _is_parked(case, threads[main].path, phases[main], context)):
        return main
    if others:
        counts, path = _starts(case), threads[main].path
        if not counts.get(MAIN) or _awaits_thread(path):
            trained = [at for at in others if counts.get(start(threads[at].path))]
            if trained:
                return max(trained, key=lambda at: (counts[start(threads[at].path)], _trains(phases[at]), -at))
    works = [at for at, (found, _) in enumerate(phases) if found in WAITING or found in (GPU, "input", "checkpoint")]
    if idle and works:
        return works[0]
    own = [at for at in others if threads[at].path.own]
    return own[0] if own and not threads[main].path.own else main


def _main(stacks: Sequence[Stack]) -> int:
    return next((at for at, stack in enumerate(stacks) if stack.name == "MainThread"), 0)


def _trains(found: Phase) -> bool:
    return found[0] in WAITING or found[0] == GPU or (found[0] == "compute" and found[1] in TRAINS)


def _is_parked(case: Case, path: CallPath, found: Phase, context: ProcessContext) -> bool:
    """True of a thread that would wait if no other thread of its process ran."""
    if found != ("compute", None):
        return False
    alone = phase(case, path, context._replace(busy=False))
    return alone[0] == "idle" and (alone[1] is not None or not path.own)


@per_path
def runs_remote_call(path: CallPath) -> bool:
    """True of a thread that runs what a peer has called."""
    return any(step.function == "_run_function" and step.file.endswith(RPC_CALLS) for step in path.steps)


@per_path
def _awaits_thread(path: CallPath) -> bool:
    return any(FOR_THREAD.search(f"{step.file}:{step.function}") for step in path.steps)


def _starts(case: Case) -> Mapping[Start, int]:
    """How often threads that start there were seen to train, over all ranks and looks; MAIN: the main threads."""
    return case.once("training starts", lambda: _count(case))


def _count(case: Case) -> Mapping[Start, int]:
    found: Counter[Start] = Counter()
    for key in case.ranks:
        seen: set[int] = set()
        for _, rank in (*case.rounds(key), (None, case.ranks[key])):
            stacks, source = rank.records.get("stacks"), rank.records.get("source")
            if isinstance(stacks, Stacks) and stacks.threads and id(stacks) not in seen:
                seen.add(id(stacks))
                context = process_context(case, key, is_busy(rank.records.get("cpu")), stacks)
                main = _main(stacks.threads)
                for at, stack in enumerate(stacks.threads):
                    path = thread_in(case, stack, stacks, source).path
                    if _trains(phase(case, path, context)):
                        found[MAIN if at == main else start(path)] += 1
    return found
