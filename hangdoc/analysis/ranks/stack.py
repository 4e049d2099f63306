"""Analysis `stack`: the phase of each rank, from its frames and whether anything of it runs.

Backward parks the main thread while an autograd thread works, and MPI spins while it waits: a rank is judged by all its
threads, and native frames beat a guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from hangdoc.analysis import Case, Key
from hangdoc.analysis.ranks.call_path import CallPath, Plan, Step, user_step
from hangdoc.analysis.ranks.call_path_cache import (
    JudgedThread,
    chain_in,
    judged_threads,
    path_in,
    plan_in,
    python_chain,
    thread_named,
)
from hangdoc.analysis.ranks.phases import WAITING, Chain, ProcessContext, phase_of
from hangdoc.analysis.ranks.process import is_stopped
from hangdoc.evidence import Branch, Environ, Frame, Process, ProcessGroups, Source, Stack, Stacks
from hangdoc.evidence.logs import Aftermath

GROUP_THREADS = re.compile(r"gloo|pt_nccl|^nccl")  # comm of the threads that a process group keeps
MPI_LAUNCH = frozenset({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
HARNESS_THREADS = re.compile(r"gloo|pt_tcpstore|^nccl|pt_nccl")  # run now and then without the rank doing anything


@dataclass(frozen=True, slots=True)
class StackFacts:
    """What one rank is doing."""

    phase: str  # one of phases.PHASES
    op: str | None = None
    site: str | None = None  # innermost frame of the user's own code: "train (train.py:24)"
    function: str | None = None  # of that frame
    file: str | None = None
    line: int | None = None
    text: str | None = None  # the source line there
    branch: str | None = None  # condition of the innermost `if` around that line
    branch_line: int | None = None
    waits: bool | None = None  # in a collective or point-to-point operation; None: its stacks were not seen
    in_backward: bool = False
    leaf: str | None = None  # innermost Python frame
    native_leaf: str | None = None  # native frames down to the first that tells, innermost first
    native: bool = False  # native frames were seen
    busy: bool | None = None  # a thread of the process was on a core
    thread: str | None = None  # name of the thread the path is about
    collective_threads: int = 0  # threads that are in a collective or point-to-point operation
    collectives: tuple[str, ...] = ()  # what each of them is in: "all_gather in Thread-1, save (ckpt.py:30)"
    shared_group: bool | None = None  # two of them use one process group
    spins: bool | None = None  # waits with a busy thread, as MPI and NCCL do


@dataclass(slots=True)
class StackAnalysis:
    name: str = "stack"
    order: int = 10
    rank_facts: type | None = StackFacts
    job_facts: type | None = None

    def derive(self, case: Case) -> tuple[dict[Key, StackFacts], None]:
        return _shared({key: rank_facts(case, key) for key in case.ranks}, case), None


def _shared(facts: dict[Key, StackFacts], case: Case) -> dict[Key, StackFacts]:
    """What native frames say of one rank holds for every rank with the same Python stack."""
    if not any(one.native for one in facts.values()):
        return facts
    each = {id(one): one for one in facts.values()}  # few: what is told of many is one object
    places = {id(one): id(there.lines) for key, one in facts.items() if (there := judged_threads(case).get(key))}
    told = {places[at]: one for at, one in each.items() if one.native}
    for at, one in each.items():
        if not one.native and one.phase != "stopped" and places.get(at) in told:
            each[at] = _as_told(one, told[places[at]])
    return {key: each[id(one)] for key, one in facts.items()}


@lru_cache(maxsize=64)
def _as_told(one: StackFacts, native: StackFacts) -> StackFacts:
    return replace(one, phase=native.phase, op=native.op, waits=native.waits)


def rank_facts(case: Case, key: Key) -> StackFacts:
    """The facts of one rank from its newest records."""
    if case.ranks[key].alive is False:
        return _without_stack("exited", None)
    facts, at = _last_seen(case, key)
    if at is not None:
        stacks: Stacks = case.ranks[key].records["stacks"]
        judged_threads(case)[key] = JudgedThread(stacks, stacks.threads[at.thread], at.lines, at.plan)
    return facts


def last_seen(case: Case, key: Key) -> StackFacts:
    """What a rank did when it was last seen, be it gone by now."""
    return _last_seen(case, key)[0]


def _last_seen(case: Case, key: Key) -> tuple[StackFacts, _Place | None]:
    records = case.ranks[key].records
    process, stacks = records.get("cpu"), records.get("stacks")
    stopped = is_stopped(case, key)
    busy = is_busy(process) if isinstance(process, Process) else None
    if not isinstance(stacks, Stacks) or not stacks.threads:
        return _without_stack("stopped" if stopped else "unknown", busy), None
    context = process_context(case, key, busy, stacks)
    default = _default_group(records.get("groups"))
    return _from_stacks(case, stacks, records.get("source"), context, stopped, default)


def _default_group(groups: ProcessGroups | None) -> int | None:
    return next((group.address for group in groups.groups if group.default), None) if groups else None


class _Place(NamedTuple):
    """What is told of every rank whose threads are at the same places."""

    facts: StackFacts
    together: Sequence[int]  # threads that wait for other ranks
    thread: int  # that the rank is judged by
    lines: Chain
    plan: Plan


def _from_stacks(
    case: Case, stacks: Stacks, source: Source | None, context: ProcessContext, stopped: bool, default: int | None
) -> tuple[StackFacts, _Place]:
    """What the stacks of one rank tell; ranks that stand at the same place are told once."""
    chains = [chain_in(case, stack) for stack in stacks.threads]
    names = tuple([(stack.name or stack.tid) for stack in stacks.threads])
    where = (tuple(map(id, chains)), names, id(source.places) if source else None, stacks.native, context, stopped)
    known: dict[object, _Place] = case.once("stack facts", dict)
    at = known.get(where)
    if at is None:
        at = known[where] = _place(case, stacks, source, chains, context, stopped)
    if len(at.together) < 2:
        return at.facts, at
    groups = {_group(stacks.threads[i].frames, default) for i in at.together}
    return replace(at.facts, shared_group=len(groups) < len(at.together)), at


def _place(
    case: Case,
    stacks: Stacks,
    source: Source | None,
    chains: Sequence[Chain],
    context: ProcessContext,
    stopped: bool,
) -> _Place:
    paths = [path_in(case, stack, source, stacks) for stack in stacks.threads]
    told = list(zip(stacks.threads, paths, strict=True))
    phases = [phase_of(chain, path, context) for chain, path in zip(chains, paths, strict=True)]
    chosen = _main(told, phases)
    (stack, path), (phase, op) = told[chosen], phases[chosen]
    if stopped:
        phase = "stopped"
    user = user_step(path)
    branch = guard(user)
    together = [i for i, (phase, _) in enumerate(phases) if phase in WAITING]
    facts = StackFacts(
        phase=phase,
        op=op,
        site=user.site if user else None,
        function=user.function if user else None,
        file=user.file if user else None,
        line=user.line if user else None,
        text=user.place.text if user and user.place else None,
        branch=branch.test if branch else None,
        branch_line=branch.line if branch else None,
        waits=phase in WAITING,
        in_backward=any(step.function == "_engine_run_backward" for step in path),
        leaf=path[-1].site if path else None,
        native_leaf=_native_leaf(stack),
        native=stacks.native,
        busy=context.busy,
        thread=stack.name,
        collective_threads=len(together),
        collectives=tuple(_told(*told[i], phases[i][1]) for i in together),
        shared_group=False if together else None,
        spins=context.busy if phase in WAITING else None,
    )
    judged = thread_named(stacks, facts.thread)
    thread = next(i for i, stack in enumerate(stacks.threads) if stack is judged)
    return _Place(facts, together, thread, python_chain(case, judged), plan_in(case, judged, source))


def _told(stack: Stack, path: CallPath, op: str | None) -> str:
    user = user_step(path)
    return f"{op} in {stack.name or f'thread {stack.tid}'}" + (f", {user.site}" if user else "")


def _group(frames: Sequence[Frame], default: int | None) -> int | None:
    """The process group object a thread's collective uses: the one it was called with, else the default one."""
    for frame in frames:
        if frame.file.endswith("torch/distributed/distributed_c10d.py"):
            group = next((v for v in frame.variables or () if v.name == "group" and v.kind != "none"), None)
            return group.address if group else default
    return default


