"""Analysis `stack`: the phase of each rank, from its frames and from whether any of its threads runs.

All threads count: backward parks the main thread while an autograd thread works, and MPI spins while it waits. Native
frames take precedence over a guess from the source line.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.ranks.call_path import CallPath, Frames, Step, per_path, threads_of
from hangdoc.analysis.ranks.conditions import parts_by_rank
from hangdoc.analysis.ranks.judged_thread import judged_thread
from hangdoc.analysis.ranks.phases import GPU, WAITING, ProcessContext, phase_of, waits
from hangdoc.analysis.ranks.process import is_stopped
from hangdoc.analysis.ranks.process_context import is_busy, process_context
from hangdoc.analysis.ranks.training_thread import TRAINS, training_thread
from hangdoc.analysis.ranks.transfers import awaited, transfers_of
from hangdoc.analysis.thresholds import AT_ONE_PLACE
from hangdoc.evidence import Branch, Frame, ProcessGroups, Stacks
from hangdoc.evidence.logs import Aftermath

# Phases and operations that may be a wait for a send or receive; None: an unknown operation.
_UNCERTAIN = frozenset({"collective", "p2p", "idle", "unknown"})
# Phases of a rank that may wait for its GPU, and of one that is blocked in something else.
_MAY_LAUNCH = frozenset({"compute", "idle", "unknown"})
_BLOCKED = frozenset({"input", "checkpoint", "compile", "teardown", "idle"})
# FSDP, and the stages of ZeRO, reduce-scatter gradients and gather parameters, in forward and in backward.
SHARDED = re.compile(r"torch/distributed/(_composable/)?fsdp/|(^|/)deepspeed/runtime/zero/")
_READ = re.compile(r"\b([A-Za-z_]\w*)\.(?:item|tolist|cpu|numpy)\(")  # copies a tensor from the GPU
PRESUMED_GPU = "C code, probably for the GPU"
_MAY_TRANSFER = frozenset({None, "wait", "wait for a send or receive", "sends and receives of a pipeline stage"})


@dataclass(frozen=True, slots=True)
class StackFacts:
    """What one rank is doing, from its thread that trains (see `training_thread`)."""

    phase: str  # one of phases.PHASES
    op: str | None = None  # operation within the phase: "all_reduce", "recv", "dataloader", "sleep"
    site: str | None = None  # innermost frame in user code: "train (train.py:24)"
    function: str | None = None  # function of that frame
    file: str | None = None  # its file, with the path
    line: int | None = None
    text: str | None = None  # its source line
    branch: str | None = None  # condition of the innermost `if` around that line
    rank_branch: str | None = None  # condition around that line that asks which rank it is: "rank == 0"
    # It waits for its peers: in a collective, send or receive, or, post mortem, for the GPU. None: not seen.
    waits: bool | None = None
    on_gpu: bool = False  # it waits for the GPU: what that waits for is a collective called before, or other work
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
        facts = _with_native_phases({key: rank_facts(case, key) for key in case.ranks}, case)
        facts = _with_sharded_backward(facts, case)
        return _with_presumed_gpu(_with_transfers(_with_reduced(facts, case), case), case), None


def _with_native_phases(facts: dict[Key, StackFacts], case: Case) -> dict[Key, StackFacts]:
    """Apply the phase found from one rank's native frames to every rank with the same Python stack."""
    if not any(own.native for own in facts.values()):
        return facts
    lines = {
        key: thread.path.python
        for key, own in facts.items()
        if own.phase != "exited" and (thread := judged_thread(case, key))
    }
    native = {lines[key]: own for key, own in facts.items() if key in lines and own.native and own.phase != "stopped"}
    return {
        key: _with_phase_of(own, native[lines[key]])
        if key in lines and not own.native and own.phase != "stopped" and lines[key] in native
        else own
        for key, own in facts.items()
    }


def _with_sharded_backward(facts: dict[Key, StackFacts], case: Case) -> dict[Key, StackFacts]:
    """A backward pass that waits reduces gradients, by DDP's all_reduce unless frames of a rank show sharding."""
    waiting = [key for key, own in facts.items() if own.in_backward and own.op == "all_reduce"]
    if not waiting:
        return facts
    paths = (thread.path for key in case.ranks for thread in threads_of(case, key))
    if not any(map(_shards, paths)):
        return facts
    return facts | {key: replace(facts[key], op="backward") for key in waiting}


@per_path
def _shards(path: CallPath) -> bool:
    return any(SHARDED.search(file) for _, file, _, native in path.frames if not native)


def _with_transfers(facts: dict[Key, StackFacts], case: Case) -> dict[Key, StackFacts]:
    """Name the send or receive of each rank that waits for one in `Work.wait()`."""
    for key, own in facts.items():
        uncertain = own.phase in _UNCERTAIN and own.op in _MAY_TRANSFER
        pending = transfers_of(case, key).pending if uncertain else ()
        if pending and (thread := judged_thread(case, key)) and (waited := awaited(thread, pending)):
            ops = {"isend" if one.sends else "irecv" for one in waited}
            facts[key] = replace(own, phase="p2p", op=" or ".join(sorted(ops)), waits=True)
    return facts


def _with_reduced(facts: dict[Key, StackFacts], case: Case) -> dict[Key, StackFacts]:
    """A rank that reads a GPU tensor it has just passed to a collective waits for that collective."""
    for key, own in facts.items():
        if own.on_gpu and own.waits and (thread := judged_thread(case, key)) and (user := thread.path.user):
            hands = user.place.hands if user.place else ()
            read = {found[1] for found in _READ.finditer(own.text or "")}
            if op := next((one.op for one in hands if one.name in read and one.line < user.line), None):
                facts[key] = replace(own, phase="collective", op=op, on_gpu=False)
    return facts


