"""What a rank waits in: the operation, its process group and, for a send or receive, its peer.

Source: the arguments of the innermost torch.distributed frame (distributed_c10d.py, torch 2.13). Its `group` argument
is looked up, by address, in the rank's record of probe `groups`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hangdoc.analysis import Case, Key
from hangdoc.analysis.fast_dataclass import fast_dataclass
from hangdoc.analysis.ranks.call_path import CallPath, Frames, Thread, is_library, per_path, threads_of
from hangdoc.analysis.ranks.judged_thread import judged_thread
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.analysis.ranks.transfers import awaited, transfers_of
from hangdoc.evidence import Frame, ProcessGroup, ProcessGroups, Stack, Variable, limits

_DISTRIBUTED = "/torch/distributed/"
_C10D = "/torch/distributed/distributed_c10d.py"
_GROUPS = ("group", "process_group", "pg")  # names of torch's arguments; useless as a label
_GLOBAL = ("src", "dst", "peer")  # global rank numbers
_LOCAL = ("group_src", "group_dst", "group_peer")  # rank numbers within the group
_SENDS = ("send", "isend", "send_object_list")
_STARTS = ("isend", "irecv", "P2POp", "batch_isend_irecv")
_BUFFER = "UnboundBuffer::wait"  # gloo: waits for a send or receive started earlier
_TEARDOWN = ("destroy_process_group", "abort_process_group")

Native = Mapping[Frames, Sequence[str]]  # native functions, by the Python frames above them


@dataclass(frozen=True, slots=True)
class Group:
    """A process group; equal on all its members."""

    name: str
    ranks: Sequence[int]  # global rank numbers, by rank in the group; a range if only the size is known
    default: bool  # the default group of the job

    def __hash__(self) -> int:
        return hash((self.name, len(self.ranks), self.default))  # every rank hashes it: not over all ranks


GroupsByAddress = Mapping[int, Group]  # the groups of one rank, by the address of its object


@fast_dataclass(frozen=True, slots=True)
class Wait:
    """What one rank waits in."""

    p2p: bool  # a send or receive, not a collective
    op: str | None
    group: Group | None  # None: unknown
    label: str | None = None  # variable that holds the group in user code
    peer: int | None = None  # p2p: global rank of the peer; None: any, or unknown
    anyone: bool = False  # p2p: receives from any rank
    sends: bool | None = None  # p2p: sends, not receives
    tag: float | None = None  # p2p
    threads: int = 1  # threads of the rank in an operation of this group


class Posted(NamedTuple):
    """A send or receive that a rank has started."""

    sends: bool
    peer: int | None  # global rank; None: any
    tag: float | None  # None: unknown
    group: Group | None


def waits(case: Case) -> dict[Key, Wait]:
    """The wait of every rank that waits for other ranks."""
    stack = case.facts(StackFacts)
    default = _default_group(case)
    native = _native(case, stack)
    return {key: _wait(case, key, facts, default, native) for key, facts in stack.items() if facts.waits}


def posted(case: Case) -> dict[Key, frozenset[Posted]]:
    """The sends and receives that each rank has started and that wait for their counterpart."""
    found: dict[Key, frozenset[Posted]] = {}
    for key in case.ranks:
        if pending := transfers_of(case, key).pending:
            known = {group.address: _group(case, group) for group in _groups(case, key)}
            found[key] = frozenset(Posted(one.sends, one.peer, one.tag, known.get(one.group)) for one in pending)
    return found


def _native(case: Case, stack: Mapping[Key, StackFacts]) -> Native:
    """Native functions by the Python stack above them; native frames are captured on one rank per stack."""
    found: dict[Frames, tuple[str, ...]] = {}
    for key, facts in stack.items():
        if facts.native and (thread := judged_thread(case, key)):
            found.setdefault(thread.path.python, _native_functions(thread.path))
    return found


@per_path
def _native_functions(path: CallPath) -> tuple[str, ...]:
    return tuple([function for function, _, _, native in path.frames if native])


def c10d_frame(stack: Stack) -> Frame | None:
    """The innermost torch.distributed frame with a process group argument, else the innermost c10d frame."""
    innermost = None
    for frame in stack.frames:
        if not frame.native and _DISTRIBUTED in frame.file:
            if _variable(frame, _GROUPS) is not None:
                return frame
            if innermost is None and frame.file.endswith(_C10D):
                innermost = frame
    return innermost


def _default_group(case: Case) -> Group | None:
    """The default group of the job, as known to a rank; else all ranks of the world."""
    for key in case.ranks:
        for group in _groups(case, key):
            if group.default:
                return _group(case, group)
    size = max(
        (limits.valid_world_size(evidence.target.world_size) or 0 for evidence in case.ranks.values()), default=0
    )
    return Group("default_pg", range(size), True) if size else None


def _groups(case: Case, key: Key) -> tuple[ProcessGroup, ...]:
    record = case.record(key, "groups")
    return record.groups if isinstance(record, ProcessGroups) else ()


def _group(case: Case, known: ProcessGroup) -> Group:
    """Interned group: equal groups of different ranks are one object, which makes comparison cheap."""
    interned: dict[tuple[str, int, bool], Group] = case.once("interned groups", dict)
    at = (known.name, id(known.ranks), known.default)
    if at not in interned:
        found = Group(known.name, known.ranks, known.default)
        interned[at] = case.once("groups", dict[Group, Group]).setdefault(found, found)
    return interned[at]


def _wait(case: Case, key: Key, facts: StackFacts, default: Group | None, native: Native) -> Wait:
    thread = judged_thread(case, key)
    if thread is None:
        return Wait(facts.phase == "p2p", facts.op, None)
    known = {group.address: _group(case, group) for group in _groups(case, key)}
    stack = thread.stack
    frame = c10d_frame(stack)
    if frame is None:
        if facts.phase == "collective" and facts.in_backward and facts.op != "wait":  # DDP's reducer
            return Wait(False, facts.op, default)
        transfer = _transfer(case, key, thread, facts, known)
        return transfer or _without_c10d_frame(thread.path, facts, known, native.get(thread.path.python, ()))
    found = _group_of_frame(frame, known, default)
    argument = _variable(frame, _GROUPS)
    label = _label(argument.address, stack, thread.module or ()) if argument and argument.kind != "none" else None
    threads = _threads(threads_of(case, key), thread, frame, known, default, found) if found else 1
    if facts.phase != "p2p":
        return Wait(False, facts.op, found, label, threads=threads)
    number, inner = _number(frame, _GLOBAL), _number(frame, _LOCAL)
    if number is None and inner is not None and found is not None and 0 <= inner < len(found.ranks):
        number = found.ranks[int(inner)]
    sends = frame.function in _SENDS
    anyone = not sends and inner is None and number is None and _variable(frame, ("src",)) is not None
    peer = int(number) if number is not None else None
    return Wait(True, facts.op, found, label, peer, anyone, sends, _number(frame, ("tag",)), threads)


def _transfer(case: Case, key: Key, thread: Thread, facts: StackFacts, known: GroupsByAddress) -> Wait | None:
    """The wait for a send or receive that was started before; None: for none, or for something else."""
    waited = awaited(thread, transfers_of(case, key).pending) if facts.phase == "p2p" else ()
    if not waited:
        return None
    one, *more = waited
    if any(
        (other.sends, other.peer, other.tag, other.group) != (one.sends, one.peer, one.tag, one.group) for other in more
    ):
        return Wait(True, facts.op, None)
    return Wait(True, facts.op, known.get(one.group), None, one.peer, one.peer is None, one.sends, one.tag)


def _without_c10d_frame(path: CallPath, facts: StackFacts, known: GroupsByAddress, native: Sequence[str]) -> Wait:
    """A wait without a c10d frame: for an asynchronous operation, or in MPI. A rank's only group is its group."""
    of_torch = facts.op in ("wait", "wait_tensor") or any(name.startswith(("c10d::", "gloo::")) for name in native)
    only = next(iter(known.values())) if len(known) == 1 and of_torch else None
    started_before = any(_BUFFER in name for name in native) or _starts_p2p(path)
    return Wait(facts.phase == "p2p" or started_before, facts.op, only)


