"""What is wrong with the links between the ranks of a job, and whose hosts are to blame.

A fault belongs to one direction of a connection: `dead` (nothing passes), `oversize` (full segments do not), `lossy`,
`slow` (it keeps both ends waiting). Where one host has all the bad links it is to blame, else both of their ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hangdoc.analysis import Case, Key
from hangdoc.analysis.network import tcp_counters
from hangdoc.analysis.network.data_connections import DataConnection, End, mirrored
from hangdoc.analysis.network.interfaces import end_interface, limit, narrow
from hangdoc.analysis.network.throughput import NOTHING, Flow, flow, since_start, so_far
from hangdoc.evidence import Connection, Sockets
from hangdoc.evidence.network import UNASKED, Echo, Echoes

Node = tuple[str, int | str | None]  # a host's network namespace; of one not seen, its address
Pair = tuple[Node, Node]  # who sends to whom
NodeT = TypeVar("NodeT")

MUCH_SEGMENTS = 50  # sent without loss: a good link
GOOD_LOSS = 0.01
GOOD_BYTES = 0.25  # of what the slow link carried ...
GOOD_BUSY = 0.5  # ... in so much of its time, at most
ANSWERS_LATE = 1.4  # times faster than the other direction
LOSSY_PAUSE_S = 60.0  # TCP's longest pause where one segment was lost several times in a row; after that, it is dead
WORST_FIRST = ("oversize", "dead", "lossy", "slow")


@dataclass(frozen=True, slots=True)
class Faults:
    """By end: what it sends, where anything sends at all, and what is wrong with that; by rank: what its host did."""

    flows: Mapping[End, Flow]
    faults: Mapping[End, str]
    blamed: Mapping[Key, tuple[str, ...]]
    beyond: tuple[str, ...] = ()  # addresses of the hosts to blame that are not seen

    def of(self, end: End) -> str:
        """The fault of what this end sends; empty where there is none."""
        return self.faults.get(end, "")

    def at(self, data: Iterable[DataConnection]) -> tuple[str, ...]:
        """The faults of what these ends send or receive."""
        if not self.faults:
            return ()
        found = {self.of(end) for one in data for end in (one.end, mirrored(one.end))}
        return tuple(fault for fault in WORST_FIRST if fault in found)

    def direction(self, data: Iterable[DataConnection], fault: str) -> str | None:
        """Whether what these ends send has the fault, or what they receive: sends | receives | both."""
        if not self.faults:
            return None
        ends = [one.end for one in data]
        sends = any(self.of(end) == fault for end in ends)
        receives = any(self.of(mirrored(end)) == fault for end in ends)
        return "both" if sends and receives else "sends" if sends else "receives" if receives else None


def faults(case: Case, data: Sequence[DataConnection], histories: Mapping[Key, tcp_counters.SocketHistory]) -> Faults:
    """Of all data connections of a job."""
    sent = [_flow(one.connection, histories[one.owner]) for one in data]
    if not any(flow is not NOTHING or one.connection.send_queue for one, flow in zip(data, sent, strict=True)):
        return Faults({}, {}, {})
    ends = {one.end: one for one in data}
    flows = {one.end: flow for one, flow in zip(data, sent, strict=True)}
    nodes_of = {key: _node(case, key) for key in case.ranks}  # of those that are gone as well: they are peers
    pairs = {end: _pair(one, nodes_of) for end, one in ends.items()}
    rates = _rates(flows, pairs)
    judged = {end: _fault(case, one, flows[end], rates.get(end, 0.0), pairs[end]) for end, one in ends.items()}
    if any(fault in ("oversize", "dead") and since_start(ends[end].connection) for end, fault in judged.items()):
        # It pauses, as a link that loses much does for seconds: then the window tells of none of them.
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
    found = {end: fault for end, fault in judged.items() if fault and not _answers_late(end, judged, rates)}
    by_rank: dict[Key, list[str]] = defaultdict(list)
    beyond: dict[str, None] = {}
    for fault in WORST_FIRST:
        nodes = _blamed(case, fault, found, ends, flows, pairs)
        for end, one in ends.items() if nodes else ():
            if nodes_of[one.owner] in nodes and fault in (found.get(end), found.get(mirrored(end))):
                by_rank[one.owner].append(fault)
        beyond.update((str(address), None) for host, address in sorted(nodes, key=str) if not host)
    return Faults(flows, found, {key: tuple(dict.fromkeys(mine)) for key, mine in by_rank.items()}, tuple(beyond))


def _flow(one: Connection, history: tcp_counters.SocketHistory) -> Flow:
    """What was sent over one connection; looked at closely only where the whole window is suspicious."""
    first = history.first(one)
    if first is None or first[1].bytes_sent == one.bytes_sent:
        return NOTHING
    whole = flow((first, (history.looks[-1][0], one)))
    return flow(tuple(history.of(one))) if whole.suspicious else whole


def _node(case: Case, key: Key) -> Node:
    record = case.record(key, "sockets")
    return key[0], record.namespace if isinstance(record, Sockets) else None


def _pair(one: DataConnection, nodes: Mapping[Key, Node]) -> Pair:
    return nodes[one.owner], ("", one.connection.remote) if one.peer is None else nodes[one.peer]


def _rates(flows: Mapping[End, Flow], pairs: Mapping[End, Pair]) -> dict[End, float]:
    """Bytes per second, while busy, of all that the connections of the sending or the receiving host carry.

    Of ends that sent nothing it is not told.
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
    """The two ends are on different hosts."""
    return pair[0] != pair[1]


