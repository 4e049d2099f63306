"""Analysis `network`: do bytes cross between the ranks, how long ago the last one did, and which link is dead.

Only connections between ranks of the job count (see `peers`). A fact is None where no socket, or no tcp_info, was seen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple, cast, overload

from hangdoc.analysis import Case, Key
from hangdoc.analysis.culprits import Suspect
from hangdoc.analysis.fast_dataclass import fast_dataclass
from hangdoc.analysis.network import tcp_counters
from hangdoc.analysis.network.data_connections import DataConnection, End, data_connections, mirrored
from hangdoc.analysis.network.interfaces import faster, interface_of, narrow, rank_interfaces, told
from hangdoc.analysis.network.link_faults import Faults, echo, faults
from hangdoc.analysis.network.throughput import NOTHING, Flow
from hangdoc.evidence import Connection, Interface
from hangdoc.evidence.network import UNASKED, Echo
from hangdoc.formatting import endpoint

Dead = Mapping[End, bool | None]  # of data connections, judged at either end; those that are not in it are not


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """One end of a data connection, as `from_rank` sees it; a rank of -1 is not known."""

    from_rank: int
    to_rank: int
    from_pid: int
    to_pid: int | None
    local: str  # "ip:port"
    remote: str
    interface: str | None
    interface_up: bool | None
    state: str
    unacked_bytes: int  # written, not acknowledged by the peer
    receive_queue: int
    retransmits: int | None  # of the segment at the head, or probes in its stead, unanswered in a row
    backoff: int | None
    last_ack_s: float | None
    last_receive_s: float | None
    last_send_s: float | None
    idle_s: float | None
    pmtu: int | None
    dead: bool | None  # at this end or the other: bytes repeated in vain, nothing heard for seconds
    fault: str = ""  # of what this end sends (see `faults`): oversize dead lossy slow
    sent: Flow = NOTHING  # what this end sent over the window
    sent_a_step: float | None = None  # bytes, where the steps of the job are known
    segment_bytes: int | None = None  # most that one segment carries
    sacked: int | None = None  # segments that arrived, though one before them did not
    echo: Echo = UNASKED  # what the other end's host answered to requests of small and of full size
    passes: str = ""  # of these: all | some | small | none; empty: it was not asked
    only_full: bool | None = None  # all that is repeated in vain are full segments


@dataclass(frozen=True, slots=True, eq=False)
class Links(Sequence[LinkFacts]):
    """Both ends of every data connection, each told of when it is asked for: of most nobody asks."""

    case: Case  # without facts: these hold the links, and nothing frees a circle while collections are rare
    period_s: float | None  # of a step
    data: Sequence[DataConnection]
    dead: Dead
    wrong: Faults

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
        """One field of each."""
        if name == "dead":
            return [self.dead.get(one.end, False) for one in self.data]
        if name == "fault":
            return [self.wrong.of(one.end) for one in self.data]
        return [getattr(one, name) for one in self]


def _link(links: Links, data: DataConnection) -> LinkFacts:
    case, one, sent = links.case, data.connection, links.wrong.flows.get(data.end, NOTHING)
    heard, interfaces = echo(case, data), rank_interfaces(case, data.owner)
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
        fault=links.wrong.of(data.end),
        sent=sent,
        sent_a_step=a_step,
        segment_bytes=one.segment_bytes,
        sacked=one.sacked,
        echo=heard,
        passes=heard.passes,
        only_full=tcp_counters.only_full(one),
    )


def is_up(one: Connection, held: Interface | None, interfaces: tuple[Interface, ...] | None) -> bool | None:
    """Whether the interface that holds the connection's address is up with a carrier; None: not seen."""
    if held is not None:
        return held.up and held.carrier is not False
    return None if interfaces is None or one.interface is None else False  # the interface is gone altogether


def _number(case: Case, key: Key | None) -> int:
    rank = None if key is None else case.ranks[key].target.rank
    return -1 if rank is None else rank


_QUEUES = attrgetter("state", "send_queue", "receive_queue", "backoff", "retransmits")
_PLACE = attrgetter("local", "interface")
RECENT_S = 5.0  # bytes count as moving when some crossed within this time


