"""Faults of the links between the ranks of a job, and the hosts to blame.

A fault belongs to one direction of a connection: `dead` (nothing arrives), `oversize` (full-size segments do not
arrive), `lossy`, `slow` (the link is the bottleneck). If one host is at an end of every bad link, it is to blame, else
both ends are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hangdoc.analysis import Case, Key
from hangdoc.analysis.network import tcp_counters
from hangdoc.analysis.network.data_connections import DataConnection, End, mirrored
from hangdoc.analysis.network.interfaces import end_interface, narrow, slow_below
from hangdoc.analysis.network.throughput import NOTHING, Flow, flow, since_start, so_far
from hangdoc.analysis.ranks.world import WorldJob
from hangdoc.analysis.thresholds import (
    CLOSER_REPEATS,
    FASTER_DIRECTION,
    GOOD_BYTES,
    GOOD_LOSS,
    GOOD_SEGMENTS,
    HALF,
    HARDLY,
    LOSSY,
    LOSSY_PAUSE_S,
    LOSSY_REPEATS,
)
from hangdoc.evidence import Connection, Sockets
from hangdoc.evidence.network import UNASKED, Echo, Echoes

Node = tuple[str, int | str | None]  # network namespace of a host; ("", address) for a host that is not seen
Pair = tuple[Node, Node]  # sender, receiver
NodeT = TypeVar("NodeT")

WORST_FIRST = ("oversize", "dead", "lossy", "slow")


@dataclass(frozen=True, slots=True)
class Faults:
    """Flow and fault per connection end; blame per rank."""

    flows: Mapping[End, Flow]
    faults: Mapping[End, str]
    blamed: Mapping[Key, tuple[str, ...]]
    beyond: tuple[str, ...] = ()  # addresses of hosts to blame that are not seen
    one_way: frozenset[End] = frozenset()  # lossy ends whose other direction is known to lose hardly anything

    def of(self, end: End) -> str:
        """The fault of what this end sends; empty: none."""
        return self.faults.get(end, "")

    def at(self, data: Iterable[DataConnection]) -> tuple[str, ...]:
        """The faults of what these ends send or receive, worst first."""
        if not self.faults:
            return ()
        found = {self.of(end) for one in data for end in (one.end, mirrored(one.end))}
        return tuple(fault for fault in WORST_FIRST if fault in found)

    def direction(self, data: Iterable[DataConnection], fault: str) -> str | None:
        """The direction of a fault at these ends: sends | receives | both; None: no such fault."""
        if not self.faults:
            return None
        ends = [one.end for one in data]
        sends = any(self.of(end) == fault for end in ends)
        receives = any(self.of(mirrored(end)) == fault for end in ends)
        return "both" if sends and receives else "sends" if sends else "receives" if receives else None


def find_faults(
    case: Case, data: Sequence[DataConnection], histories: Mapping[Key, tcp_counters.SocketHistory]
) -> Faults:
    """The faults of all data connections of a job."""
    sent = [_flow(one.connection, histories[one.owner]) for one in data]
    if not any(flow is not NOTHING or one.connection.send_queue for one, flow in zip(data, sent, strict=True)):
        return Faults({}, {}, {})
    ends = {one.end: one for one in data}
    flows = {one.end: flow for one, flow in zip(data, sent, strict=True)}
    nodes_of = {key: _node(case, key) for key in case.ranks}  # exited ranks too: they may be peers
    pairs = {end: _pair(one, nodes_of) for end, one in ends.items()}
    rates = _rates(flows, pairs)
    judged = {end: _fault(case, one, flows[end], rates.get(end, 0.0), pairs[end]) for end, one in ends.items()}
    if any(fault in ("oversize", "dead") and since_start(ends[end].connection) for end, fault in judged.items()):
        # A lossy link can pause for seconds. The window shows no loss then; use the life of the connection.
        quiet = [
            end
            for end, fault in judged.items()
            if fault != "lossy" and _far(pairs[end]) and (ends[end].connection.last_ack_s or 0.0) < LOSSY_PAUSE_S
        ]
        before = {end: lost for end in quiet if (lost := since_start(ends[end].connection))}
        flows |= before
        judged |= dict.fromkeys(before, "lossy")
    by_echo = [end for end, fault in judged.items() if fault == "lossy" and not flows[end].lossy]
    flows |= {end: so_far(ends[end].connection) for end in by_echo if flows[end].lost is None}
    also = _also_lossy(judged, ends, flows, pairs)
    flows |= also
    judged |= dict.fromkeys(also, "lossy")
    found = {end: fault for end, fault in judged.items() if fault and not _answers_late(end, judged, rates)}
    by_rank: dict[Key, list[str]] = defaultdict(list)
    beyond: dict[str, None] = {}
    for fault in WORST_FIRST:
        nodes = _blamed(case, fault, found, ends, flows, pairs)
        for end, one in ends.items() if nodes else ():
            if nodes_of[one.owner] in nodes and fault in (found.get(end), found.get(mirrored(end))):
                by_rank[one.owner].append(fault)
        beyond.update((str(address), None) for host, address in sorted(nodes, key=str) if not host)
    one_way = frozenset(end for end, fault in found.items() if fault == "lossy" and _loses_one_way(end, ends, flows))
    return Faults(
        flows, found, {key: tuple(dict.fromkeys(kinds)) for key, kinds in by_rank.items()}, tuple(beyond), one_way
    )


def _flow(one: Connection, history: tcp_counters.SocketHistory) -> Flow:
    """The flow over one connection; computed in full only if the whole window is suspicious."""
    first = history.first(one)
    if first is None or first[1].bytes_sent == one.bytes_sent:
        return NOTHING
    whole = flow((first, (history.samples[-1][0], one)))
    return flow(tuple(history.of(one))) if whole.suspicious else whole


def _node(case: Case, key: Key) -> Node:
    record = case.record(key, "sockets")
    return key[0], record.namespace if isinstance(record, Sockets) else None


def _pair(one: DataConnection, nodes: Mapping[Key, Node]) -> Pair:
    return nodes[one.owner], ("", one.connection.remote) if one.peer is None else nodes[one.peer]


def _rates(flows: Mapping[End, Flow], pairs: Mapping[End, Pair]) -> dict[End, float]:
    """Bytes per second, while busy, over all connections of the sending or the receiving host.

    Ends that sent nothing are left out.
    """
    of_hosts: dict[tuple[str, Node], float] = defaultdict(float)
    sent = {end: one for end, one in flows.items() if one is not NOTHING}
    for end, one in sent.items():
        sender, to = pairs[end]
        for host in (("from", sender), ("to", to)):
            of_hosts[host] += (one.bytes or 0) if sender != to else 0
    rates = {}
    for end, one in sent.items():
        sender, to = pairs[end]
        busy_s = (one.busy or 0.0) * (one.seconds or 0.0)
        rates[end] = max(of_hosts["from", sender], of_hosts["to", to]) / busy_s if busy_s > 0 else 0.0
    return rates


def _far(pair: Pair) -> bool:
    """True if the two ends are on different hosts."""
    return pair[0] != pair[1]


def _answers_late(end: End, found: Mapping[End, str], rates: Mapping[End, float]) -> bool:
    """True if the end is slow only because its acknowledgements wait in the slower queue of the other direction."""
    other = mirrored(end)
    if not found[end] == found.get(other) == "slow":
        return False
    return rates.get(end, 0.0) >= FASTER_DIRECTION * rates.get(other, 0.0)


def _also_lossy(
    judged: Mapping[End, str], ends: Mapping[End, DataConnection], flows: Mapping[End, Flow], pairs: Mapping[End, Pair]
) -> dict[End, Flow]:
    """The ends for which less evidence will do, because a link of the job is known to be lossy; with their losses.

    They are the other direction of a lossy link, lost much at once, or sent little in this window but lost much before.
    """
    lossy = {end for end, fault in judged.items() if fault == "lossy"}
    if not lossy:
        return {}
    found = {}
    for end in [end for end, fault in judged.items() if not fault and _far(pairs[end])]:
        sent = flows[end]
        back = mirrored(end) in lossy and (sent.repeats or 0) >= CLOSER_REPEATS and (sent.lost or 0.0) >= LOSSY
        if back or sent.loses_much:
            found[end] = sent
        elif not _good(sent) and (before := since_start(ends[end].connection)):
            found[end] = before
    return found


def _loses_one_way(end: End, ends: Mapping[End, DataConnection], flows: Mapping[End, Flow]) -> bool:
    """True if the other direction carried enough segments to show such a loss, but lost hardly any.

    It may seem to lose some: where acknowledgements are lost, TCP retransmits what had arrived.
    """
    other, sent = mirrored(end), flows[end]
    if other not in ends:
        return False
    back = flows[other] if sent.seconds else so_far(ends[other].connection)  # over the same time
    as_much = (sent.lost or 0.0) * (back.segments or 0)  # segments
    return as_much >= LOSSY_REPEATS and (back.repeats or 0) <= HARDLY * as_much


def _good(sent: Flow) -> bool:
    """True if the link carried enough, and hardly any of it was lost."""
    return (sent.segments or 0) >= GOOD_SEGMENTS and (sent.lost or 0.0) < GOOD_LOSS


def echo(case: Case, one: DataConnection) -> Echo:
    """Answers of the host at the other end to the echo requests."""
    record = case.record(one.owner, "echo")
    if not isinstance(record, Echoes):
        return UNASKED
    return next((answer for answer in record.echoes if answer.remote == one.connection.remote), UNASKED)


def _fault(case: Case, one: DataConnection, sent: Flow, rate: float, pair: Pair) -> str:
    if sent is NOTHING and not one.connection.send_queue:
        return ""
    if tcp_counters.oversize(one.connection) and not sent.lossy:  # else random loss
        # A small segment that passed before does not prove that one would pass now: the host may have gone since.
        gone = one.peer is None and bool(case.job(WorldJob).lost)
        return {"some": "lossy", "small": "oversize"}.get(echo(case, one).passes, "dead" if gone else "oversize")
    if tcp_counters.dead(one.connection):
        return {"small": "oversize", "some": "lossy"}.get(echo(case, one).passes, "dead")
    if not _far(pair):
        return ""
    if sent.lossy or (sent.repeats and echo(case, one).passes == "some"):
        return "lossy"
    return "slow" if sent.busy and sent.slow(rate, slow_below(case, one)) else ""


def _lost_among(case: Case, nodes: frozenset[Node]) -> frozenset[Node]:
    """The lost host, if a dead link has one at an end."""
    unseen = frozenset(node for node in nodes if not node[0])
    lost = case.job(WorldJob).lost
    return unseen if len(nodes) == 2 and len(unseen) == 1 and lost else frozenset()


def _blamed(
    case: Case,
    fault: str,
    found: Mapping[End, str],
    ends: Mapping[End, DataConnection],
    flows: Mapping[End, Flow],
    pairs: Mapping[End, Pair],
) -> frozenset[Node]:
    bad = {end for end, kind in found.items() if kind == fault}
    if not bad:
        return frozenset()
    passes = {pairs[end] for end, one in ends.items() if echo(case, one).passes == "all"}
    if fault in ("oversize", "dead"):  # the same failure, at ends with less evidence
        bad |= {end for end, kind in found.items() if kind in ("oversize", "dead")}
        nodes = nodes_to_blame({pairs[end] for end in bad}, passes - {pairs[end] for end in bad})
        return _lost_among(case, nodes) or nodes
    worst = flows[min(bad, key=lambda end: flows[end].busy or 0.0)]
    if fault == "lossy":
        good = {end for end, one in flows.items() if _good(one)}
        bad |= {end for end, one in ends.items() if echo(case, one).passes == "some"}
        lossy = {pairs[end] for end in bad}
        return nodes_to_blame(lossy, {pairs[end] for end in good - bad} | (passes - lossy))
    # A full queue delays the acknowledgements of the host's other links too: they show whose queue it is.
    bad |= {end for end, one in flows.items() if one.queue_full and _far(pairs[end])}
    good = {
        end
        for end, one in flows.items()
        if (one.bytes or 0) >= GOOD_BYTES * (worst.bytes or 0) and (one.busy or 0.0) <= HALF * (worst.busy or 0.0)
    }
    nodes = nodes_to_blame({pairs[end] for end in bad}, {pairs[end] for end in good - bad})
    known: set[Node] = set()
    for end in bad:
        for key, sends in ((ends[end].owner, True), (ends[end].peer, False)):
            if key is not None and narrow(end_interface(case, key, ends[end], sends), sends):
                known.add(_node(case, key))
    return nodes & known or nodes


def nodes_to_blame(bad: Collection[tuple[NodeT, NodeT]], good: Collection[tuple[NodeT, NodeT]]) -> frozenset[NodeT]:
    """The hosts to blame for the `bad` links (sender, receiver), given the `good` ones.

    The host that all bad links share; else the ends of bad links without a good link in the same direction. With only
    two hosts, both are named.
    """
    if not bad:
        return frozenset()
    common = frozenset.intersection(*(frozenset(pair) for pair in bad))
    if len(common) == 1:
        return common
    suspects = {node for pair in bad for node in pair}
    senders, receivers = {sender for sender, _ in good}, {receiver for _, receiver in good}
    cleared = {
        node
        for node in suspects
        if all(node in (senders if node == sender else receivers) for sender, to in bad if node in (sender, to))
    }
    return frozenset(suspects - cleared or suspects)