def _answers_late(end: End, found: Mapping[End, str], rates: Mapping[End, float]) -> bool:
    """Slow only because its answers stand in the queue of what comes the other way, which is slower still."""
    other = mirrored(end)
    if not found[end] == found.get(other) == "slow":
        return False
    return rates.get(end, 0.0) >= ANSWERS_LATE * rates.get(other, 0.0)


def echo(case: Case, one: DataConnection) -> Echo:
    """What the host at the other end answered, where it was asked."""
    record = case.record(one.owner, "echo")
    if not isinstance(record, Echoes):
        return UNASKED
    return next((answer for answer in record.echoes if answer.remote == one.connection.remote), UNASKED)


def _fault(case: Case, one: DataConnection, sent: Flow, rate: float, pair: Pair) -> str:
    if sent is NOTHING and not one.connection.send_queue:
        return ""
    if tcp_counters.oversize(one.connection) and not sent.lossy:  # or one full segment was lost so often by chance
        return "lossy" if echo(case, one).passes == "some" else "oversize"
    if tcp_counters.dead(one.connection):
        return {"small": "oversize", "some": "lossy"}.get(echo(case, one).passes, "dead")
    if not _far(pair):
        return ""
    if sent.lossy:
        return "lossy"
    return "slow" if sent.busy and sent.slow(rate, limit(case, one)) else ""


def _lost_among(case: Case, nodes: frozenset[Node]) -> frozenset[Node]:
    """Of the two ends of a dead link the one that we do not reach either."""
    unseen = frozenset(node for node in nodes if not node[0])
    lost: tuple[str, ...] = getattr(case.job_facts.get("world"), "lost", ())
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
    if fault in ("oversize", "dead"):  # the same failure, seen at ends that can prove less
        bad |= {end for end, kind in found.items() if kind in ("oversize", "dead")}
        nodes = nodes_to_blame({pairs[end] for end in bad}, passes - {pairs[end] for end in bad})
        return _lost_among(case, nodes) or nodes
    worst = flows[min(bad, key=lambda end: flows[end].busy or 0.0)]
    if fault == "lossy":
        much = {end: one for end, one in flows.items() if (one.segments or 0) >= MUCH_SEGMENTS}
        good = {end for end, one in much.items() if (one.lost or 0.0) < GOOD_LOSS}
        # Those that had little to send just now, and have lost much before.
        bad |= {end for end in flows if end not in good and _far(pairs[end]) and since_start(ends[end].connection)}
        bad |= {end for end, one in ends.items() if echo(case, one).passes == "some"}
        lossy = {pairs[end] for end in bad}
        return nodes_to_blame(lossy, {pairs[end] for end in good - bad} | (passes - lossy))
    # Answers that stand in the same queue make the host's other links seem slow as well: that tells whose queue it is.
    bad |= {end for end, one in flows.items() if one.queue_full and _far(pairs[end])}
    good = {
        end
        for end, one in flows.items()
        if (one.bytes or 0) >= GOOD_BYTES * (worst.bytes or 0) and (one.busy or 0.0) <= GOOD_BUSY * (worst.busy or 0.0)
    }
    nodes = nodes_to_blame({pairs[end] for end in bad}, {pairs[end] for end in good - bad})
    known: set[Node] = set()
    for end in bad:
        for key, sends in ((ends[end].owner, True), (ends[end].peer, False)):
            if key is not None and narrow(end_interface(case, key, ends[end], sends), sends):
                known.add(_node(case, key))
    return nodes & known or nodes


def nodes_to_blame(bad: Collection[tuple[NodeT, NodeT]], good: Collection[tuple[NodeT, NodeT]]) -> frozenset[NodeT]:
    """The hosts to blame for the `bad` links (from, to), where `good` links are seen to be better.

    The one that all bad links have in common; else those at their ends that do no better with others in the same
    direction. Two hosts alone cannot be told apart: both are named.
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