def _with_presumed_gpu(facts: dict[Key, StackFacts], case: Case) -> dict[Key, StackFacts]:
    """Post mortem, most ranks are at one place in C code, and no rank waits: presumably they wait for their GPU.

    Without native frames and source, `.item()` and the launch of a kernel show no more. Some rank has to be blocked
    elsewhere: otherwise, all of them may just compute.
    """
    if any(own.waits for own in facts.values()):
        return facts
    at: dict[Frames, list[Key]] = {}
    for key, own in facts.items():
        if not isinstance(case.record(key, "aftermath"), Aftermath):
            return facts
        unclear = own.phase in _MAY_LAUNCH and (own.op is None or own.op in TRAINS) and not own.native
        if unclear and not own.text and (thread := judged_thread(case, key)):
            at.setdefault(thread.path.python, []).append(key)
    most = max(at.values(), key=len, default=[])
    others = [own.phase if own.op else None for key, own in facts.items() if key not in most]
    if len(most) < AT_ONE_PLACE * len(facts) or not others or not _BLOCKED.issuperset(others):
        return facts
    return facts | {key: replace(facts[key], phase=GPU, op=PRESUMED_GPU, waits=True, on_gpu=True) for key in most}


@lru_cache(maxsize=64)
def _with_phase_of(own: StackFacts, native: StackFacts) -> StackFacts:
    return replace(own, phase=native.phase, op=native.op, waits=native.waits)


def rank_facts(case: Case, key: Key) -> StackFacts:
    """The facts of one rank from its newest records."""
    if case.ranks[key].alive is False:
        return _without_stack("exited", None)
    return last_seen(case, key)


def last_seen(case: Case, key: Key) -> StackFacts:
    """The facts of a rank when it was last seen, even if it has ended since."""
    records = case.ranks[key].records
    process, stacks = records.get("cpu"), records.get("stacks")
    stopped = is_stopped(case, key)
    busy = is_busy(process)
    if not isinstance(stacks, Stacks) or not stacks.threads:
        return _without_stack("stopped" if stopped else "unknown", busy)
    threads, context = threads_of(case, key), process_context(case, key, busy, stacks)
    chosen = training_thread(case, key) or 0
    paths = tuple([thread.path for thread in threads])
    names = tuple([thread.stack.name or thread.stack.tid for thread in threads])
    known: dict[Hashable, tuple[StackFacts, Sequence[int]]] = case.once("stack facts", dict)
    at = paths, names, context, stopped, chosen
    if at not in known:
        known[at] = _facts(paths, names, context, stopped, chosen)
    facts, waiting = known[at]
    if len(waiting) < 2:
        return facts
    default = _default_group(records.get("groups"))
    groups = {_group(threads[i].stack.frames, default) for i in waiting}
    return replace(facts, shared_group=len(groups) < len(waiting))


def _default_group(groups: ProcessGroups | None) -> int | None:
    return next((group.address for group in groups.groups if group.default), None) if groups else None


def _facts(
    paths: Sequence[CallPath], names: Sequence[str | int], context: ProcessContext, stopped: bool, chosen: int
) -> tuple[StackFacts, Sequence[int]]:
    """The facts of all ranks with threads of these names at these paths, and the threads that wait in a group.

    A remote call uses no process group.
    """
    phases = [phase_of(path, context) for path in paths]
    path, name, (phase, op) = paths[chosen], names[chosen], phases[chosen]
    if stopped:
        phase = "stopped"
    user = path.user
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
        rank_branch=next((b.test for b in _branches(user) if parts_by_rank(b.test)), None),
        waits=not stopped and waits(phase, context),
        on_gpu=phase == GPU,
        in_backward=any(step.function == "_engine_run_backward" for step in path.steps),
        leaf=path.steps[-1].site if path.steps else None,
        native_leaf=_native_leaf(path.frames),
        native=context.native,
        busy=context.busy,
        thread=name if isinstance(name, str) else None,
        collective_threads=len(waiting),
        collectives=tuple(_format_operation(names[i], paths[i], phases[i][1]) for i in waiting),
        shared_group=False if waiting else None,
        spins=context.busy if phase in WAITING else None,
    )
    return facts, [i for i in waiting if not (phases[i][1] or "").startswith("rpc")]


def _format_operation(name: str | int, path: CallPath, op: str | None) -> str:
    thread = name if isinstance(name, str) else f"thread {name}"
    return f"{op} in {thread}" + (f", {path.user.site}" if path.user else "")


def _group(frames: Sequence[Frame], default: int | None) -> int | None:
    """Address of the process group that a thread's collective uses: its `group` argument, else the default group."""
    for frame in frames:
        if frame.file.endswith("torch/distributed/distributed_c10d.py"):
            group = next((v for v in frame.variables or () if v.name == "group" and v.kind != "none"), None)
            return group.address if group else default
    return default


def guard(step: Step | None) -> Branch | None:
    """The innermost `if` around a frame's line, other than the script's `__main__` guard."""
    return next((b for b in _branches(step) if "__name__" not in b.test), None)


def _branches(step: Step | None) -> list[Branch]:
    """The conditions around a line, innermost first."""
    return [b for b in reversed(step.place.branches) if b.test] if step and step.place else []


def _native_leaf(frames: Frames) -> str | None:
    names = [function for function, _, _, native in frames[:12] if native and not function.startswith("0x")]
    return " <- ".join(names[:4]) or None


def _without_stack(phase: str, busy: bool | None) -> StackFacts:
    return StackFacts(phase, waits=None if phase == "unknown" else False, busy=busy)


ANALYSIS = StackAnalysis()
