"""What is known of a job at an instant: the contract between those who observe and those who judge.

Plain frozen records, no behaviour. `None` means "not seen", never zero and never false. Ages and
durations are in seconds, sizes in bytes; instants are the observing host's monotonic clock and are
never compared between hosts.

A probe (`probes/NAME.py`) returns one record a rank or one a host. Records that analysis relies on are defined in
this package, a file a subject; a new probe may define its own record in its own file, nothing else has to know it.
"""

from __future__ import annotations

from hangdoc.evidence.collectives import FlightRecorder, ProcessGroup, ProcessGroups, RecordedCall
from hangdoc.evidence.network import Connection, Interface, Interfaces, Sockets
from hangdoc.evidence.process import ChildProcess, Process, ThreadCpu
from hangdoc.evidence.rendezvous import Environ, Holder, JobProcess, Rendezvous
from hangdoc.evidence.snapshot import End, Host, RankEvidence, Snapshot
from hangdoc.evidence.stacks import (
    Branch,
    CollectiveArgument,
    Frame,
    Loop,
    Place,
    Source,
    Stack,
    Stacks,
    Tensor,
    Variable,
)
from hangdoc.evidence.storage import FileCall, FileLock, Files, Folder, Helper, Io, OpenFile, Peer
from hangdoc.evidence.target import AGENT, Target, Unseen

__all__ = [
    "AGENT",
    "Branch",
    "ChildProcess",
    "CollectiveArgument",
    "Connection",
    "End",
    "Environ",
    "FileCall",
    "FileLock",
    "Files",
    "FlightRecorder",
    "Folder",
    "Frame",
    "Helper",
    "Holder",
    "Host",
    "Interface",
    "Interfaces",
    "Io",
    "JobProcess",
    "Loop",
    "OpenFile",
    "Peer",
    "Place",
    "Process",
    "ProcessGroup",
    "ProcessGroups",
    "RankEvidence",
    "RecordedCall",
    "Rendezvous",
    "Snapshot",
    "Sockets",
    "Source",
    "Stack",
    "Stacks",
    "Target",
    "Tensor",
    "ThreadCpu",
    "Unseen",
    "Variable",
]
