"""Analysis `network`: traffic between the ranks of a job, its age, dead and faulty links.

Only data connections between ranks count (see `data_connections`). None: no socket, or no tcp_info, was seen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple, cast, overload

from hangdoc.analysis import Case, Detector, Key, Suspect
from hangdoc.analysis.fast_dataclass import fast_dataclass
from hangdoc.analysis.network import tcp_counters
from hangdoc.analysis.network.data_connections import DataConnection, End, data_connections, mirrored
from hangdoc.analysis.network.interfaces import faster, format_interface, interface_of, narrow, rank_interfaces
from hangdoc.analysis.network.link_faults import Faults, echo, find_faults
from hangdoc.analysis.network.throughput import NOTHING, Flow
from hangdoc.analysis.ranks.progress import ProgressJob
from hangdoc.analysis.ranks.world import WorldJob
from hangdoc.analysis.thresholds import RECENT_S
from hangdoc.evidence import Connection, Interface
from hangdoc.evidence.network import UNASKED, Echo
from hangdoc.formatting import endpoint

Dead = Mapping[End, bool | None]  # data connections dead (None: maybe) at either end; others are not listed


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """One end of a data connection, seen from `from_rank`. A rank of -1 is unknown."""

    from_rank: int
    to_rank: int
    from_pid: int
    to_pid: int | None
    local: str  # "ip:port"
    remote: str
    interface: str | None
    interface_up: bool | None
    state: str
    unacked_bytes: int  # written, not yet acknowledged by the peer
    receive_queue: int
    retransmits: int | None  # consecutive unanswered retransmissions of the first segment in flight, or window probes
    backoff: int | None
    last_ack_s: float | None
    last_receive_s: float | None
    last_send_s: float | None
    idle_s: float | None
    pmtu: int | None
    dead: bool | None  # at either end: data retransmitted in vain, peer silent for seconds; None: unknown
    fault: str = ""  # of what this end sends (see `link_faults`): oversize dead lossy slow
    one_way: bool = False  # lossy, and the other direction shows that it is not
    sent: Flow = NOTHING  # sent by this end over the window
    sent_a_step: float | None = None  # bytes per training step; None: step time unknown
    segment_bytes: int | None = None  # maximum segment size
    sacked: int | None = None  # segments that arrived behind a gap (SACK)
    echo: Echo = UNASKED  # answers of the other end's host to small and full-size echo requests
    passes: str = ""  # which of these came back: all | some | small | none; empty: no request was sent
    only_full: bool | None = None  # every segment that is retransmitted in vain is full-size


@dataclass(frozen=True, slots=True, eq=False)
class Links(Sequence[LinkFacts]):
    """Both ends of every data connection. Each LinkFacts is built on access, because most are never read."""

    case: Case  # without facts: they hold the links, and a reference cycle would not be freed while GC is paused
    period_s: float | None  # step time
    data: Sequence[DataConnection]
    dead: Dead
    faults: Faults

    def __len__(self) -> int:
        return len(self.data)

    @overload
    def __getitem__(self, at: int) -> LinkFacts: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[LinkFacts]: ...
    def __getitem__(self, at: int | slice) -> LinkFacts | Sequence[LinkFacts]:
        if isinstance(at, slice):
            return [_link(self, one) for one in self.data[at]]
        return _link(self, self.data[at])

    def column(self, name: str) -> list[Any]:
        """One field of every link."""
        if name == "dead":
            return [self.dead.get(one.end, False) for one in self.data]
        if name == "fault":
            return [self.faults.of(one.end) for one in self.data]
        return [getattr(one, name) for one in self]


def _link(links: Links, data: DataConnection) -> LinkFacts:
    case, one, sent = links.case, data.connection, links.faults.flows.get(data.end, NOTHING)
    answers, interfaces = echo(case, data), rank_interfaces(case, data.owner)
    a_step = sent.bytes / sent.seconds * links.period_s if sent.bytes and sent.seconds and links.period_s else None
    return LinkFacts(
        from_rank=_number(case, data.owner),
        to_rank=_number(case, data.peer),
        from_pid=data.owner[1],
        to_pid=data.peer[1] if data.peer else None,
        local=endpoint(one.local, one.local_port),
        remote=endpoint(one.remote, one.remote_port),
        interface=one.interface,
        interface_up=is_up(one, interface_of(one, interfaces), interfaces),
        state=one.state,
        unacked_bytes=one.send_queue,
        receive_queue=one.receive_queue,
        retransmits=tcp_counters.unanswered(one),
        backoff=one.backoff,
        last_ack_s=one.last_ack_s,
        last_receive_s=one.last_receive_s,
        last_send_s=one.last_send_s,
        idle_s=tcp_counters.idle(one),
        pmtu=one.pmtu,
        dead=links.dead.get(data.end, False),
        fault=links.faults.of(data.end),
        one_way=data.end in links.faults.one_way,
        sent=sent,
        sent_a_step=a_step,
        segment_bytes=one.segment_bytes,
        sacked=one.sacked,
        echo=answers,
        passes=answers.passes,
        only_full=tcp_counters.only_full(one),
    )


def is_up(one: Connection, held: Interface | None, interfaces: tuple[Interface, ...] | None) -> bool | None:
    """True if the interface with the connection's address is up and has a carrier; None: not seen."""
    if held is not None:
        return held.up and held.carrier is not False
    return None if interfaces is None or one.interface is None else False  # the interface no longer exists