def _starts_p2p(path: CallPath) -> bool:
    """True if the user's function starts sends or receives: then its wait is probably for those."""
    place = path.steps[path.own[-1]].place if path.own else None
    return any(name.rpartition(".")[2] in _STARTS for name in (place.around if place is not None else ()))


def _group_of_frame(frame: Frame, known: GroupsByAddress, default: Group | None) -> Group | None:
    """The group of the operation in a frame; None: unknown."""
    if frame.variables is None:
        return None
    argument = _variable(frame, _GROUPS)
    if argument is None or argument.kind == "none":
        return default
    return None if argument.address is None else known.get(argument.address)


def _threads(
    threads: Sequence[Thread], own: Thread, frame: Frame, known: GroupsByAddress, default: Group | None, group: Group
) -> int:
    """Number of threads in an operation of `group`; `own`, in `frame`, is one of them unless it leaves the group."""
    rest = sum([_in_group(thread.stack, known, default, group) for thread in threads if thread is not own])
    return rest + (frame.function not in _TEARDOWN)


def _in_group(stack: Stack, known: GroupsByAddress, default: Group | None, group: Group) -> bool:
    frame = c10d_frame(stack)
    return frame is not None and frame.function not in _TEARDOWN and _group_of_frame(frame, known, default) == group


def _label(address: int | None, stack: Stack, module: Iterable[Variable]) -> str | None:
    """The name of the object at `address` in user frames, innermost first, or in the script's globals."""
    own = [v for f in stack.frames if not f.native and not is_library(f.file) for v in f.variables or ()]
    names = [v.name for v in (*own, *module) if address is not None and v.address == address]
    return next((name for name in names if name not in _GROUPS), next(iter(names), None))


def _variable(frame: Frame, names: Sequence[str]) -> Variable | None:
    for name in names if frame.variables else ():
        for variable in frame.variables or ():
            if variable.name == name:
                return variable
    return None


def _number(frame: Frame, names: Sequence[str]) -> float | None:
    return next((v.number for v in frame.variables or () if v.name in names and v.number is not None), None)
