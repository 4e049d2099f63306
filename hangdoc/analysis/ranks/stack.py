"""Analysis `stack`: the phase of each rank, from its frames and from whether any of its threads runs.

All threads count: backward parks the main thread while an autograd thread works, and MPI spins while it waits. Native
frames take precedence over a guess from the source line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from hangdoc.analysis import Analysis, Case, Key
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

GROUP_THREADS = re.compile(r"gloo|pt_nccl|^nccl")  # names (comm) of the threads a process group keeps
MPI_LAUNCH = frozenset({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
HARNESS_THREADS = re.compile(r"gloo|pt_tcpstore|^nccl|pt_nccl")  # wake up now and then on an idle rank


@dataclass(frozen=True, slots=True)
class StackFacts:
    """What one rank is doing, from one of its threads: the main one, unless that idles while another works."""

    phase: str  # one of phases.PHASES
    op: str | None = None  # operation within the phase: "all_reduce", "recv", "dataloader", "sleep"
    site: str | None = None  # innermost frame in user code: "train (train.py:24)"
    function: str | None = None  # function of that frame
    file: str | None = None  # its file, with the path
    line: int | None = None
    text: str | None = None  # its source line
    branch: str | None = None  # condition of the innermost `if` around that line
    branch_line: int | None = None
    waits: bool | None = None  # in a collective, send or receive; None: its stacks were not seen
    in_backward: bool = False  # in a backward pass
    leaf: str | None = None  # innermost Python frame: "wait (threading.py:355)"
    native_leaf: str | None = None  # up to four innermost named native frames, innermost first, joined by " <- "
    native: bool = False  # native frames were captured
    busy: bool | None = None  # a thread of the process was running; None: not seen
    thread: str | None = None  # name of the thread described here
    collective_threads: int = 0  # number of threads in a collective, send or receive
    collectives: tuple[str, ...] = ()  # the operation of each: "all_gather in Thread-1, save (ckpt.py:30)"
    shared_group: bool | None = None  # two of these threads use the same process group
    spins: bool | None = None  # waits with a busy thread, as MPI and NCCL do; None: it does not wait


class StackAnalysis(Analysis[StackFacts, None]):
    rank_facts = StackFacts
    seen_by = ("stacks", "aftermath")

    def derive(self, case: Case) -> tuple[dict[Key, StackFacts], None]:
        return _with_native_phases({key: rank_facts(case, key) for key in case.ranks}, case), None


def _with_native_phases(facts: dict[Key, StackFacts], case: Case) -> dict[Key, StackFacts]:
    """Apply the phase found from one rank's native frames to every rank with the same Python stack."""
    if not any(own.native for own in facts.values()):
        return facts
    distinct = {id(own): own for own in facts.values()}  # few: ranks with equal facts share one object
    threads = judged_threads(case)
    lines = {id(own): id(thread.lines) for key, own in facts.items() if (thread := threads.get(key))}
    native = {lines[at]: own for at, own in distinct.items() if own.native}
    for at, own in distinct.items():
        if not own.native and own.phase != "stopped" and lines.get(at) in native:
            distinct[at] = _with_phase_of(own, native[lines[at]])
    return {key: distinct[id(own)] for key, own in facts.items()}


@lru_cache(maxsize=64)
def _with_phase_of(own: StackFacts, native: StackFacts) -> StackFacts:
    return replace(own, phase=native.phase, op=native.op, waits=native.waits)


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
    """The facts of a rank when it was last seen, even if it has ended since."""
    return _last_seen(case, key)[0]


def _last_seen(case: Case, key: Key) -> tuple[StackFacts, _SharedFacts | None]:
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


class _SharedFacts(NamedTuple):
    """Facts shared by ranks whose threads are all at the same frames."""

    facts: StackFacts
    waiting: Sequence[int]  # indices of the threads that wait for other ranks
    thread: int  # index of the thread that represents the rank
    lines: Chain
    plan: Plan


def _from_stacks(
    case: Case, stacks: Stacks, source: Source | None, context: ProcessContext, stopped: bool, default: int | None
) -> tuple[StackFacts, _SharedFacts]:
    """The facts from the stacks of one rank, derived once for all ranks at the same frames."""
    chains = [chain_in(case, stack) for stack in stacks.threads]
    names = tuple([(stack.name or stack.tid) for stack in stacks.threads])
    identity = (tuple(map(id, chains)), names, id(source.places) if source else None, stacks.native, context, stopped)
    known: dict[object, _SharedFacts] = case.once("stack facts", dict)
    at = known.get(identity)
    if at is None:
        at = known[identity] = _thread_facts(case, stacks, source, chains, context, stopped)
    if len(at.waiting) < 2:
        return at.facts, at
    groups = {_group(stacks.threads[i].frames, default) for i in at.waiting}
    return replace(at.facts, shared_group=len(groups) < len(at.waiting)), at


