"""Analysis `stack`: the phase of each rank, from its frames and whether anything of it runs.

Backward parks the main thread while an autograd thread works, and MPI spins while it waits: a rank is judged by all its
threads, and native frames beat a guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hangdoc.analysis import Case, Key
from hangdoc.analysis.phases import WAITING, Circumstances, phase_of
from hangdoc.analysis.process import is_stopped
from hangdoc.analysis.story import Step, Story, tell, user_step
from hangdoc.evidence import Branch, Environ, Frame, Groups, Process, Source, Stack, Stacks

GROUP_THREADS = re.compile(r"gloo|pt_nccl|^nccl")  # comm of the threads that a process group keeps
MPI_LAUNCH = re.compile(r"^(OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK)$")
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
    thread: str | None = None  # name of the thread the story is about
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
    chains = {key: _chain(case.record(key, "stacks"), one.thread) for key, one in facts.items()}
    told = {chains[key]: one for key, one in facts.items() if one.native}
    return {
        key: replace(one, phase=told[chains[key]].phase, op=told[chains[key]].op, waits=told[chains[key]].waits)
        if not one.native and one.phase not in ("stopped", "exited") and chains[key] in told
        else one
        for key, one in facts.items()
    }


def _chain(stacks: Stacks | None, thread: str | None) -> tuple[tuple[str, str, int | None], ...]:
    frames = next((s.frames for s in (stacks.threads if stacks else ()) if s.name == thread), ())
    return tuple((frame.file, frame.function, frame.line) for frame in frames if not frame.native)


def rank_facts(case: Case, key: Key) -> StackFacts:
    """The facts of one rank from its newest records."""
    process = case.record(key, "cpu")
    if case.ranks[key].alive is False:
        return _without_stack("exited", None)
    stopped = is_stopped(case, key)
    busy = is_busy(process) if isinstance(process, Process) else None
    stacks = case.record(key, "stacks")
    if not isinstance(stacks, Stacks) or not stacks.threads:
        return _without_stack("stopped" if stopped else "unknown", busy)
    return _from_stacks(
        stacks,
        case.record(key, "source"),
        circumstances(case, key, busy, stacks),
        stopped,
        _default_group(case.record(key, "groups")),
    )


def _default_group(groups: Groups | None) -> int | None:
    return next((group.address for group in groups.groups if group.default), None) if groups else None


def _from_stacks(
    stacks: Stacks, source: Source | None, about: Circumstances, stopped: bool, default: int | None
) -> StackFacts:
    told = [(stack, tell(stack, source, stacks.globals)) for stack in stacks.threads]
    phases = [phase_of(stack, story, about) for stack, story in told]
    chosen = _main(told, phases)
    (stack, story), (phase, op) = told[chosen], phases[chosen]
    if stopped:
        phase = "stopped"
    user = user_step(story)
    branch = guard(user)
    together = [(thread, op) for thread, (phase, op) in zip(told, phases, strict=True) if phase in WAITING]
    groups = {_group(one.frames, default) for (one, _), _ in together}
    return StackFacts(
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
        in_backward=any(step.function == "_engine_run_backward" for step in story),
        leaf=story[-1].site if story else None,
        native_leaf=_native_leaf(stack),
        native=stacks.native,
        busy=about.busy,
        thread=stack.name,
        collective_threads=len(together),
        collectives=tuple(_told(stack, story, op) for (stack, story), op in together),
        shared_group=len(groups) < len(together) if together else None,
        spins=about.busy if phase in WAITING else None,
    )


def _told(stack: Stack, story: Story, op: str | None) -> str:
    user = user_step(story)
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


def story_of(case: Case, key: Key) -> list[Step]:
    """The story of the thread a rank is judged by; empty where its stacks were not seen."""
    stacks = case.record(key, "stacks")
    if not isinstance(stacks, Stacks) or not stacks.threads:
        return []
    return main_story(stacks, case.record(key, "source"), case.rank_facts["stack"][key].thread)


def main_story(stacks: Stacks, source: Source | None, thread: str | None) -> list[Step]:
    stack = next((s for s in stacks.threads if s.name == thread), stacks.threads[0])
    return tell(stack, source, stacks.globals)


def is_busy(process: Process) -> bool:
    """True while a thread of the process, other than a process group's own, is on a core."""
    return any(t.state == "R" for t in process.threads if not HARNESS_THREADS.search(t.comm))


def circumstances(case: Case, key: Key, busy: bool | None, stacks: Stacks) -> Circumstances:
    process, environ = case.record(key, "cpu"), case.record(key, "environ")
    group = isinstance(process, Process) and any(GROUP_THREADS.search(t.comm) for t in process.threads)
    mpi = isinstance(environ, Environ) and any(MPI_LAUNCH.match(name) for name in environ.variables)
    return Circumstances(busy, mpi, group, stacks.native)


def _main(told: Sequence[tuple[Stack, Story]], phases: Sequence[tuple[str, str | None]]) -> int:
    """The thread that tells the rank's story: the main one, unless it merely waits for another that works."""
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
