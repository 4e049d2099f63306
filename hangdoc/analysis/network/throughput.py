"""What one end of a connection sent while it was watched: how fast, how much of it in vain, and what held it up.

Judged over the window, never on one look: a link that sets the pace keeps bytes waiting all the time, one that loses
packets does so again and again, and what it lost arrives in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from hangdoc.evidence import Connection

Sent = Sequence[tuple[float, Connection]]  # the looks at one connection (s), oldest first

WAITING_SEGMENTS = 4  # unacknowledged, and more may still be to come: the link is what is waited for
WALK = 3  # repetitions, ...
WALK_BUSY = 0.2  # ... or a share of the time: less is not worth a closer look

# Above 2 % TCP is slow and a person would look; a burst of a few is what any network has now and then.
LOSSY = 0.04
LOSSY_REPEATS = 5
LOSSY_TIMES = 3
OVERCOME = 15  # repetitions in the life of a connection: it has lost packets before, and gone on
LOSSY_STEADY = 0.4  # of the times that something was sent

SLOW_BUSY = 0.4
SLOW_IN_PART = 0.5  # of that, in each third of the window
SLOW_WAITING = 0.3
SHUT = 0.3
QUEUE_S = 0.02  # so much longer a packet takes through a queue that stands full, and ...
QUEUE_TIMES = 8.0  # ... so many times as long as through an empty one
QUEUED_LIMIT = 5.0
MIN_WINDOW_S = 4.0


@dataclass(frozen=True, slots=True)
class Flow:
    """One direction of a connection over the window; shares are 0..1, None: not told, or seen only once."""

    seconds: float | None = None
    bytes: int | None = None  # that the peer acknowledged
    busy: float | None = None  # share of the time with something on its way
    busy_least: float | None = None  # the same in the third of the window where it was least
    rate: float | None = None  # bytes per second of that time
    waiting: float | None = None  # share of the looks that found several segments waiting
    shut: float | None = None  # share of the busy time in which the receiver took no more
    segments: int | None = None  # sent, with repetitions
    repeats: int | None = None  # segments repeated because they did not arrive
    lost: float | None = None  # share of the segments
    times: int = 0  # looks since the look before which something was lost, and after which bytes went on
    steady: float | None = None  # share of those of the looks since which anything was sent
    queue_s: float | None = None  # how much longer than at best a packet takes to be answered
    queue_full: bool | None = None  # and whether that is many times as long

    @property
    def suspicious(self) -> bool:
        """Worth a closer look."""
        return (self.busy or 0.0) >= WALK_BUSY or (self.repeats or 0) >= WALK

    @property
    def lossy(self) -> bool:
        """It loses packets all the time, and not because a queue runs over now and then."""
        if (self.lost or 0.0) < LOSSY or (self.repeats or 0) < LOSSY_REPEATS or self.times < LOSSY_TIMES:
            return False
        often = self.steady or 0.0
        return often >= LOSSY_STEADY and (often >= 2 * LOSSY_STEADY or not self.queue_full)

    def slow(self, rate: float, limit: float) -> bool:
        """It is busy most of the time, at a `rate` below `limit` (bytes/s), and the receiver would take more.

        Where packets stand in a queue all the time the way is full, also at a higher rate.
        """
        most = QUEUED_LIMIT * limit if self.queue_full else limit
        if (self.seconds or 0.0) < MIN_WINDOW_S or self.lossy or rate > most:
            return False
        held_up = (self.busy or 0.0) >= SLOW_BUSY and (self.busy_least or 0.0) >= SLOW_BUSY * SLOW_IN_PART
        return held_up and (self.waiting or 0.0) >= SLOW_WAITING and (self.shut or 0.0) <= SHUT


NOTHING = Flow()


def flow(looks: Sent) -> Flow:
    """What was sent between the first and the last look."""
    if len(looks) < 2:
        return NOTHING
    (start, first), (end, last) = looks[0], looks[-1]
    seconds, busy, acked = end - start, _grown(first, last, _busy_s), _grown(first, last, _acked)
    segments, repeats = _grown(first, last, _segments), _grown(first, last, _lost)
    if seconds <= 0 or busy is None:
        return NOTHING
    share = min(1.0, busy / seconds)
    told = len(looks) > 2
    shut = _grown(first, last, lambda one: one.receiver_limited_s)
    times, steady = _times(looks) if told and repeats else (0, None)
    queue_s, full = _queue(looks) if told else (None, None)
    return Flow(
        seconds=seconds,
        bytes=None if acked is None else int(acked),
        busy=share,
        busy_least=_least_busy(looks) if told else None,
        rate=acked / busy if acked is not None and busy > 0 else None,
        waiting=sum(map(_waits, looks)) / len(looks) if told else None,
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
    """What a connection has lost and overcome, as far as can be told while it pauses; None where that is not much."""
    segments, lost = _segments(one), _lost(one)
    if not segments or lost is None:
        return None
    overcome = int(lost) - (one.retransmits or 0) - max(0, (one.unacked or 0) - (one.sacked or 0))
    if overcome < OVERCOME or overcome < LOSSY * segments:
        return None
    return Flow(bytes=one.bytes_acked, segments=int(segments), repeats=overcome, lost=overcome / segments)


def so_far(one: Connection) -> Flow:
    """What a connection has repeated, whether or not that is much."""
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
    """Segments repeated, but for those that had arrived: only their answers were late, or lost on the way back."""
    return None if one.total_retransmits is None else one.total_retransmits - (one.repeated_needlessly or 0)


def _grown(first: Connection, last: Connection, of: Callable[[Connection], float | None]) -> float | None:
    before, after = of(first), of(last)
    return None if before is None or after is None else after - before


def _waits(look: tuple[float, Connection]) -> bool:
    one = look[1]
    return one.send_queue >= WAITING_SEGMENTS * (one.segment_bytes or 1500) and one.send_window != 0


def _least_busy(looks: Sent) -> float:
    """The busy share of the third of the window where it was least."""
    start, end = looks[0][0], looks[-1][0]
    cuts = [min(looks, key=lambda look: abs(look[0] - at)) for at in (start + (end - start) * i / 3 for i in range(4))]
    parts = [(b[0] - a[0], (b[1].busy_s or 0.0) - (a[1].busy_s or 0.0)) for a, b in pairwise(cuts)]
    return min((busy / seconds for seconds, busy in parts if seconds > 0), default=0.0)


def _times(looks: Sent) -> tuple[int, float | None]:
    """How often something was lost that was overcome later, and in which share of the times that anything was sent."""
    steps = [
        (_grown(a, b, _segments) or 0.0, _grown(a, b, _lost) or 0.0, _grown(a, b, _acked) or 0.0)
        for (_, a), (_, b) in pairwise(looks)
    ]
    last = max((i for i, (_, _, acked) in enumerate(steps) if acked > 0), default=-1)
    sent = sum(segments > 0 for segments, _, _ in steps)
    lost = sum(repeats > 0 for _, repeats, _ in steps[: last + 1])
    return lost, lost / sent if sent else None


def _queue(looks: Sent) -> tuple[float | None, bool | None]:
    """What packets wait on the way: the time to their answers, beyond that of the fastest."""
    best = min((one.least_rtt_s for _, one in looks if one.least_rtt_s is not None), default=None)
    rtt = [one.rtt_s for look in looks if _waits(look) and (one := look[1]).rtt_s is not None]
    if best is None or not rtt:
        return None, None
    usual = median(value for value in rtt if value is not None)
    return max(0.0, usual - best), usual - best >= QUEUE_S and usual >= QUEUE_TIMES * best
