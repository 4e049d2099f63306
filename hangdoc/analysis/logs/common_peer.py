"""The one peer that several hosts name in their messages about failed transfers.

Either end of a connection prints such a message, and the end at fault prints one for each of its peers. So a peer
counts only if every host but itself names it, and nothing else.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from hangdoc.analysis.thresholds import REPORTERS
from hangdoc.evidence.logs import LogEvent

# Loopback, link-local, and the network that Docker gives to the bridge of every host.
NOT_BETWEEN_HOSTS = re.compile(r"127\.|169\.254\.|172\.17\.|::1$")
OF_BRIDGE = re.compile(r"172\.17\.0\.1$|192\.168\.122\.1$")  # docker0 and virbr0 themselves, on every host


def common_peer(reports: Iterable[tuple[str | None, LogEvent]]) -> tuple[str, int]:
    """The peer, and how many hosts name it; "", 0: there is none.

    `reports`: the host of the writer of each line (None: unknown), and the line.
    """
    named: dict[str, str] = {}  # as compared -> as printed
    reporters: defaultdict[str, set[str]] = defaultdict(set)  # peer -> who names it
    for host, event in reports:
        peer, writer = peer_of(event), event.fields.get("local") or host
        if not peer or not writer or NOT_BETWEEN_HOSTS.match(peer):
            continue
        named.setdefault(short(peer), peer)
        if short(writer) != short(peer):
            reporters[short(peer)].add(short(writer))
    for peer, hosts in reporters.items():
        others = {writer for name, writers in reporters.items() if name != peer for writer in writers}
        if len(hosts - {peer}) >= REPORTERS and others <= {peer}:
            return named[peer], len(hosts - {peer})
    return "", 0


def peer_of(event: LogEvent) -> str:
    """The host of the peer in a line, or else its address; "": it names none."""
    fields = event.fields
    found = (fields.get(name) for name in ("peer_host", "name", "peer", "address", "mac", "lid"))
    return next(filter(None, found), "")


def short(host: str) -> str:
    """A host without its domain, in lower case; an address as it is."""
    return host.lower() if host[:1].isdecimal() or ":" in host else host.partition(".")[0].lower()