def guard(step: Step | None) -> Branch | None:
    """The innermost `if` with a condition around a frame's line; a script's `__main__` guard is none."""
    branches = step.place.branches if step and step.place else ()
    return next((b for b in reversed(branches) if b.test and "__name__" not in b.test), None)


def is_busy(process: Process) -> bool:
    """True while a thread of the process, other than a process group's own, is on a core."""
    return not all(map(of_harness, [thread.comm for thread in process.threads if thread.state == "R"]))


@lru_cache(maxsize=1024)
def of_harness(comm: str) -> bool:
    """The name of a thread that runs now and then without the rank doing anything."""
    return bool(HARNESS_THREADS.search(comm))


def process_context(case: Case, key: Key, busy: bool | None, stacks: Stacks) -> ProcessContext:
    known: dict[Key, tuple[bool, bool]] = case.once("process_context", dict)
    if key not in known:
        process, environ = case.record(key, "cpu"), case.record(key, "environ")
        mpi = isinstance(environ, Environ) and not MPI_LAUNCH.isdisjoint(environ.variables)
        known[key] = mpi, isinstance(process, Process) and any(map(_of_group, [t.comm for t in process.threads]))
    mpi, group = known[key]
    if busy is None and isinstance(case.record(key, "aftermath"), Aftermath):
        # What is left of a job: a dump tells which threads ran, and of ranks of a job each has a process group.
        busy, group = any(stack.active for stack in stacks.threads), len(case.ranks) > 1
    return _circumstances(busy, mpi, group, stacks.native)


@lru_cache(maxsize=32)
def _circumstances(busy: bool | None, mpi: bool, group: bool, native: bool) -> ProcessContext:
    return ProcessContext(busy, mpi, group, native)


@lru_cache(maxsize=1024)
def _of_group(comm: str) -> bool:
    return bool(GROUP_THREADS.search(comm))


def _main(told: Sequence[tuple[Stack, CallPath]], phases: Sequence[tuple[str, str | None]]) -> int:
    """The thread that tells the rank's path: the main one, unless it merely waits for another that works."""
    main = next((i for i, (stack, _) in enumerate(told) if stack.name == "MainThread"), 0)
    if phases[main][0] in ("idle", "unknown"):
        works = [i for i, (phase, _) in enumerate(phases) if phase in WAITING or phase in ("input", "checkpoint")]
        if works:
            return works[0]
    return main


def _native_leaf(stack: Stack) -> str | None:
    names = [frame.function for frame in stack.frames[:12] if frame.native and not frame.function.startswith("0x")]
    return " <- ".join(names[:4]) or None


def _without_stack(phase: str, busy: bool | None) -> StackFacts:
    return StackFacts(phase, waits=None if phase == "unknown" else False, busy=busy)


ANALYSIS = StackAnalysis()
