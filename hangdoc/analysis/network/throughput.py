"""One direction of a connection over the window: throughput, losses, and what limits it.

Judged over the window, never on one sample. A bottleneck link has data queued all the time; a lossy link loses packets
again and again, and each lost segment arrives in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from hangdoc.analysis.thresholds import (
    CLOSER_BUSY,
    CLOSER_REPEATS,
    HEAVY_LOSS,
    IN_EACH_PART,
    LOSSY,
    LOSSY_LIFE_REPEATS,
    LOSSY_REPEATS,
    LOSSY_STEADY,
    LOSSY_TIMES,
    MOSTLY,
    QUEUE_S,
    QUEUE_TIMES,
    SATURATED,
    SHUT,
    SLOW_BUSY,
    SLOW_WAITING,
    SLOW_WINDOW_S,
    WAITING_SEGMENTS,
)
from hangdoc.evidence import Connection

SEGMENT_BYTES = 1500  # of a connection that has not negotiated any: Ethernet

Samples = Sequence[tuple[float, Connection]]  # samples of one connection (s), oldest first


@dataclass(frozen=True, slots=True)
class Flow:
    """One direction of a connection over the window. Shares are 0..1; None: unknown, or only one sample."""

    seconds: float | None = None
    bytes: int | None = None  # acknowledged by the peer
    busy: float | None = None  # share of the time with data in flight
    busy_least: float | None = None  # the same, in the least busy third of the window
    rate: float | None = None  # bytes per second while busy
    waiting: float | None = None  # share of the samples with several segments waiting
    shut: float | None = None  # share of the busy time with a closed receive window
    segments: int | None = None  # sent, with retransmissions
    repeats: int | None = None  # segments retransmitted because they were lost
    lost: float | None = None  # share of the segments
    times: int = 0  # intervals with a loss after which the connection went on
    steady: float | None = None  # share of the intervals with traffic
    queue_s: float | None = None  # queueing delay: median round-trip time less the minimum
    queue_full: bool | None = None  # the queueing delay is many times the minimum round-trip time

    @property
    def suspicious(self) -> bool:
        """True if a closer look is worth it."""
        return (self.busy or 0.0) >= CLOSER_BUSY or (self.repeats or 0) >= CLOSER_REPEATS

    @property
    def lossy(self) -> bool:
        """True if the link loses packets all the time, not only when a queue overflows."""
        if (self.lost or 0.0) < LOSSY or (self.repeats or 0) < LOSSY_REPEATS or self.times < LOSSY_TIMES:
            return False
        often, heavy = self.steady or 0.0, (self.lost or 0.0) >= HEAVY_LOSS
        return often >= LOSSY_STEADY and (heavy or often >= MOSTLY or not self.queue_full)

    @property
    def loses_much(self) -> bool:
        """True if many segments were lost and no queue overflowed, perhaps at once."""
        return (self.lost or 0.0) >= HEAVY_LOSS and (self.repeats or 0) >= LOSSY_REPEATS and not self.queue_full

    def slow(self, rate: float, limit: float) -> bool:
        """True if the link is busy most of the time at a `rate` below `limit` (bytes/s), the receiver would take more,
        and the losses do not explain it.

        If packets queue all the time, the link is saturated, even at a higher rate.
        """
        most = SATURATED * limit if self.queue_full else limit
        if (self.seconds or 0.0) < SLOW_WINDOW_S or self.lossy or self.loses_much or rate > most:
            return False
        held_up = (self.busy or 0.0) >= SLOW_BUSY and (self.busy_least or 0.0) >= SLOW_BUSY * IN_EACH_PART
        return held_up and (self.waiting or 0.0) >= SLOW_WAITING and (self.shut or 0.0) <= SHUT


NOTHING = Flow()


def flow(samples: Samples) -> Flow:
    """The flow between the first and the last sample."""
    if len(samples) < 2:
        return NOTHING
    (start, first), (end, last) = samples[0], samples[-1]
    seconds, busy, acked = end - start, _grown(first, last, _busy_s), _grown(first, last, _acked)
    segments, repeats = _grown(first, last, _segments), _grown(first, last, _lost)
    if seconds <= 0 or busy is None:
        return NOTHING
    share = min(1.0, busy / seconds)
    enough = len(samples) > 2
    shut = _grown(first, last, lambda one: one.receiver_limited_s)
    times, steady = _times(samples) if enough and repeats else (0, None)
    queue_s, full = _queue(samples) if enough else (None, None)
    return Flow(
        seconds=seconds,
        bytes=None if acked is None else int(acked),
        busy=share,
        busy_least=_least_busy(samples) if enough else None,
        rate=acked / busy if acked is not None and busy > 0 else None,
        waiting=sum(map(_waits, samples)) / len(samples) if enough else None,
        shut=shut / busy if shut is not None and busy > 0 else None,
        segments=None if segments is None else int(segments),
        repeats=None if repeats is None else max(0, int(repeats)),
        lost=max(0.0, repeats / segments) if segments and repeats is not None else None,
        times=times,
        steady=steady,
        queue_s=queue_s,
        queue_full=full,
    )


def since_start(one: Connection) -> Flow | None:
    """Losses over the life of a connection that is paused now; None: few."""
    segments, lost = _segments(one), _lost(one)
    if not segments or lost is None:
        return None
    overcome = int(lost) - (one.retransmits or 0) - max(0, (one.unacked or 0) - (one.sacked or 0))
    if overcome < LOSSY_LIFE_REPEATS or overcome < LOSSY * segments:
        return None
    return Flow(bytes=one.bytes_acked, segments=int(segments), repeats=overcome, lost=overcome / segments)


def so_far(one: Connection) -> Flow:
    """Losses over the life of a connection, few or many."""
    segments, lost = _segments(one), _lost(one)
    if not segments or lost is None:
        return NOTHING
    return Flow(bytes=one.bytes_acked, segments=int(segments), repeats=int(lost), lost=lost / segments)


def _busy_s(one: Connection) -> float | None:
    return one.busy_s


def _acked(one: Connection) -> float | None:
    return one.bytes_acked


def _segments(one: Connection) -> float | None:
    return one.segments_out if one.data_segments_out is None else one.data_segments_out


def _lost(one: Connection) -> float | None:
    """Retransmitted segments, without spurious retransmissions (DSACK)."""
    return None if one.total_retransmits is None else one.total_retransmits - (one.repeated_needlessly or 0)


def _grown(first: Connection, last: Connection, of: Callable[[Connection], float | None]) -> float | None:
    before, after = of(first), of(last)
    return None if before is None or after is None else after - before


def _waits(sample: tuple[float, Connection]) -> bool:
    one = sample[1]
    return one.send_queue >= WAITING_SEGMENTS * (one.segment_bytes or SEGMENT_BYTES) and one.send_window != 0


def _least_busy(samples: Samples) -> float:
    """Busy share of the least busy third of the window."""
    start, end = samples[0][0], samples[-1][0]
    cuts = [
        min(samples, key=lambda sample: abs(sample[0] - at)) for at in (start + (end - start) * i / 3 for i in range(4))
    ]
    parts = [(b[0] - a[0], (b[1].busy_s or 0.0) - (a[1].busy_s or 0.0)) for a, b in pairwise(cuts)]
    return min((busy / seconds for seconds, busy in parts if seconds > 0), default=0.0)


def _times(samples: Samples) -> tuple[int, float | None]:
    """Number of intervals with a loss that was later recovered, and their share of the intervals with traffic."""
    steps = [
        (_grown(a, b, _segments) or 0.0, _grown(a, b, _lost) or 0.0, _grown(a, b, _acked) or 0.0)
        for (_, a), (_, b) in pairwise(samples)
    ]
    last = max((i for i, (_, _, acked) in enumerate(steps) if acked > 0), default=-1)
    sent = sum(segments > 0 for segments, _, _ in steps)
    lost = sum(repeats > 0 for _, repeats, _ in steps[: last + 1])
    return lost, lost / sent if sent else None


def _queue(samples: Samples) -> tuple[float | None, bool | None]:
    """Queueing delay: the median round-trip time while data waits, less the minimum; and whether it is a full queue."""
    best = min((one.least_rtt_s for _, one in samples if one.least_rtt_s is not None), default=None)
    rtt = [one.rtt_s for sample in samples if _waits(sample) and (one := sample[1]).rtt_s is not None]
    if best is None or not rtt:
        return None, None
    usual = median(value for value in rtt if value is not None)
    return max(0.0, usual - best), usual - best >= QUEUE_S and usual >= QUEUE_TIMES * best
