"""Where the ranks of a job run, as a text states it (record `placement`)."""

from __future__ import annotations

from collections.abc import Mapping

from hangdoc.evidence.record import Record


class HostRanks(Record, frozen=True):
    """The ranks of each host of which a text states all, and how many a host has."""

    ranks: Mapping[str, tuple[int, ...]]  # host, in lower case and without its domain -> its ranks, in order
    per_host: int | None = None  # None: not stated, or not the same everywhere


def short_name(host: str) -> str:
    """A host in lower case, without its domain; an address stays whole."""
    return (host if host[:1].isdecimal() else host.partition(".")[0]).lower()
