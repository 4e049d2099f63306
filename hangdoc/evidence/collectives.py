"""Process groups, and the collectives that torch recorded (probes `groups`, `recorder`)."""

from __future__ import annotations

from collections.abc import Mapping

from hangdoc.evidence.record import Record
from hangdoc.evidence.stacks import Frame


class ProcessGroup(Record, frozen=True):
    """A process group of torch.distributed that a rank belongs to."""

    address: int  # of the ProcessGroup object in this rank; variables that hold the group point to it
    name: str  # torch's name, equal on all members: "0", "1", or a hash
    ranks: tuple[int, ...]  # global ranks of the members, in order of their rank in the group
    default: bool = False  # the default group: every rank of the job
    backend: str | None = None  # gloo, nccl, cpu:gloo,cuda:nccl, ...


class ProcessGroups(Record, frozen=True):
    """The process groups of a rank, and its own rank and world size (record of probe `groups`)."""

    groups: tuple[ProcessGroup, ...] = ()  # in order of creation; empty before init_process_group
    rank: int | None = None  # global rank, from the groups, else from the current os.environ
    world_size: int | None = None
    local_rank: int | None = None  # from the current os.environ
    master: str | None = None  # address:port, from the current os.environ
    exists: bool | None = None  # torch.distributed has a process group; None: its tables were not found


class JoinCall(Record, frozen=True):
    """A call in a rank's script that creates the process group."""

    at: str  # "train.py:14"
    conditions: tuple[str, ...] = ()  # source text of the conditions under which it runs, outermost first


class JoinCalls(Record, frozen=True):
    """Such calls in the files on a rank's stacks (record of probe `joins`)."""

    calls: tuple[JoinCall, ...]


class RecordedCall(Record, frozen=True):
    """One entry of a Flight Recorder: a collective or a point-to-point operation."""

    group: str  # name of the process group: "0"
    sequence: int  # collectives and point-to-point operations of a group are numbered separately
    op: str  # all_reduce, barrier, ...
    sizes: str  # of the inputs: "[[10]]"; "" if none
    dtypes: tuple[str, ...]
    retired: bool  # finished
    p2p: bool = False
    state: str = ""  # torch's: scheduled | started | completed; gloo always records scheduled
    outputs: str = ""  # sizes of the outputs
    output_dtypes: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = ()  # call stack, innermost first; empty: not recorded
    sender: int | None = None  # p2p: rank within the group
    receiver: int | None = None  # p2p: rank within the group
    timeout_s: float | None = None
    thread: int | None = None  # calling thread, numbered in order of appearance; None: not recorded


class FlightRecorder(Record, frozen=True):
    """The newest operations of a rank, from torch's Flight Recorder (record of probe `recorder`)."""

    version: str
    entries: tuple[RecordedCall, ...]  # oldest first
    enqueued: Mapping[str, int]  # sequence of the last collective enqueued, by group
    completed: Mapping[str, int]  # sequence of the last collective completed, by group
    final: bool = False  # a dump of a job that is gone: its unfinished operations never finished
    groups: tuple[ProcessGroup, ...] = ()  # groups with recorded members (gloo: none)
    labels: Mapping[str, str] = {}  # the job's description of a group, by group
    begun: tuple[float, ...] = ()  # creation of the newest entries, Unix time (s) on this rank's clock
    written: float | None = None  # mtime of the file, Unix time (s); a copy is later
    missed: int = 0  # operations before the first entry, overwritten or lost
    library: str | None = None  # version of the communication library


def pending_call(record: FlightRecorder) -> RecordedCall | None:
    """The oldest unfinished operation with no later finished operation in its group; None: nothing is pending."""
    finished: set[tuple[str, bool]] = set()
    found: RecordedCall | None = None
    for entry in reversed(record.entries):
        if entry.retired:
            finished.add((entry.group, entry.p2p))
        elif (entry.group, entry.p2p) not in finished:
            found = entry
    return found
