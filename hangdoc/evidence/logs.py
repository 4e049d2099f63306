"""Records of a job that is gone, made by readers and not by probes: its logs (`logs`), and what was found of it."""

from __future__ import annotations

from collections.abc import Mapping

from hangdoc.evidence.record import Record

# Kinds of event in which a rank timed out waiting for its peers: its own exit is then a consequence.
WAITED = frozenset({"collective_timeout", "gloo_timeout", "barrier_timeout", "dump_signal"})
LOST = frozenset({"connection_closed"})  # the rank lost a peer
TEARDOWN = "teardown"  # field of an exception raised after the launcher had asked the rank to exit


class LogEvent(Record, frozen=True):
    """A log line that matches one of our patterns."""

    kind: str  # id in postmortem/readers/_logs/patterns.yaml: collective_timeout, ...
    text: str  # the message without prefixes and colours, shortened and redacted
    source: str  # file
    line: int  # line number, from 1
    at: float | None = None  # Unix time (s) of the line, if it has one; compare only within a host
    fields: Mapping[str, str] = {}  # from the pattern: group, sequence, op, ranks, address, ...


class Logs(Record, frozen=True):
    """The events in the logs of one rank, or of a host or launcher, in the order of the files."""

    said: tuple[LogEvent, ...] = ()
    lines: int = 0  # read in total, events or not
    first: float | None = None  # Unix time (s) of the first line that has a time
    last: float | None = None  # Unix time (s) of the last line that has a time


class RankSigns(Record, frozen=True):
    """How a pasted text mentions a rank."""

    rank: int
    signs: tuple[str, ...]  # only those in analysis/logs/rank_sign_weights.tsv


class Terms(Record, frozen=True):
    """The words of a pasted text that tell classes of causes apart (record `terms`), and its ranks."""

    words: tuple[str, ...]  # in lower case, each once; only those in analysis/logs/term_weights.tsv
    ranks: tuple[RankSigns, ...] = ()


class Aftermath(Record, frozen=True):
    """The job is gone; its evidence comes from files, not from a watch (record `aftermath`, made by the assembly)."""

    left: tuple[str, ...]  # kinds of records found for this rank: stacks, logs, recorder, ...
