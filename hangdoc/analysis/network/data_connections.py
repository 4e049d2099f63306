"""Data connections of a job: TCP connections between its ranks, not those to its store, launcher or storage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from hangdoc.analysis import Case, Key
from hangdoc.analysis.network.tcp_counters import ACKED, RECEIVED, SocketHistory, growth
from hangdoc.analysis.thresholds import COMPARABLE_RANKS, HALF, SMALL_GRADIENTS
from hangdoc.evidence import Connection, Environ, Sockets

OPEN = ("established", "close_wait", "fin_wait1", "fin_wait2", "closing", "last_ack")
SERVICES = 1024  # lower ports belong to services (https, NFS, ssh): collectives use ephemeral ports

End = tuple[str, str, int, str, int]  # scope ("" unless loopback), local, port, remote, port


class DataConnection(NamedTuple):  # a NamedTuple: there are many, and it is faster to create than a frozen dataclass
    """One rank's end of a connection that carries data to another rank."""

    owner: Key
    connection: Connection
    peer: Key | None  # None: the other end's host was not seen
    end: End


def data_connections(case: Case) -> dict[Key, tuple[DataConnection, ...]]:
    """The data connections of each rank with known sockets."""
    return case.once("data_connections", lambda: _data_connections(case))


def _data_connections(case: Case) -> dict[Key, tuple[DataConnection, ...]]:
    seen = {key: record for key in case.ranks if isinstance(record := case.record(key, "sockets"), Sockets)}
    jobs = {key: evidence.target.job for key, evidence in case.ranks.items()}
    stores = _stated_ports(case)
    ends = {key: _ends(key, record, stores[jobs[key]]) for key, record in seen.items()}
    owners = {end: key for key, own_ends in ends.items() for _, end in own_ends}
    served = _served_ports(jobs, seen, ends, owners)
    complete = _complete(case, seen)
    found: dict[Key, tuple[DataConnection, ...]] = {}
    for key, own_ends in ends.items():
        store = served[jobs[key]]
        data = [
            DataConnection(key, one, owners.get(mirrored(end)), end)
            for one, end in own_ends
            if one.state in OPEN and one.local_port not in store and one.remote_port not in store
        ]
        own = {one.local for one in seen[key].connections}  # the host's own addresses
        found[key] = tuple([one for one in data if _leads_to_rank(one, own, jobs, complete)])
    return found


def is_even(case: Case) -> bool:
    """True if each of three ranks or more has sent and received about as many bytes as any other since the first look.

    It is so in an all-reduce, and not between a server and its clients. False also if the kernel does not count them.
    """
    moved: list[int] = []
    for key, links in data_connections(case).items():
        history = SocketHistory(case.series(key, "sockets"))
        if len(history.samples) < 2:
            return False
        for count in (ACKED, RECEIVED):
            gained = growth(history.known(0), [one.connection for one in links], count)
            if gained is None:
                return False
            moved.append(gained)
    return len(moved) >= 2 * COMPARABLE_RANKS and min(moved) >= max(SMALL_GRADIENTS, HALF * max(moved))


def mirrored(end: End) -> End:
    """The same connection from the other end."""
    scope, local, port, remote, remote_port = end
    return scope, remote, remote_port, local, port


def _ends(key: Key, record: Sockets, store: Collection[int]) -> list[tuple[Connection, End]]:
    """A rank's connections, except those to the store."""
    return [
        (one, _end(key, record, one))
        for one in record.connections
        if one.state != "listen" and one.remote_port not in store and one.local_port not in store
    ]


def _end(key: Key, record: Sockets, one: Connection) -> End:
    # Each network namespace has its own loopback.
    scope = f"{key[0]}/{record.namespace}" if _is_loopback(one.local) else ""
    return scope, one.local, one.local_port, one.remote, one.remote_port


def _leads_to_rank(
    data: DataConnection, own: Collection[str], jobs: Mapping[Key, str], complete: Mapping[str, bool]
) -> bool:
    one, peer = data.connection, data.peer
    job = jobs[data.owner]
    if peer is not None:
        return peer != data.owner and jobs[peer] == job
    if complete[job] or _is_loopback(one.remote) or one.remote in own:
        return False  # every rank is known, or a process of this host that is not a rank
    return min(one.local_port, one.remote_port) >= SERVICES


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _stated_ports(case: Case) -> dict[str, set[int]]:
    """Ports of each job's store, from the environment and the targets of its ranks."""
    stated: dict[str, set[str]] = defaultdict(set)
    for key, evidence in case.ranks.items():
        environ = case.record(key, "environ")
        port = environ.variables.get("MASTER_PORT", "") if isinstance(environ, Environ) else ""
        stated[evidence.target.job].update((port, (evidence.target.master or "").rpartition(":")[2]))
    return {job: {int(port) for port in texts if port.isdecimal()} for job, texts in stated.items()}


def _served_ports(
    jobs: Mapping[Key, str],
    seen: Mapping[Key, Sockets],
    ends: Mapping[Key, Sequence[tuple[Connection, End]]],
    owners: Mapping[End, Key],
) -> dict[str, set[int]]:
    """Ports that a rank listens on and is itself connected to: the rank that serves a store does this."""
    ports: dict[str, set[int]] = defaultdict(set)
    for key, record in seen.items():
        listening = {one.local_port for one in record.connections if one.state == "listen"}
        if listening:
            ports[jobs[key]].update(
                one.local_port
                for one, end in ends[key]
                if one.state in OPEN and one.local_port in listening and owners.get(mirrored(end)) == key
            )
    return ports


def _complete(case: Case, seen: Mapping[Key, Sockets]) -> dict[str, bool]:
    """True for each job with known sockets of every rank: a connection to an unknown address then leads to no rank."""
    counts: dict[str, int] = defaultdict(int)
    worlds: dict[str, int] = defaultdict(int)
    for key, evidence in case.ranks.items():
        counts[evidence.target.job] += key in seen
        worlds[evidence.target.job] = max(worlds[evidence.target.job], evidence.target.world_size or 0)
    return {job: 0 < world <= counts[job] for job, world in worlds.items()}
