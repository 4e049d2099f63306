"""Analysis `network`: do bytes cross between the ranks, how long ago the last one did, and which link is dead.

Only connections between ranks of the job count (see `peers`). A fact is None where no socket, or no tcp_info, was seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hangdoc.analysis import Case, Key, tcp
from hangdoc.analysis.faults import Faults, History, echo, faults
from hangdoc.analysis.flow import NOTHING, Flow
from hangdoc.analysis.interfaces import faster, holding, narrow, of_rank, told
from hangdoc.analysis.peers import Data, End, data_connections, mirrored
from hangdoc.analysis.suspect import Suspect
from hangdoc.evidence import Connection, Interface, Sockets
from hangdoc.fold import endpoint
from probes.echo import UNASKED, Echo

RECENT_S = 5.0  # bytes count as moving when some crossed within this time

Dead = Mapping[End, bool | None]  # of data connections, judged at either end


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class NetworkJob:
    """The connections between all ranks seen."""

    checked: bool  # sockets of every living rank were seen, and data connections among them
    links: tuple[LinkFacts, ...] = ()
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
        alone = {one.end: tcp.dead(one.connection) for ends in data.values() for one in ends}
        dead = {end: _any((is_dead, alone.get(mirrored(end)))) for end, is_dead in alone.items()}
        histories = {key: [(at, _known(record)) for at, record in case.series(key, "sockets")] for key in data}
        wrong = faults(case, data, histories)
        facts = {
            key: _rank(case, key, data[key], dead, histories[key], wrong) if key in data else NetworkFacts()
            for key in case.ranks
        }
        links = tuple(_link(case, one, dead, wrong) for ends in data.values() for one in ends)
        return facts, replace(_job(case, facts, links, dead), beyond=_beyond(case, wrong))


def _rank(case: Case, key: Key, data: Sequence[Data], dead: Dead, history: History, wrong: Faults) -> NetworkFacts:
    mine = [one.connection for one in data]
    waiting = [one for one in case.record(key, "sockets").connections if one.state == "syn_sent"]
    overall, recent = _traffic(mine, history)
    interfaces = of_rank(case, key)
    held = [one for connection in mine if (one := holding(connection, interfaces))]
    used = next((one for one in held if narrow(one)), None)
    down = tuple(sorted({one.interface or one.local for one in mine if _up(one, interfaces) is False}))
    return NetworkFacts(
        connections=len(mine),
        established_peers=len(
            {one.peer or one.connection.remote for one in data if one.connection.state == "established"}
        ),
        unacked_bytes=max((one.send_queue for one in mine), default=0),
        receive_queue_bytes=max((one.receive_queue for one in mine), default=0),
        backoff=max((one.backoff for one in mine if one.backoff is not None), default=None),
        retransmitting=_any(tcp.repeats(one) for one in mine),
        retransmit_share=overall.repeated / overall.sent if overall.sent and overall.repeated is not None else None,
        idle_s=tcp.least(tcp.idle(one) for one in mine),
        moving=None if recent is None or recent.crossed is None else recent.crossed > 0,
        bytes_per_s=overall.crossed / overall.seconds if overall.seconds and overall.crossed is not None else None,
        zero_window=_any(tcp.window_shut(one) for one in mine),
        close_wait=sum(one.state == "close_wait" for one in mine),
        dead_links=sum([dead[one.end] is True for one in data]),
        syn_sent=len(waiting),
        syn_sent_s=_waiting_s(waiting, history),
        syn_sent_to=tuple(sorted({endpoint(one.remote, one.remote_port) for one in waiting})),
        interfaces=tuple(sorted({one.interface for one in mine if one.interface})),
        interface_down=down,
        interface_up=None if interfaces is None else not down,
        faults=wrong.at(data),
        blamed_for=wrong.blamed.get(key, ()),
        loses=wrong.direction(data, "lossy"),
        mtu=tuple(sorted({one.mtu for one in held})),
        narrow=told(used),
        faster=faster(case, key, used, {one.peer for one in data if one.peer}) if used else None,
    )


def _job(case: Case, facts: Mapping[Key, NetworkFacts], links: tuple[LinkFacts, ...], dead: Dead) -> NetworkJob:
    seen = [one for one in facts.values() if one.connections is not None]
    unseen = [key for key in facts if facts[key].connections is None and case.ranks[key].alive is not False]
    checked = bool(links) and not unseen
    loud = any(one.unacked_bytes or one.retransmitting or one.syn_sent for one in seen)
    return NetworkJob(
        checked=checked,
        links=links,
        dead_links=len({frozenset((end, mirrored(end))) for end, is_dead in dead.items() if is_dead}),
        interfaces_down=sum(bool(one.interface_down) for one in seen),
        idle_s=tcp.least(one.idle_s for one in seen),
        moving=_any(one.moving for one in seen),
        quiet=not loud if checked else None,
        unacked_bytes=max((one.unacked_bytes for one in seen if one.unacked_bytes is not None), default=None),
        retransmit_share=max((one.retransmit_share for one in seen if one.retransmit_share is not None), default=None),
    )


def _beyond(case: Case, wrong: Faults) -> tuple[Suspect, ...]:
    missing: tuple[int, ...] = getattr(case.job_facts.get("world"), "missing", None) or ()
    return tuple(Suspect(missing[0] if len(missing) == 1 else None, host=address) for address in wrong.beyond)


def _link(case: Case, data: Data, dead: Dead, wrong: Faults) -> LinkFacts:
    one, sent, heard = data.connection, wrong.flows[data.end], echo(case, data)
    period_s = getattr(case.job_facts.get("progress"), "period_s", None)
    return LinkFacts(
        from_rank=_number(case, data.owner),
        to_rank=_number(case, data.peer),
        from_pid=data.owner[1],
        to_pid=data.peer[1] if data.peer else None,
        local=endpoint(one.local, one.local_port),
        remote=endpoint(one.remote, one.remote_port),
        interface=one.interface,
        interface_up=_up(one, of_rank(case, data.owner)),
        state=one.state,
        unacked_bytes=one.send_queue,
        receive_queue=one.receive_queue,
        retransmits=tcp.unanswered(one),
        backoff=one.backoff,
        last_ack_s=one.last_ack_s,
        last_receive_s=one.last_receive_s,
        last_send_s=one.last_send_s,
        idle_s=tcp.idle(one),
        pmtu=one.pmtu,
        dead=dead[data.end],
        fault=wrong.of(data.end),
        sent=sent,
        sent_a_step=sent.bytes / sent.seconds * period_s if sent.bytes and sent.seconds and period_s else None,
        segment_bytes=one.segment_bytes,
        sacked=one.sacked,
        echo=heard,
        passes=heard.passes,
    )


def _known(record: Sockets) -> dict[tcp.Identity, Connection]:
    return {tcp.identity(one): one for one in record.connections}


def _traffic(mine: Sequence[Connection], history: History) -> tuple[tcp.Traffic, tcp.Traffic | None]:
    """What crossed over the whole history (ever, where it is a single look) and over its last seconds."""
    if len(history) < 2:
        return tcp.traffic({}, mine, 0.0), None
    newest = history[-1][0]
    start, first = history[0]
    since, recent = next(((at, known) for at, known in reversed(history[:-1]) if newest - at >= RECENT_S), history[0])
    overall = tcp.traffic(first, mine, newest - start)
    return overall, overall if recent is first else tcp.traffic(recent, mine, newest - since)


def _waiting_s(waiting: Sequence[Connection], history: History) -> float | None:
    """How long the oldest of them has waited, at least: as we watched, or as it was repeated."""
    ages = [tcp.asked_s(one) for one in waiting]
    for one in waiting:
        first = next((at for at, known in history if tcp.identity(one) in known), None)
        if first is not None:
            ages.append(history[-1][0] - first)
    return max(ages, default=None)


def _up(one: Connection, interfaces: tuple[Interface, ...] | None) -> bool | None:
    """Whether the interface that holds the connection's address is up with a carrier; None: not seen."""
    if interfaces is None:
        return None
    for held in interfaces:
        if one.local in held.addresses or held.name == one.interface:
            return held.up and held.carrier is not False
    return None if one.interface is None else False  # the interface is gone altogether


def _any(values: Iterable[bool | None]) -> bool | None:
    """True if any is, False if some are not, None if none is known."""
    known = {value for value in values if value is not None}
    return True in known if known else None


def _number(case: Case, key: Key | None) -> int:
    rank = None if key is None else case.ranks[key].target.rank
    return -1 if rank is None else rank


ANALYSIS = NetworkAnalysis()
