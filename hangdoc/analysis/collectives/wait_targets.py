"""What a rank waits in: the operation, its process group, and the other rank where there is one.

From the arguments of the innermost frame of torch.distributed (2.13: distributed_c10d.py) and the rank's record of
probe `groups`, in which the `group` of that frame is found by its address.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hangdoc.analysis import Case, Key
from hangdoc.analysis.fast_dataclass import fast_dataclass
from hangdoc.analysis.ranks.call_path import is_library
from hangdoc.analysis.ranks.call_path_cache import python_chain, thread_named
from hangdoc.analysis.ranks.stack import StackFacts
from hangdoc.evidence import Frame, ProcessGroup, ProcessGroups, Source, Stack, Stacks, Variable, limits

_DISTRIBUTED = "/torch/distributed/"
_C10D = "/torch/distributed/distributed_c10d.py"
_GROUPS = ("group", "process_group", "pg")  # an argument of torch's functions; as a name for people it says nothing
_GLOBAL = ("src", "dst", "peer")  # numbered over the job
_LOCAL = ("group_src", "group_dst", "group_peer")  # numbered within the group
_SENDS = ("send", "isend", "send_object_list")
_STARTS = ("isend", "irecv", "P2POp", "batch_isend_irecv")
_BUFFER = "UnboundBuffer::wait"  # gloo: a send or receive that has been started before
_TEARDOWN = ("destroy_process_group", "abort_process_group")


Native = Mapping[int, Sequence[str]]  # by the identity of the Python frames over them, which the case keeps


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as all of its members know it."""

    name: str
    ranks: Sequence[int]  # global, by rank in the group; a range where only the size is known
    default: bool

    def __hash__(self) -> int:
        return hash((self.name, len(self.ranks), self.default))  # not of every rank in it, for every rank in it


GroupsByAddress = Mapping[int, Group]  # the groups of one rank, by the address of the object there


@fast_dataclass(frozen=True, slots=True)
class Wait:
    """What one rank waits in."""

    p2p: bool
    op: str | None
    group: Group | None  # None: which one was not seen
    label: str | None = None  # what the user's code calls the group
    peer: int | None = None  # p2p: the other rank, global; None: from anyone, or not seen
    anyone: bool = False  # p2p: it takes from any rank
    sends: bool | None = None  # p2p
    tag: float | None = None  # p2p
    threads: int = 1  # of the rank, that are in an operation of this group


def waits(case: Case) -> dict[Key, Wait]:
    """What each rank that waits for others waits in."""
    stack: Mapping[Key, StackFacts] = case.rank_facts["stack"]
    default = _default_group(case)
    native = _native(case, stack)
    return {key: _wait(case, key, facts, default, native) for key, facts in stack.items() if facts.waits}


def _native(case: Case, stack: Mapping[Key, StackFacts]) -> Native:
    """Native functions by the Python stack over them: one rank a place is looked at so closely."""
    found: dict[int, tuple[str, ...]] = {}
    for key, facts in stack.items():
        if facts.native:
            thread = thread_named(case.record(key, "stacks"), facts.thread)
            place = id(python_chain(case, thread))
            if place not in found:
                found[place] = tuple([frame.function for frame in thread.frames if frame.native])
    return found


def c10d_frame(stack: Stack) -> Frame | None:
    """The innermost frame of torch.distributed that has a process group among its variables; else of c10d itself."""
    innermost = None
    for frame in stack.frames:
        if not frame.native and _DISTRIBUTED in frame.file:
            if _variable(frame, _GROUPS) is not None:
                return frame
            if innermost is None and frame.file.endswith(_C10D):
                innermost = frame
    return innermost


def _default_group(case: Case) -> Group | None:
    """The default group of the job: what a rank knows of it, or every rank there is."""
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
    """What its members know as one group is one object, so that it is compared at a glance."""
    told: dict[tuple[str, int, bool], Group] = case.once("told groups", dict)
    at = (known.name, id(known.ranks), known.default)
    if at not in told:
        found = Group(known.name, known.ranks, known.default)
        told[at] = case.once("groups", dict[Group, Group]).setdefault(found, found)
    return told[at]


