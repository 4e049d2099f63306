"""Process groups, and what torch itself recorded of them (probes `groups`, `recorder`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hangdoc.evidence.stacks import Frame


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group of torch.distributed that a rank belongs to."""

    address: int  # of the ProcessGroup object in this rank: what the variables of its frames point to
    name: str  # as torch names it, the same on every member: "0", "1", or a hash
    ranks: tuple[int, ...]  # global ranks of the members, by their rank in the group
    default: bool = False  # the group of the whole job
    backend: str | None = None  # gloo, nccl, cpu:gloo,cuda:nccl, ...


@dataclass(frozen=True, slots=True)
class ProcessGroups:
    """The process groups of a rank, and who it says it is (record of probe `groups`)."""

    groups: tuple[ProcessGroup, ...] = ()  # in order of creation; empty before init_process_group
    rank: int | None = None  # global rank, from its groups; else from its own environment as it is now
    world_size: int | None = None
    local_rank: int | None = None  # from its environment as it is now
    master: str | None = None  # address:port, likewise


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """An operation that a Flight Recorder holds."""

    group: str  # name of the process group: "0"
    sequence: int  # of the collectives of that group, or of its point-to-point operations
    op: str  # all_reduce, barrier, ...
    sizes: str  # of its inputs: "[[10]]"; "" where it has none
    dtypes: tuple[str, ...]
    retired: bool  # it is over
    p2p: bool = False
    state: str = ""  # scheduled | started | completed, as torch has it; gloo always says scheduled
    outputs: str = ""  # sizes of its outputs
    output_dtypes: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = ()  # where it was called, innermost first; none: not recorded
    sender: int | None = None  # p2p: rank in the group, not the global one
    receiver: int | None = None
    timeout_s: float | None = None
    thread: int | None = None  # that called it, numbered as they appear in the record; None: not recorded


@dataclass(frozen=True, slots=True)
class FlightRecorder:
    """The newest operations of a rank as torch recorded them (record of probe `recorder`)."""

    version: str
    entries: tuple[RecordedCall, ...]  # oldest first
    enqueued: Mapping[str, int]  # by group: the last collective begun
    completed: Mapping[str, int]  # and the last one done
    final: bool = False  # a dump that is left of a job: what is not over in it never ended
    groups: tuple[ProcessGroup, ...] = ()  # those of which it names the members (gloo: none)
    labels: Mapping[str, str] = field(default_factory=dict)  # by group: what the job calls it
    begun: tuple[float, ...] = ()  # Unix time (s) at which the newest entries were made, by this rank's clock
    written: float | None = field(default=None, compare=False)  # Unix time (s) of its file; of a copy later
    missed: int = 0  # operations before the first entry, which have been overwritten or lost
    library: str | None = None  # version of the communication library


def pending_call(record: FlightRecorder) -> RecordedCall | None:
    """The oldest operation of a rank that began and did not end, and none of its group ended after it."""
    over: set[tuple[str, bool]] = set()
    found: RecordedCall | None = None
    for entry in reversed(record.entries):
        if entry.retired:
            over.add((entry.group, entry.p2p))
        elif (entry.group, entry.p2p) not in over:
            found = entry
    return found