@fast_dataclass(frozen=True, slots=True)
class NetworkFacts:
    """One rank's connections to other ranks of its job; ages in seconds, sizes in bytes."""

    connections: int | None = None  # that carry data
    established_peers: int | None = None  # ranks (or, unseen, addresses) it is connected to
    unacked_bytes: int | None = None  # most on one connection: written, not acknowledged by the peer
    receive_queue_bytes: int | None = None  # most on one connection: arrived, not read by this rank
    backoff: int | None = None  # highest: doublings of the time to the next repetition
    retransmitting: bool | None = None  # some segment is being repeated now
    retransmit_share: float | None = None  # of the bytes (else segments) sent in the history, else ever; 0..1
    idle_s: float | None = None  # since a byte last crossed to or from a peer
    moving: bool | None = None  # bytes crossed within the last seconds of the history
    bytes_per_s: float | None = None  # both directions, over the history
    zero_window: bool | None = None  # a peer does not read: it takes no more bytes of ours
    close_wait: int | None = None  # connections that the peer has closed
    dead_links: int | None = None  # connections, judged at either end, over which nothing passes
    syn_sent: int | None = None  # connections that nobody answers, to whomever
    syn_sent_s: float | None = None  # the oldest of them, at least
    syn_sent_to: tuple[str, ...] = ()  # "ip:port"
    interfaces: tuple[str, ...] = ()  # that hold its ends of the data connections
    interface_down: tuple[str, ...] = ()  # of these, down or without carrier
    interface_up: bool | None = None  # all of them; None: the interfaces were not seen
    faults: tuple[str, ...] = ()  # of the links it is at an end of (see `faults`): oversize dead lossy slow
    blamed_for: tuple[str, ...] = ()  # of these, those that its host is to blame for
    loses: str | None = None  # what it sends, what it receives, or both does not all arrive: sends | receives | both
    mtu: tuple[int, ...] = ()  # bytes, of the interfaces of its data connections
    narrow: str | None = None  # such an interface, where it makes the link slow by itself: "wlan0, wireless"
    faster: str | None = None  # one that its host has besides and that reaches the same peers: "eth1 (10.0.1.2)"


UNSEEN = NetworkFacts()


@dataclass(frozen=True, slots=True)
class NetworkJob:
    """The connections between all ranks seen."""

    checked: bool  # sockets of every living rank were seen, and data connections among them
    links: tuple[LinkFacts, ...] = ()  # or `Links`: rules know of no other type of a list
    dead_links: int = 0  # connections, each counted once
    interfaces_down: int = 0  # ranks with a data connection on an interface that is down
    idle_s: float | None = None  # since any byte crossed between any ranks: the age of a stall
    moving: bool | None = None
    quiet: bool | None = None  # nothing unacknowledged, repeated or unanswered anywhere; None: not checked
    unacked_bytes: int | None = None  # most on one connection
    retransmit_share: float | None = None  # of the rank with the largest
    beyond: tuple[Suspect, ...] = ()  # hosts to blame of which nothing is seen: addresses; a rank where only one is


@dataclass(slots=True)
class NetworkAnalysis:
    name: str = "network"
    order: int = 40
    rank_facts: type | None = NetworkFacts
    job_facts: type | None = NetworkJob

    def derive(self, case: Case) -> tuple[dict[Key, NetworkFacts], NetworkJob]:
        # What a rank that has ended had open is gone with it.
        data = {key: ends for key, ends in data_connections(case).items() if case.ranks[key].alive is not False}
        ends = [one for mine in data.values() for one in mine]
        looks = {key: tcp_counters.SocketHistory(case.series(key, "sockets")) for key in data}
        wrong = faults(case, ends, looks)
        dead = _dead(ends, wrong)
        facts = {
            key: _rank(case, key, data[key], dead, looks[key], wrong) if key in data else UNSEEN for key in case.ranks
        }
        period_s = getattr(case.job_facts.get("progress"), "period_s", None)
        links = Links(Case(case.history, case.ranks), period_s, ends, dead, wrong)
        return facts, replace(_job(case, facts, links, dead), beyond=_beyond(case, wrong))


def _dead(ends: Sequence[DataConnection], wrong: Faults) -> Dead:
    """The connections that are dead at either end, or may be; not those where TCP pauses because packets were lost."""
    found = [
        tcp_counters.dead(one.connection) and "lossy" not in (wrong.of(one.end), wrong.of(mirrored(one.end)))
        for one in ends
    ]
    if set(found) <= {False}:
        return {}
    alone = {one.end: is_dead for one, is_dead in zip(ends, found, strict=True)}
    return {end: _either(is_dead, alone.get(mirrored(end))) for end, is_dead in alone.items()}


