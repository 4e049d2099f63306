"""Analysis `channels`: does a rank without a process group reach other ranks in another way?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hangdoc.analysis import Analysis, Case, Key
from hangdoc.analysis.network import tcp_counters
from hangdoc.analysis.network.data_connections import OPEN, SERVICES, data_connections
from hangdoc.analysis.thresholds import SMALL_GRADIENTS
from hangdoc.evidence import Connection, Sockets
from hangdoc.evidence.process import Channels


@dataclass(frozen=True, slots=True)
class ChannelFacts:
    """One rank over all looks; None: not seen."""

    linked: bool | None = None  # a connection, shared memory or an RDMA adapter leads to another rank
    bytes_per_s: float | None = None  # on connections to other processes, services on well-known ports left out


class ChannelAnalysis(Analysis[ChannelFacts, None]):
    rank_facts = ChannelFacts
    seen_by = ("channels",)

    def derive(self, case: Case) -> tuple[dict[Key, ChannelFacts], None]:
        shared, unseen = _shared(case), ChannelFacts()
        return {
            key: ChannelFacts(_linked(case, key, channels, shared), _rate(case, key))
            if isinstance(channels := case.record(key, "channels"), Channels)
            else unseen
            for key in case.ranks
        }, None


def _linked(case: Case, key: Key, channels: Channels, shared: Counter[tuple[str, str]]) -> bool | None:
    sockets = [one for one in case.distinct(key, "sockets") if isinstance(one, Sockets)]
    if any(one.peer_pid not in (None, key[1]) for record in sockets for one in record.connections):
        return True
    if data_connections(case).get(key):
        return True
    if channels.rdma or any(shared[key[0], name] > 1 for name in _ends(channels)):
        return True
    return False if sockets and channels.sockets is not None else None


def _shared(case: Case) -> Counter[tuple[str, str]]:
    """Number of ranks that hold a segment of memory or an end of a Unix socket, by host and name."""
    records = ((key, case.record(key, "channels")) for key in case.ranks)
    return Counter((key[0], name) for key, record in records if isinstance(record, Channels) for name in _ends(record))


def _ends(channels: Channels) -> set[str]:
    """Memory that can hold gradients (a semaphore has a page), and Unix sockets."""
    return {name for name, size in channels.memory.items() if size > SMALL_GRADIENTS} | {*(channels.sockets or ())}


def _rate(case: Case, key: Key) -> float | None:
    """Bytes/s on connections that may lead to a process that averages gradients; None: not measured."""
    history = tcp_counters.SocketHistory(case.series(key, "sockets"))
    if len(history.samples) < 2:
        return None
    newest: dict[tcp_counters.Identity, Connection] = {}
    for at in range(len(history.samples)):  # one that has closed meanwhile counts, too
        newest |= {name: one for name, one in history.known(at).items() if _may_carry(one)}
    crossed = tcp_counters.bytes_between(history.known(0), newest.values())
    return None if crossed is None else crossed / (history.samples[-1][0] - history.samples[0][0])


def _may_carry(one: Connection) -> bool:
    return one.state in OPEN and min(one.local_port, one.remote_port) >= SERVICES


ANALYSIS = ChannelAnalysis()