def _number(case: Case, key: Key | None) -> int:
    rank = None if key is None else case.ranks[key].target.rank
    return -1 if rank is None else rank


_QUEUES = attrgetter("send_queue", "retransmits")
_LOCATION = attrgetter("local", "interface")


@fast_dataclass(frozen=True, slots=True)
class NetworkFacts:
    """One rank's connections to other ranks of its job. Ages in seconds, sizes in bytes."""

    connections: int | None = None  # data connections
    unacked_bytes: int | None = None  # largest of any connection: written, not yet acknowledged by the peer
    retransmitting: bool | None = None  # any segment is being retransmitted now
    idle_s: float | None = None  # since the last byte to or from a peer
    moving: bool | None = None  # any byte in the last seconds of the history
    zero_window: bool | None = None  # a peer does not read: its receive window is closed
    dead_links: int | None = None  # connections, dead at either end
    syn_sent: int | None = None  # connection attempts without an answer, to any address
    interfaces: tuple[str, ...] = ()  # of the data connections
    interface_down: tuple[str, ...] = ()  # of these, interfaces that are down or have no carrier
    interface_up: bool | None = None  # all of them are up; None: interfaces not seen
    faults: tuple[str, ...] = ()  # of its links, in either direction (see `link_faults`): oversize dead lossy slow
    blamed_for: tuple[str, ...] = ()  # of these, the faults that its host is to blame for
    loses: str | None = None  # direction of packet loss: sends | receives | both; None: no loss
    mtu: tuple[int, ...] = ()  # bytes, of the interfaces of its data connections
    narrow: str | None = None  # interface of a data connection that alone makes the link slow: "wlan0, wireless"
    faster: str | None = None  # faster interface of its host that reaches the same peers: "eth1 (10.0.1.2)"


UNSEEN = NetworkFacts()


@dataclass(frozen=True, slots=True)
class NetworkJob:
    """The connections between all ranks seen."""

    checked: bool  # the sockets of every living rank were seen, and data connections among them
    links: tuple[LinkFacts, ...] = ()  # a `Links`; the rules only know tuples as lists
    dead_links: int = 0  # connections; both ends count once
    interfaces_down: int = 0  # ranks with a data connection on an interface that is down
    idle_s: float | None = None  # since the last byte between any two ranks: the age of a stall
    moving: bool | None = None
    quiet: bool | None = None  # nothing unacknowledged, retransmitted or unanswered anywhere; None: not checked
    unacked_bytes: int | None = None  # largest of any connection
    beyond: tuple[Suspect, ...] = ()  # unseen hosts to blame: addresses; the rank if only one is missing
    unreachable: tuple[Suspect, ...] = ()  # hosts at the other end of connections that do not answer hangdoc either


