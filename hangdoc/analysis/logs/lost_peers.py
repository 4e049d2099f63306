"""Ranks whose peers lost their connections to them: their processes are gone.

A rank that loses a peer fails as well, and its own peers then lose it. So only a rank without any line of its own, or
an address that every line names, stands for the first loss.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hangdoc.analysis import Suspect
from hangdoc.analysis.logs.common_peer import peer_of
from hangdoc.analysis.logs.log_events import JobLogs, number
from hangdoc.analysis.thresholds import REPORTERS
from hangdoc.evidence import limits
from hangdoc.evidence.logs import LOST, LogEvent

MAX_SUSPECTS = 16  # unreachable ranks that are named; with more, a network or the query failed
# Lines of NCCL, gloo and c10d about a connection between ranks: a download may lose its connection as well.
BETWEEN_RANKS = re.compile(
    r"remote process exited|ncclRemoteError|exiting prematurely"
    r"|(?:gloo|pair\.cc|NCCL|c10d|Socket|socket\.cpp|remote peer).*by (?:remote )?peer"
)


@dataclass(frozen=True, slots=True)
class Gone:
    """Who is gone, and the reason to think so."""

    suspects: Sequence[Suspect]
    why: str


def lost_connections(logs: JobLogs) -> Sequence[LogEvent]:
    """The lines that report a lost connection between ranks."""
    return [event for event in logs.all(*LOST) if BETWEEN_RANKS.search(event.text)]


def lost_peers(logs: JobLogs) -> Gone | None:
    """The ranks, or else the host, that their peers lost; None: no line tells, or the lines name several."""
    ranks = {key: rank for rank, key in logs.keys.items()}
    reporters = {
        ranks[key]
        for key, event in logs.of_ranks(*LOST, "exception")
        if key in ranks and BETWEEN_RANKS.search(event.text)
    }
    if unreachable := _unreachable(logs):
        return unreachable
    lost = lost_connections(logs)
    addresses = {address for event in lost if (address := peer_of(event))}
    named = next(iter(addresses)) if len(addresses) == 1 else None
    at_address = _ranks_at(logs, named) if named else []
    if len(at_address) == 1 and at_address[0] not in reporters:
        return Gone([Suspect(at_address[0])], f"its peers lost their connections to {named}, which is its address")
    size = logs.size or logs.least
    silent = limits.absent_ranks(size, {*reporters, *logs.keys})
    if len(reporters) >= REPORTERS and 0 < len(silent) < len(reporters) and 2 * len(reporters) >= size:
        return Gone([Suspect(rank) for rank in silent], "all other ranks wrote lines, and lost a connection")
    if not lost or named is None or named.startswith("127.") or not all(event.fields.get("address") for event in lost):
        return None
    return Gone([Suspect(None, None, named)], f"every lost connection was to {named}")


def _unreachable(logs: JobLogs) -> Gone | None:
    """The ranks, or else the hosts, whose processes do not answer NCCL's RAS."""
    missing = list(logs.all("ras_missing"))
    ranks = {rank for event in missing if "group" not in event.fields and (rank := number(event, "rank")) is not None}
    if ranks and len(ranks) <= MAX_SUSPECTS:
        return Gone([Suspect(rank) for rank in sorted(ranks)], missing[0].text)
    dead = list(logs.all("ras_dead"))
    hosts = dict.fromkeys(event.fields["host"] for event in dead if "host" in event.fields)
    if hosts and len(hosts) <= MAX_SUSPECTS:
        return Gone([Suspect(None, None, host) for host in hosts], dead[0].text)
    return None


def _ranks_at(logs: JobLogs, address: str) -> list[int]:
    """The ranks that NCCL's lines show at an address."""
    ranks = {key: rank for rank, key in logs.keys.items()}
    found = {
        ranks[key]
        for key, event in logs.of_ranks("nccl_bootstrap", "nccl_interface")
        if key in ranks and address in (event.fields.get("address"), *_addresses(event.fields.get("interfaces", "")))
    }
    return sorted(found)


def _addresses(interfaces: str) -> list[str]:
    """The addresses in `[0]eth0:10.0.0.1<0> [1]eth1:10.0.1.1<0>`."""
    return [part.partition("<")[0].rpartition(":")[2] for part in interfaces.split()]
