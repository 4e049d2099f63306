"""Evidence: what is known of a job at one instant. The contract between probes and readers, and analysis.

Plain frozen records without behaviour; nothing here reads a process or a file. `None` means "not seen", never zero or
false. Ages and durations are in seconds, sizes in bytes. Instants are on the observing host's monotonic clock; compare
them only within a host.

A probe (`probes/NAME.py`) returns one record per rank or per host. This package defines the records that analysis
uses, one file per subject. A new probe may define its record in its own file.
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