class NetworkDetector(Detector[NetworkFacts, NetworkJob]):
    rank_facts = NetworkFacts
    job_facts = NetworkJob
    seen_by = ("sockets",)

    def derive(self, case: Case) -> tuple[dict[Key, NetworkFacts], NetworkJob]:
        # The connections of an exited rank are gone.
        data = {key: ends for key, ends in data_connections(case).items() if case.ranks[key].alive is not False}
        ends = [one for own in data.values() for one in own]
        samples = {key: tcp_counters.SocketHistory(case.series(key, "sockets")) for key in data}
        faults = find_faults(case, ends, samples)
        dead = _dead(ends, faults)
        facts = {
            key: _rank(case, key, data[key], dead, samples[key], faults) if key in data else UNSEEN
            for key in case.ranks
        }
        period_s = case.job(ProgressJob).period_s
        links = Links(Case(case.history, case.ranks), period_s, ends, dead, faults)
        found = _job(case, facts, links, dead)
        return facts, replace(found, beyond=_beyond(case, faults), unreachable=_unreachable(case, ends))


def _dead(ends: Sequence[DataConnection], faults: Faults) -> Dead:
    """Connections that are dead, or may be, at either end; not connections that TCP paused after packet loss."""
    found = [
        tcp_counters.dead(one.connection) and "lossy" not in (faults.of(one.end), faults.of(mirrored(one.end)))
        for one in ends
    ]
    if set(found) <= {False}:
        return {}
    alone = {one.end: is_dead for one, is_dead in zip(ends, found, strict=True)}
    return {end: _either(is_dead, alone.get(mirrored(end))) for end, is_dead in alone.items()}


def _rank(
    case: Case,
    key: Key,
    data: Sequence[DataConnection],
    dead: Dead,
    history: tcp_counters.SocketHistory,
    faults: Faults,
) -> NetworkFacts:
    own = [one.connection for one in data]
    queues, holds, moved = _queues(case, own), _holds(case, key, own), _recent_bytes(own, history)
    idle_s = tcp_counters.least([tcp_counters.idle(one) for one in own])
    silent = idle_s is not None and idle_s >= RECENT_S  # after looks that were far apart
    return NetworkFacts(
        connections=len(own),
        unacked_bytes=queues.unacked,
        retransmitting=queues.again,
        idle_s=idle_s,
        moving=None if moved is None else moved > 0 and not silent,
        zero_window=_any([tcp_counters.window_shut(one) for one in own]),
        dead_links=sum([dead.get(one.end) is True for one in data]) if dead else 0,
        syn_sent=sum(one.state == "syn_sent" for one in case.record(key, "sockets").connections),
        interfaces=holds.names,
        interface_down=holds.down,
        interface_up=holds.up,
        faults=faults.at(data),
        blamed_for=faults.blamed.get(key, ()),
        loses=faults.direction(data, "lossy"),
        mtu=holds.mtu,
        narrow=format_interface(holds.narrow),
        faster=faster(case, key, holds.narrow, {one.peer for one in data if one.peer}) if holds.narrow else None,
    )


class _Queues(NamedTuple):
    """Unacknowledged data at the ends of connections: largest of any (bytes); whether any segment is retransmitted."""

    unacked: int
    again: bool | None


def _queues(case: Case, own: Sequence[Connection]) -> _Queues:
    """Cached by content: in a stalled job, most ranks have the same (empty) queues."""
    known: dict[object, _Queues] = case.once("queues", dict)
    seen = tuple(map(_QUEUES, own))
    found = known.get(seen)
    if found is None:
        sent, again = zip(*seen, strict=True) if seen else ((), ())
        found = known[seen] = _Queues(max(sent, default=0), _any([None if one is None else one > 0 for one in again]))
    return found


