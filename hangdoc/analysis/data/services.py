"""Analysis `service`: what a rank waits for outside its job in one step after the other: a server, a helper, a pipe.

Each wait ends, so that the rank is not stuck (see `chain`). A rank that waits for its loader is in its input instead,
and one that waits for other ranks is not counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from hangdoc.analysis import Case, Detector, Key
from hangdoc.analysis.data.wait_chains import process_name
from hangdoc.analysis.network.data_connections import OPEN, data_connections
from hangdoc.analysis.network.tcp_counters import RECEIVED, SocketHistory, growth, identity
from hangdoc.analysis.ranks.phases import WAITING
from hangdoc.analysis.ranks.progress import Look, looks_at
from hangdoc.analysis.thresholds import MOSTLY, RATE_WINDOW_S, WATCHED_LOOKS
from hangdoc.evidence import Connection, Sockets
from hangdoc.evidence.waits import Awaited, Chain
from hangdoc.formatting import endpoint

WAYS = frozenset({"tcp", "unix", "pipe", "fifo", "child"})
STREAMS = re.compile(r"^(recv\w*|read\w*|sendall|sendmsg)$")  # calls on a stream, by their names in Python


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """One rank over the window. None: it waits for nothing outside its job, or was not watched for long enough."""

    name: str | None = None  # "127.0.0.1:7000, PID 71 (python features.py)"
    way: str | None = None  # tcp | unix | pipe | fifo | child
    site: str | None = None  # line of its own code at which it waits
    share: float | None = None  # of the looks that found it there, of all in which it waited for no rank
    bytes_per_s: float | None = None  # that arrive on the connection, if it is one


class ServiceDetector(Detector[ServiceFacts, None]):
    rank_facts = ServiceFacts

    def derive(self, case: Case) -> tuple[dict[Key, ServiceFacts], None]:
        return {key: _facts(case, key) for key in case.ranks}, None


def _facts(case: Case, key: Key) -> ServiceFacts:
    own = [look for look in looks_at(case, key) if look.phase not in WAITING]
    sites = Counter(site for look in own if look.phase == "idle" and (site := _site(look)) is not None)
    if len(own) < WATCHED_LOOKS or not sites:
        return ServiceFacts()
    site, count = sites.most_common(1)[0]
    share = count / len(own)
    if share < MOSTLY:
        return ServiceFacts()
    at_s = {look.at_s for look in own if look.phase == "idle" and _site(look) == site}
    streamed = all(STREAMS.match(look.op or "") for look in own if look.at_s in at_s)
    if (newest := next(_awaited(case, key, at_s), None)) is not None:
        awaited, name = newest
        fed = _received(case, key, awaited.target) if awaited.way == "tcp" else None
        return ServiceFacts(name, awaited.way, site, share, fed)
    if streamed and (only := _only_stream(case, key)) is not None:
        connection, bytes_per_s = only
        name = endpoint(connection.remote, connection.remote_port)
        return ServiceFacts(name, "tcp", site, share, bytes_per_s)
    return ServiceFacts()


def _site(look: Look) -> str | None:
    return look.own[-1].site if look.path.own else None


def _awaited(case: Case, key: Key, at_s: set[float]) -> Iterator[tuple[Awaited, str]]:
    """What the rank waited for in these looks, newest first, and its name; nothing if another rank can end the wait."""
    for shot, rank in reversed(case.rounds(key)):
        chain = rank.records.get("chain")
        if shot.at_s not in at_s or not isinstance(chain, Chain) or not chain.threads:
            continue
        awaits = chain.threads[0].awaits
        pids = {pid for one in awaits for pid in one.peers or ()}
        if len(awaits) != 1 or awaits[0].way not in WAYS or any((key[0], pid) in case.ranks for pid in pids):
            continue
        others = [process_name(case, key, one) for one in chain.others if one.pid in pids]
        yield awaits[0], _name(awaits[0], *others[:1])


def _name(awaited: Awaited, process: str | None = None) -> str:
    match awaited.way:
        case "pipe":
            return f"a pipe from {process}" if process else "a pipe"
        case "unix":
            return f"a Unix socket of {process}" if process else "a Unix socket"
        case "child":
            return f"its child {process}" if process else "a child process"
    return f"{awaited.target}, {process}" if process else awaited.target


def _streams(case: Case, key: Key) -> list[Connection]:
    """The rank's open connections that lead to no other rank and to no store."""
    record = case.record(key, "sockets")
    if not isinstance(record, Sockets):
        return []
    between = {identity(one.connection) for one in data_connections(case)[key]}
    store = (case.ranks[key].target.master or "").rpartition(":")[2]
    listening = {one.local_port for one in record.connections if one.state == "listen"}
    return [
        one
        for one in record.connections
        if one.state in OPEN
        and identity(one) not in between
        and one.local_port not in listening
        and str(one.remote_port) != store
    ]


def _received(case: Case, key: Key, target: str) -> float | None:
    """Bytes per second from that address, over the window."""
    found = [one for one in _streams(case, key) if endpoint(one.remote, one.remote_port) == target]
    return _rate(case, key, found[0]) if len(found) == 1 else None


def _only_stream(case: Case, key: Key) -> tuple[Connection, float] | None:
    """The only such connection on which bytes arrive, and how many per second."""
    rates = [(one, rate) for one in _streams(case, key) if (rate := _rate(case, key, one))]
    return rates[0] if len(rates) == 1 else None


def _rate(case: Case, key: Key, one: Connection) -> float | None:
    series = case.series(key, "sockets")
    if len(series) < 2 or (seconds := series[-1][0] - series[0][0]) < RATE_WINDOW_S:
        return None
    gained = growth(SocketHistory(series).known(0), [one], RECEIVED)
    return None if gained is None else gained / seconds


ANALYSIS = ServiceDetector()
