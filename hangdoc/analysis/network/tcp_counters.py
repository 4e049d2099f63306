"""What the kernel's counters say of one TCP connection: how long idle, dead or merely waiting, how much crossed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from hangdoc.analysis.fast_dataclass import fast_dataclass
from hangdoc.evidence import Connection, Sockets

LINEAR = 4  # repetitions of a SYN, a second apart
# The kernel repeats a lost segment after 0.2, 0.6, 1.4 and 3.0 s: silence after that is no hiccup.
DEAD_AFTER_S = 3.0
DEAD_REPEATS = 3
NEARLY = 0.9  # full: TCP options that come and go take a few bytes
PART = 0.75  # of a full segment: what is smaller on average is not full
YOUNG_SEGMENTS = 16  # acknowledged: a connection that has only said hello
SMALL = 0.25  # of a full segment, on average

Identity = tuple[str, int, str, int, int | None]


# Tells a connection from every other over time.
identity: Callable[[Connection], Identity] = attrgetter("local", "local_port", "remote", "remote_port", "inode")


def idle(one: Connection) -> float | None:
    """Seconds since a byte last crossed in either direction; None where the kernel did not say, or none ever did."""
    # A repetition counts as a send, though nothing crosses: then only what the peer acknowledged counts.
    sent, received = one.last_ack_s if unanswered(one) else one.last_send_s, one.last_receive_s
    if sent is None or received is None:
        return received if sent is None else sent
    return min(sent, received)


def repeats(one: Connection) -> bool | None:
    """Whether the segment at the head is being sent again."""
    return None if one.retransmits is None else one.retransmits > 0


def unanswered(one: Connection) -> int | None:
    """Repetitions in a row, or probes where nothing is on its way yet, that had no answer."""
    return None if one.retransmits is None else max(one.retransmits, one.probes or 0)


def dead(one: Connection) -> bool | None:
    """Bytes wait, several repetitions had no answer, and nothing was heard for seconds.

    A peer that merely does not read still answers probes, so that their count stays low.
    """
    if one.retransmits is None:
        return None
    if one.send_queue <= 0 or (unanswered(one) or 0) < DEAD_REPEATS:
        return False
    return one.last_ack_s is None or one.last_ack_s > DEAD_AFTER_S


def oversize(one: Connection) -> bool | None:
    """Full segments are repeated in vain while smaller ones arrive.

    They do where the peer has told of some behind the hole (SACK), or where all that ever arrived was small. Where
    full ones have arrived behind it, it is chance that keeps this one back.
    """
    full = only_full(one)
    if not full or not one.segment_bytes:
        return full
    if one.sacked:
        missing = (one.unacked or 0) - one.sacked
        on_the_way = one.send_queue - (one.not_sent or 0)
        return on_the_way - missing * one.segment_bytes <= PART * one.segment_bytes * one.sacked
    return _only_small(one, one.segment_bytes)


def only_full(one: Connection) -> bool | None:
    """Whatever is repeated in vain are full segments: it may be that only these do not arrive."""
    if one.retransmits is None or one.unacked is None or not one.segment_bytes:
        return None
    on_the_way = one.send_queue - (one.not_sent or 0)
    missing = one.unacked - (one.sacked or 0)
    return one.retransmits >= DEAD_REPEATS and missing >= 1 and on_the_way >= NEARLY * missing * one.segment_bytes


def _only_small(one: Connection, full: int) -> bool:
    """Of the little that the peer has acknowledged hardly any can have been a full segment."""
    acked, delivered = one.bytes_acked, one.delivered
    if not acked or not delivered:
        return False
    return acked <= YOUNG_SEGMENTS * full and acked <= SMALL * full * delivered


def syn_age_s(one: Connection) -> float:
    """For how long a connection in syn_sent has been asked for (s), at least, by its repetitions.

    Linux >= 6.5 repeats a SYN four times a second apart (tcp_syn_linear_timeouts), then after 1, 2, 4 s.
    """
    repeated = one.retransmits or 0
    return float(repeated if repeated <= LINEAR else LINEAR + 2 ** (repeated - LINEAR) - 1)


def window_shut(one: Connection) -> bool | None:
    """The peer takes no more bytes: its process does not read them."""
    if one.send_queue == 0:
        return False
    if one.send_window is None:
        return None if one.timer is None else one.timer == "persist" and not one.probes
    return one.send_window == 0


@dataclass(slots=True)
class SocketHistory:
    """The looks at one rank's sockets, oldest first, in each of which a connection can be found."""

    looks: Sequence[tuple[float, Sockets]]
    _known: dict[int, Mapping[Identity, Connection]] = field(default_factory=dict)

    def known(self, at: int) -> Mapping[Identity, Connection]:
        """The connections that one look found."""
        if at not in self._known:
            connections = self.looks[at][1].connections
            self._known[at] = dict(zip(map(identity, connections), connections, strict=True))
        return self._known[at]

    def first(self, one: Connection) -> tuple[float, Connection] | None:
        """The first look that found this connection."""
        return next(self.of(one), None)

    def of(self, one: Connection) -> Iterator[tuple[float, Connection]]:
        """The looks that found this connection."""
        name = identity(one)
        for at, (instant, _) in enumerate(self.looks):
            if (found := self.known(at).get(name)) is not None:
                yield instant, found


@fast_dataclass(frozen=True, slots=True)
class Traffic:
    """Sums over connections between two looks; None where the kernel did not say."""

    seconds: float
    crossed: int | None  # bytes acknowledged and received
    sent: int | None  # bytes, else segments, repetitions included
    repeated: int | None  # of these


def traffic(before: Mapping[Identity, Connection], after: Iterable[Connection], seconds: float) -> Traffic:
    """What passed over the connections of `after` since `before`; all of it for those that are new."""
    crossed = sent = repeated = 0
    known = counted = True
    for new in after:
        old, now = before.get(identity(new)), _COUNTERS(new)
        was = () if old is None else _COUNTERS(old)
        if now == was and None not in now:
            continue  # nothing crossed
        received, acked, out, again, segments, repeats = _grown(was, now)
        if out is None or again is None:  # before Linux 4.19
            out, again = segments, repeats
        known = known and received is not None and acked is not None
        counted = counted and out is not None and again is not None
        crossed += (received or 0) + (acked or 0)
        sent += out or 0
        repeated += again or 0
    return Traffic(seconds, crossed if known else None, sent if counted else None, repeated if counted else None)


_COUNTERS: Callable[[Connection], tuple[int | None, ...]] = attrgetter(
    "bytes_received", "bytes_acked", "bytes_sent", "bytes_retransmitted", "segments_out", "total_retransmits"
)


def _grown(was: Sequence[int | None], now: Sequence[int | None]) -> Sequence[int | None]:
    """By how much each of the counters did; `was`: empty for a connection that is new."""
    pairs = zip(now, was or (0,) * len(now), strict=True)
    return [None if new is None else new - (old or 0) for new, old in pairs]


def least(values: Iterable[float | None]) -> float | None:
    return min([value for value in values if value is not None], default=None)
