"""What a job's logs say (record `logs`, made by readers: no probe sees it)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Kinds of line that a rank writes which waited for others until a timeout: how it ended then is no fault of its own.
WAITED = frozenset({"collective_timeout", "gloo_timeout", "barrier_timeout", "dump_signal"})
LOST = frozenset({"connection_closed"})  # and of one whose peer was gone
TEARDOWN = "teardown"  # field of an exception that a rank raised once its launcher had told it to end


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A line of a log that means something to us."""

    kind: str  # as hangdoc/postmortem/readers/_logs/patterns.yaml names it: collective_timeout, connection_closed, ...
    text: str  # the message, prefixes and colours stripped, shortened and redacted
    source: str  # file
    line: int  # number in that file, from 1
    at: float | None = None  # Unix time (s) where the line says it; clocks of two hosts are never compared
    fields: Mapping[str, str] = field(default_factory=dict)  # what it names: group, sequence, op, ranks, address, ...


@dataclass(frozen=True, slots=True)
class Logs:
    """What one rank, or of a host or launcher as a whole, was said; in the order it was written."""

    said: tuple[LogEvent, ...] = ()
    lines: int = 0  # read in all
    first: float | None = None  # Unix time of the first line with a time, and of the last
    last: float | None = None


@dataclass(frozen=True, slots=True)
class Aftermath:
    """The job is gone; its evidence comes from files, not from a watch (record `aftermath`, made by the assembly)."""

    left: tuple[str, ...]  # kinds of records found for this rank: stacks, logs, recorder, ...
