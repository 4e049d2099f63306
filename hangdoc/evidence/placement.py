"""Where the ranks of a job run, as a text states it (record `placement`)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping

from hangdoc.evidence.record import Record


class HostRanks(Record, frozen=True):
    """The ranks of each host of which a text states all, and how many a host has."""

    ranks: Mapping[str, tuple[int, ...]]  # host, in lower case and without its domain -> its ranks, in order
    per_host: int | None = None  # None: not stated, or not the same everywhere


def short_name(host: str) -> str:
    """A host in lower case, without its domain; an address stays whole."""
    return (host if host[:1].isdecimal() else host.partition(".")[0]).lower()


def whole_names(called: Collection[str], hosts: Collection[str]) -> Mapping[str, str]:
    """What people call a host -> the only host whose name ends so behind a hyphen: `c3` -> `rdma-c3`."""
    longer: dict[str, set[str]] = defaultdict(set)
    for host in hosts:
        for dash in re.finditer("-", host):
            longer[host[dash.end() :]].add(host)
    return {
        short: min(longer[short])
        for short in called
        if len(longer.get(short, ())) == 1 and any(map(str.isdigit, short)) and any(map(str.isalpha, short))
    }