class _Holds(NamedTuple):
    """The interfaces of connections."""

    names: tuple[str, ...]
    down: tuple[str, ...]
    up: bool | None
    mtu: tuple[int, ...]
    narrow: Interface | None


def _holds(case: Case, key: Key, own: Sequence[Connection]) -> _Holds:
    """Cached by host and local addresses."""
    interfaces = rank_interfaces(case, key)
    known: dict[object, _Holds] = case.once("holds", dict)
    at = (id(interfaces), *map(_LOCATION, own))
    found = known.get(at)
    if found is None:
        over = [interface_of(one, interfaces) for one in own]
        both = list(zip(own, over, strict=True))
        down = {one.interface or one.local for one, held in both if is_up(one, held, interfaces) is False}
        found = known[at] = _Holds(
            tuple(sorted({one.interface for one in own if one.interface})),
            tuple(sorted(down)),
            None if interfaces is None else not down,
            tuple(sorted({one.mtu for one in over if one})),
            next((one for one in over if narrow(one)), None),
        )
    return found


def _job(case: Case, facts: Mapping[Key, NetworkFacts], links: Links, dead: Dead) -> NetworkJob:
    seen = [one for one in facts.values() if one.connections is not None]
    unseen = [key for key in facts if facts[key].connections is None and case.ranks[key].alive is not False]
    checked = bool(links) and not unseen
    loud = any(one.unacked_bytes or one.retransmitting or one.syn_sent for one in seen)
    return NetworkJob(
        checked=checked,
        links=cast("tuple[LinkFacts, ...]", links or ()),
        dead_links=len({frozenset((end, mirrored(end))) for end, is_dead in dead.items() if is_dead}),
        interfaces_down=sum(bool(one.interface_down) for one in seen),
        idle_s=tcp_counters.least(one.idle_s for one in seen),
        moving=_any([one.moving for one in seen]),
        quiet=not loud if checked else None,
        unacked_bytes=max((one.unacked_bytes for one in seen if one.unacked_bytes is not None), default=None),
    )


def _beyond(case: Case, faults: Faults) -> tuple[Suspect, ...]:
    missing = case.job(WorldJob).missing or ()
    return tuple(Suspect(missing[0] if len(missing) == 1 else None, host=address) for address in faults.beyond)


def _unreachable(case: Case, ends: Sequence[DataConnection]) -> tuple[Suspect, ...]:
    """Matched by address; by a host name only if it is the one silent host and one address is left."""
    world = case.job(WorldJob)
    if not world.silent:
        return ()
    far = {one.connection.remote for one in ends if one.peer is None}
    hosts = [host for host in world.silent if host in far]
    if not hosts and len(world.silent) == len(far) == 1:
        hosts = [*world.silent]
    missing = world.missing or ()
    return tuple(Suspect(missing[0] if len(missing) == len(hosts) == 1 else None, host=host) for host in hosts)


def _recent_bytes(own: Sequence[Connection], history: tcp_counters.SocketHistory) -> int | None:
    """Bytes in both directions in the last seconds; None: seen once only, or not counted."""
    samples = history.samples
    if len(samples) < 2:
        return None
    newest = samples[-1][0]
    recent = next((at for at in range(len(samples) - 2, 0, -1) if newest - samples[at][0] >= RECENT_S), 0)
    return tcp_counters.bytes_between(history.known(recent), own)


def _any(values: Collection[bool | None]) -> bool | None:
    """True if any is; False if any is False; None if all are unknown."""
    return True if True in values else False if False in values else None


def _either(one: bool | None, other: bool | None) -> bool | None:
    return other if one is None else one or bool(other)


ANALYSIS = NetworkDetector()