def _rank(
    case: Case, key: Key, data: Sequence[DataConnection], dead: Dead, history: tcp_counters.SocketHistory, wrong: Faults
) -> NetworkFacts:
    mine = [one.connection for one in data]
    waiting = [one for one in case.record(key, "sockets").connections if one.state == "syn_sent"]
    overall, recent = _traffic(mine, history)
    queues, holds = _queues(case, mine), _holds(case, key, mine)
    return NetworkFacts(
        connections=len(mine),
        established_peers=len(
            {one.peer or one.connection.remote for one in data if one.connection.state == "established"}
        ),
        unacked_bytes=queues.unacked,
        receive_queue_bytes=queues.unread,
        backoff=queues.backoff,
        retransmitting=queues.again,
        retransmit_share=overall.repeated / overall.sent if overall.sent and overall.repeated is not None else None,
        idle_s=tcp_counters.least([tcp_counters.idle(one) for one in mine]),
        moving=None if recent is None or recent.crossed is None else recent.crossed > 0,
        bytes_per_s=overall.crossed / overall.seconds if overall.seconds and overall.crossed is not None else None,
        zero_window=_any([tcp_counters.window_shut(one) for one in mine]),
        close_wait=queues.close_wait,
        dead_links=sum([dead.get(one.end) is True for one in data]) if dead else 0,
        syn_sent=len(waiting),
        syn_sent_s=_waiting_s(waiting, history) if waiting else None,
        syn_sent_to=tuple(sorted({endpoint(one.remote, one.remote_port) for one in waiting})) if waiting else (),
        interfaces=holds.names,
        interface_down=holds.down,
        interface_up=holds.up,
        faults=wrong.at(data),
        blamed_for=wrong.blamed.get(key, ()),
        loses=wrong.direction(data, "lossy"),
        mtu=holds.mtu,
        narrow=told(holds.narrow),
        faster=faster(case, key, holds.narrow, {one.peer for one in data if one.peer}) if holds.narrow else None,
    )


class _Queues(NamedTuple):
    """What waits at the ends of connections: most of any (bytes), and whether a segment is sent again."""

    unacked: int
    unread: int
    backoff: int | None
    again: bool | None
    close_wait: int


def _queues(case: Case, mine: Sequence[Connection]) -> _Queues:
    """Told once for all ranks at which the same waits: in a job that stands still, at most of them nothing."""
    known: dict[object, _Queues] = case.once("queues", dict)
    seen = tuple(map(_QUEUES, mine))
    found = known.get(seen)
    if found is None:
        states, sent, received, backoffs, again = zip(*seen, strict=True) if seen else ((),) * 5
        found = known[seen] = _Queues(
            max(sent, default=0),
            max(received, default=0),
            max([one for one in backoffs if one is not None], default=None),
            _any([None if one is None else one > 0 for one in again]),
            states.count("close_wait"),
        )
    return found


class _Holds(NamedTuple):
    """The interfaces that hold connections."""

    names: tuple[str, ...]
    down: tuple[str, ...]
    up: bool | None
    mtu: tuple[int, ...]
    narrow: Interface | None


def _holds(case: Case, key: Key, mine: Sequence[Connection]) -> _Holds:
    """Told once for all ranks of a host that are connected by the same addresses."""
    interfaces = rank_interfaces(case, key)
    known: dict[object, _Holds] = case.once("holds", dict)
    at = (id(interfaces), *map(_PLACE, mine))
    found = known.get(at)
    if found is None:
        over = [interface_of(one, interfaces) for one in mine]
        both = list(zip(mine, over, strict=True))
        down = {one.interface or one.local for one, held in both if is_up(one, held, interfaces) is False}
        found = known[at] = _Holds(
            tuple(sorted({one.interface for one in mine if one.interface})),
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
        retransmit_share=max((one.retransmit_share for one in seen if one.retransmit_share is not None), default=None),
    )


def _beyond(case: Case, wrong: Faults) -> tuple[Suspect, ...]:
    missing: tuple[int, ...] = getattr(case.job_facts.get("world"), "missing", None) or ()
    return tuple(Suspect(missing[0] if len(missing) == 1 else None, host=address) for address in wrong.beyond)


def _traffic(
    mine: Sequence[Connection], history: tcp_counters.SocketHistory
) -> tuple[tcp_counters.Traffic, tcp_counters.Traffic | None]:
    """What crossed over the whole history (ever, where it is a single look) and over its last seconds."""
    looks = history.looks
    if len(looks) < 2:
        return tcp_counters.traffic({}, mine, 0.0), None
    newest, start = looks[-1][0], looks[0][0]
    recent = next((at for at in range(len(looks) - 2, 0, -1) if newest - looks[at][0] >= RECENT_S), 0)
    overall = tcp_counters.traffic(history.known(0), mine, newest - start)
    return overall, tcp_counters.traffic(history.known(recent), mine, newest - looks[recent][0]) if recent else overall


def _waiting_s(waiting: Sequence[Connection], history: tcp_counters.SocketHistory) -> float | None:
    """How long the oldest of them has waited, at least: as we watched, or as it was repeated."""
    ages = [tcp_counters.syn_age_s(one) for one in waiting]
    for one in waiting:
        first = history.first(one)
        if first is not None:
            ages.append(history.looks[-1][0] - first[0])
    return max(ages, default=None)


def _any(values: Collection[bool | None]) -> bool | None:
    """True if any is, False if some are not, None if none is known."""
    return True if True in values else False if False in values else None


def _either(one: bool | None, other: bool | None) -> bool | None:
    return other if one is None else one or bool(other)


ANALYSIS = NetworkAnalysis()