def _wait(case: Case, key: Key, facts: StackFacts, default: Group | None, native: Native) -> Wait:
    stacks, groups = case.record(key, "stacks"), _groups(case, key)
    known = {group.address: _group(case, group) for group in groups}
    if not isinstance(stacks, Stacks) or not stacks.threads:
        return Wait(facts.phase == "p2p", facts.op, None)
    stack = thread_named(stacks, facts.thread)
    frame = c10d_frame(stack)
    if frame is None:
        if facts.phase == "collective" and facts.in_backward and facts.op != "wait":  # the reducer of DDP
            return Wait(False, facts.op, default)
        return _without_c10d_frame(
            stack, facts, known, case.record(key, "source"), native.get(id(python_chain(case, stack)), ())
        )
    found = _group_of_frame(frame, known, default)
    argument = _variable(frame, _GROUPS)
    label = _label(argument.address, stack, stacks.globals or ()) if argument and argument.kind != "none" else None
    threads = _threads(stacks.threads, stack, frame, known, default, found) if found else 1
    if facts.phase != "p2p":
        return Wait(False, facts.op, found, label, threads=threads)
    number, inner = _number(frame, _GLOBAL), _number(frame, _LOCAL)
    if number is None and inner is not None and found is not None and 0 <= inner < len(found.ranks):
        number = found.ranks[int(inner)]
    sends = frame.function in _SENDS
    anyone = not sends and inner is None and number is None and _variable(frame, ("src",)) is not None
    peer = int(number) if number is not None else None
    return Wait(True, facts.op, found, label, peer, anyone, sends, _number(frame, ("tag",)), threads)


def _without_c10d_frame(
    stack: Stack, facts: StackFacts, known: GroupsByAddress, source: Source | None, native: Sequence[str]
) -> Wait:
    """A wait without a frame of c10d: for an asynchronous operation, or in MPI. A group that is alone is the one."""
    of_torch = facts.op in ("wait", "wait_tensor") or any(name.startswith(("c10d::", "gloo::")) for name in native)
    only = next(iter(known.values())) if len(known) == 1 and of_torch else None
    started_before = any(_BUFFER in name for name in native) or _starts_p2p(stack, source)
    return Wait(facts.phase == "p2p" or started_before, facts.op, only)


def _starts_p2p(stack: Stack, source: Source | None) -> bool:
    """Whether the user's function starts sends or receives itself: then it is probably for them that it waits."""
    own = next((f for f in stack.frames if not f.native and not is_library(f.file)), None)
    place = source.places.get(f"{own.file}:{own.line}") if source is not None and own is not None else None
    return any(name.rpartition(".")[2] in _STARTS for name in (place.around if place is not None else ()))


def _group_of_frame(frame: Frame, known: GroupsByAddress, default: Group | None) -> Group | None:
    """The group of an operation's frame."""
    if frame.variables is None:
        return None
    argument = _variable(frame, _GROUPS)
    if argument is None or argument.kind == "none":
        return default
    return None if argument.address is None else known.get(argument.address)


def _threads(
    threads: Sequence[Stack], stack: Stack, frame: Frame, known: GroupsByAddress, default: Group | None, group: Group
) -> int:
    """How many threads of a rank are in an operation of the `group` that `stack` is in, at `frame`."""
    others = sum([_in_group(other, known, default, group) for other in threads if other is not stack])
    return others + (frame.function not in _TEARDOWN)


def _in_group(stack: Stack, known: GroupsByAddress, default: Group | None, group: Group) -> bool:
    frame = c10d_frame(stack)
    return frame is not None and frame.function not in _TEARDOWN and _group_of_frame(frame, known, default) == group


def _label(address: int | None, stack: Stack, module: Iterable[Variable]) -> str | None:
    """What the user's own frames, innermost first, or the script's globals call the object at `address`."""
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
