"""What the kernel's tcp_info says about one TCP connection: idle time, dead or just waiting, bytes transferred."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from hangdoc.analysis.thresholds import (
    DEAD_AFTER_S,
    DEAD_REPEATS,
    FULL_SEGMENT,
    PART_SEGMENT,
    SMALL_SEGMENT,
    YOUNG_SEGMENTS,
)
from hangdoc.evidence import Connection, Sockets

LINEAR = 4  # SYN retransmissions at intervals of one second

ACKED: Callable[[Connection], int | None] = attrgetter("bytes_acked")
RECEIVED: Callable[[Connection], int | None] = attrgetter("bytes_received")
Identity = tuple[str, int, str, int, int | None]


# Identifies a connection over time.
identity: Callable[[Connection], Identity] = attrgetter("local", "local_port", "remote", "remote_port", "inode")


def idle(one: Connection) -> float | None:
    """Seconds since the last byte in either direction; None: unknown, or no byte yet."""
    # A retransmission counts as a send although no byte arrives: use the last acknowledgement instead.
    sent, received = one.last_ack_s if unanswered(one) else one.last_send_s, one.last_receive_s
    if sent is None or received is None:
        return received if sent is None else sent
    return min(sent, received)


def repeats(one: Connection) -> bool | None:
    """True if the first unacknowledged segment is being retransmitted."""
    return None if one.retransmits is None else one.retransmits > 0


def unanswered(one: Connection) -> int | None:
    """Consecutive unanswered retransmissions, or probes if nothing is in flight."""
    return None if one.retransmits is None else max(one.retransmits, one.probes or 0)


def dead(one: Connection) -> bool | None:
    """True if data is queued, several retransmissions are unanswered, and the peer has been silent for seconds.

    A peer that only stopped reading still answers window probes, which keeps the count low.
    """
    if one.retransmits is None:
        return None
    if one.send_queue <= 0 or (unanswered(one) or 0) < DEAD_REPEATS:
        return False
    return one.last_ack_s is None or one.last_ack_s > DEAD_AFTER_S


def oversize(one: Connection) -> bool | None:
    """True if full-size segments never arrive while smaller ones do.

    Evidence: the peer acknowledged smaller segments behind the gap (SACK), or only small segments ever arrived. If
    full-size segments arrived behind the gap, the loss is random.
    """
    full = only_full(one)
    if not full or not one.segment_bytes:
        return full
    if one.sacked:
        missing = (one.unacked or 0) - one.sacked
        on_the_way = one.send_queue - (one.not_sent or 0)
        return on_the_way - missing * one.segment_bytes <= PART_SEGMENT * one.segment_bytes * one.sacked
    return _only_small(one, one.segment_bytes)


def only_full(one: Connection) -> bool | None:
    """True if every segment that is retransmitted in vain is full-size: a path MTU problem is possible."""
    if one.retransmits is None or one.unacked is None or not one.segment_bytes:
        return None
    on_the_way = one.send_queue - (one.not_sent or 0)
    missing = one.unacked - (one.sacked or 0)
    return one.retransmits >= DEAD_REPEATS and missing >= 1 and on_the_way >= FULL_SEGMENT * missing * one.segment_bytes


def _only_small(one: Connection, full: int) -> bool:
    """True if hardly any of the few acknowledged segments can have been full-size."""
    acked, delivered = one.bytes_acked, one.delivered
    if not acked or not delivered:
        return False
    return acked <= YOUNG_SEGMENTS * full and acked <= SMALL_SEGMENT * full * delivered


def syn_age_s(one: Connection) -> float:
    """Age of a connection in syn_sent (s), at least, from its retransmissions.

    Linux >= 6.5 repeats a SYN four times at intervals of one second (tcp_syn_linear_timeouts), then after 1, 2, 4 s.
    """
    repeated = one.retransmits or 0
    return float(repeated if repeated <= LINEAR else LINEAR + 2 ** (repeated - LINEAR) - 1)


def window_shut(one: Connection) -> bool | None:
    """True if the receive window of the peer is closed, because its process does not read."""
    if one.send_queue == 0:
        return False
    if one.send_window is None:
        return None if one.timer is None else one.timer == "persist" and not one.probes
    return one.send_window == 0


@dataclass(slots=True)
class SocketHistory:
    """The samples of one rank's sockets, oldest first, with a lookup by connection."""

    samples: Sequence[tuple[float, Sockets]]
    _known: dict[int, Mapping[Identity, Connection]] = field(default_factory=dict)

    def known(self, at: int) -> Mapping[Identity, Connection]:
        """The connections in one sample."""
        if at not in self._known:
            connections = self.samples[at][1].connections
            self._known[at] = dict(zip(map(identity, connections), connections, strict=True))
        return self._known[at]

    def first(self, one: Connection) -> tuple[float, Connection] | None:
        """The first sample with this connection."""
        return next(self.of(one), None)

    def of(self, one: Connection) -> Iterator[tuple[float, Connection]]:
        """The samples with this connection: instant, connection."""
        name = identity(one)
        for at, (instant, _) in enumerate(self.samples):
            if (found := self.known(at).get(name)) is not None:
                yield instant, found


def bytes_between(before: Mapping[Identity, Connection], after: Iterable[Connection]) -> int | None:
    """Bytes acknowledged and received on the connections of `after` since `before`; None: not reported by the kernel.

    A new connection counts from its start.
    """
    connections = list(after)
    acked, received = (growth(before, connections, count) for count in (ACKED, RECEIVED))
    return acked + received if acked is not None and received is not None else None


def growth(
    before: Mapping[Identity, Connection], after: Iterable[Connection], count: Callable[[Connection], int | None]
) -> int | None:
    """What a counter of the connections of `after` has gained since `before`; None: not reported by the kernel.

    A new connection counts from its start.
    """
    total = 0
    for new in after:
        old = before.get(identity(new))
        if (now := count(new)) is None:
            return None
        total += now - (0 if old is None else count(old) or 0)
    return total


def least(values: Iterable[float | None]) -> float | None:
    """The minimum of the known values."""
    return min([value for value in values if value is not None], default=None)
