"""Analysis `stack`: the phase of each rank, from its frames and whether anything of it runs.

The knowledge is the table `phases.yaml`; this module only matches. Backward parks the main thread while an autograd
thread works, and MPI spins while it waits: a rank is judged by all its threads, and native frames beat a guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import yaml

from hangdoc.analysis import Case, Key
from hangdoc.analysis.story import Step, Story, is_library, tell, user_step
from hangdoc.evidence import Branch, Environ, Frame, Process, Source, Stack, Stacks

PHASES = (
    "collective", "p2p", "compute", "input", "checkpoint", "compile", "startup", "teardown", "idle", "stopped",
    "exited", "unknown",
)  # fmt: skip
WAITING = frozenset({"collective", "p2p"})
GROUP_THREADS = re.compile(r"gloo|pt_nccl|^nccl")  # comm of the threads that a process group keeps
MPI_LAUNCH = re.compile(r"^(OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK)$")
HARNESS_THREADS = re.compile(r"gloo|pt_tcpstore|^nccl|pt_nccl")  # run now and then without the rank doing anything


@dataclass(frozen=True, slots=True)
class StackFacts:
    """What one rank is doing."""

    phase: str  # one of PHASES
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
    spins: bool | None = None  # waits with a busy thread, as MPI and NCCL do


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of phases.yaml."""

    phase: str
    op: str
    function: re.Pattern[str] | None
    file: re.Pattern[str] | None
    native: re.Pattern[str] | None
    calls: re.Pattern[str] | None
    when: str | None
    mpi: bool
    group: bool
    weak: bool


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What else decides which entries of the table may fit."""

    busy: bool | None
    mpi: bool
    group: bool
    native: bool


@lru_cache(maxsize=1)
def table() -> tuple[Entry, ...]:
    """The entries of phases.yaml, in order."""
    rows = yaml.safe_load(files("hangdoc.analysis").joinpath("phases.yaml").read_text())
    return tuple(_entry(row) for row in rows)


def _entry(row: dict[str, Any]) -> Entry:
    def pattern(name: str) -> re.Pattern[str] | None:
        return re.compile(row[name]) if name in row else None

    return Entry(
        phase=row["phase"],
        op=row["op"],
        function=pattern("function"),
        file=pattern("file"),
        native=pattern("native"),
        calls=pattern("calls"),
        when=row.get("when"),
        mpi=bool(row.get("mpi")),
        group=bool(row.get("group")),
        weak=bool(row.get("weak")),
    )


def phase_of(stack: Stack, story: Story, about: Circumstances) -> tuple[str, str | None]:
    """Phase and operation of one thread."""
    for entry in table():
        if _allowed(entry, about):
            op = _fit(entry, stack.frames, story)
            if op is not None:
                return entry.phase, op
    return ("compute" if about.busy else "idle" if about.busy is False else "unknown"), None


def _allowed(entry: Entry, about: Circumstances) -> bool:
    if (entry.when == "idle" and about.busy is not False) or (entry.when == "busy" and not about.busy):
        return False
    return not ((entry.mpi and not about.mpi) or (entry.group and not about.group))


def _fit(entry: Entry, frames: Sequence[Frame], story: Story) -> str | None:
    names: dict[str, str] = {}
    if entry.function or entry.file:
        frame = next((f for f in frames if not f.native and _fits(entry, f)), None)
        if frame is None:
            return None
        names["function"] = frame.function.rsplit(".", 1)[-1]
    if entry.native:
        found = next(
            (m for f in frames if f.native and (m := entry.native.search(f.function))),
            None,
        )
        if found is None:
            return None
        names["1"] = found.group(1) if found.re.groups else ""
    if entry.calls:
        own = story[-1] if story and (entry.weak is False or not is_library(story[-1].file)) else None
        calls = own.place.calls if own and own.place else ()
        call = next((m for name in calls if (m := entry.calls.search(name))), None)
        if call is None:
            return None
        names["call"] = call.group(1) if call.re.groups else call.group(0).lstrip(".")
    return re.sub(r"\{(\w+)\}", lambda m: names.get(m.group(1), ""), entry.op).lower()


def _fits(entry: Entry, frame: Frame) -> bool:
    name = frame.function.rsplit(".", 1)[-1]
    if entry.function and not entry.function.search(name):
        return False
    return not (entry.file and not entry.file.search(frame.file))


@dataclass(slots=True)
class StackAnalysis:
    name: str = "stack"
    order: int = 10
    rank_facts: type | None = StackFacts
    job_facts: type | None = None

    def derive(self, case: Case) -> tuple[dict[Key, StackFacts], None]:
        return {key: rank_facts(case, key) for key in case.ranks}, None


def rank_facts(case: Case, key: Key) -> StackFacts:
    """The facts of one rank from its newest records."""
    process = case.record(key, "cpu")
    if case.ranks[key].alive is False:
        return _without_stack("exited", None)
    state = process.state if isinstance(process, Process) else None
    busy = is_busy(process) if isinstance(process, Process) else None
    stacks = case.record(key, "stacks")
    if not isinstance(stacks, Stacks) or not stacks.threads:
        return _without_stack("stopped" if state in ("T", "t") else "unknown", busy)
    return _from_stacks(
        stacks,
        case.record(key, "source"),
        _circumstances(case, key, busy, stacks),
        state,
    )


def _from_stacks(stacks: Stacks, source: Source | None, about: Circumstances, state: str | None) -> StackFacts:
    told = [(stack, tell(stack, source, stacks.globals)) for stack in stacks.threads]
    phases = [phase_of(stack, story, about) for stack, story in told]
    chosen = _main(told, phases)
    (stack, story), (phase, op) = told[chosen], phases[chosen]
    if state in ("T", "t"):
        phase = "stopped"
    user = user_step(story)
    branch = guard(user)
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
        collective_threads=sum(phase in WAITING for phase, _ in phases),
        spins=about.busy if phase in WAITING else None,
    )


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


def _circumstances(case: Case, key: Key, busy: bool | None, stacks: Stacks) -> Circumstances:
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