def _thread_facts(
    case: Case,
    stacks: Stacks,
    source: Source | None,
    chains: Sequence[Chain],
    context: ProcessContext,
    stopped: bool,
) -> _SharedFacts:
    paths = [path_in(case, stack, source, stacks) for stack in stacks.threads]
    threads = list(zip(stacks.threads, paths, strict=True))
    phases = [phase_of(chain, path, context) for chain, path in zip(chains, paths, strict=True)]
    chosen = _main(threads, phases)
    (stack, path), (phase, op) = threads[chosen], phases[chosen]
    if stopped:
        phase = "stopped"
    user = user_step(path)
    branch = guard(user)
    waiting = [i for i, (phase, _) in enumerate(phases) if phase in WAITING]
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
        collective_threads=len(waiting),
        collectives=tuple(_format_operation(*threads[i], phases[i][1]) for i in waiting),
        shared_group=False if waiting else None,
        spins=context.busy if phase in WAITING else None,
    )
    judged = thread_named(stacks, facts.thread)
    thread = next(i for i, stack in enumerate(stacks.threads) if stack is judged)
    return _SharedFacts(facts, waiting, thread, python_chain(case, judged), plan_in(case, judged, source))


def _format_operation(stack: Stack, path: CallPath, op: str | None) -> str:
    user = user_step(path)
    return f"{op} in {stack.name or f'thread {stack.tid}'}" + (f", {user.site}" if user else "")


def _group(frames: Sequence[Frame], default: int | None) -> int | None:
    """Address of the process group that a thread's collective uses: its `group` argument, else the default group."""
    for frame in frames:
        if frame.file.endswith("torch/distributed/distributed_c10d.py"):
            group = next((v for v in frame.variables or () if v.name == "group" and v.kind != "none"), None)
            return group.address if group else default
    return default


def guard(step: Step | None) -> Branch | None:
    """The innermost `if` around a frame's line, other than the script's `__main__` guard."""
    branches = step.place.branches if step and step.place else ()
    return next((b for b in reversed(branches) if b.test and "__name__" not in b.test), None)


def is_busy(process: Process) -> bool:
    """True if a thread of the process runs, other than a process group's own threads."""
    return not all(map(of_harness, [thread.comm for thread in process.threads if thread.state == "R"]))


@lru_cache(maxsize=1024)
def of_harness(comm: str) -> bool:
    """True if a thread of this name (comm) wakes up now and then on an idle rank."""
    return bool(HARNESS_THREADS.search(comm))


def process_context(case: Case, key: Key, busy: bool | None, stacks: Stacks) -> ProcessContext:
    known: dict[Key, tuple[bool, bool]] = case.once("process_context", dict)
    if key not in known:
        process, environ = case.record(key, "cpu"), case.record(key, "environ")
        mpi = isinstance(environ, Environ) and not MPI_LAUNCH.isdisjoint(environ.variables)
        known[key] = mpi, isinstance(process, Process) and any(map(_of_group, [t.comm for t in process.threads]))
    mpi, group = known[key]
    if busy is None and isinstance(case.record(key, "aftermath"), Aftermath):
        # Post mortem there is no process: the dump marks active threads, and several ranks imply a process group.
        busy, group = any(stack.active for stack in stacks.threads), len(case.ranks) > 1
    return _circumstances(busy, mpi, group, stacks.native)


@lru_cache(maxsize=32)
def _circumstances(busy: bool | None, mpi: bool, group: bool, native: bool) -> ProcessContext:
    return ProcessContext(busy, mpi, group, native)


@lru_cache(maxsize=1024)
def _of_group(comm: str) -> bool:
    return bool(GROUP_THREADS.search(comm))


def _main(threads: Sequence[tuple[Stack, CallPath]], phases: Sequence[tuple[str, str | None]]) -> int:
    """Index of the thread that represents the rank: the main one, unless it idles while another works."""
    main = next((i for i, (stack, _) in enumerate(threads) if stack.name == "MainThread"), 0)
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
