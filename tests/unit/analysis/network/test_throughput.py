"""What one end of a connection sent: lossy, slow, or just busy for a moment. On looks made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from hangdoc.analysis.network.throughput import NOTHING, Flow, flow, since_start
from hangdoc.evidence import Connection

MBIT = 1e6 / 8


def looks(
    seconds: float = 10.0,
    every: float = 0.5,
    rate: float = 2 * MBIT,  # bytes acknowledged a second
    lost: Callable[[int], int] = lambda look: 0,  # segments that look's seconds lost
    needless: Callable[[int], int] = lambda look: 0,
    busy: Callable[[int], float] = lambda look: 1.0,
    **fields: Any,
) -> list[tuple[float, Connection]]:
    """A connection on which so much happens between two looks."""
    acked = busy_s = 0.0
    repeats = dups = 0
    found = []
    for look in range(int(seconds / every) + 1):
        if look:
            acked += rate * every * busy(look)
            busy_s += every * busy(look)
            repeats += lost(look) + needless(look)
            dups += needless(look)
        told: dict[str, Any] = {
            "send_queue": 60_000,
            "send_window": 65536,
            "segment_bytes": 1448,
            "rtt_s": 0.05,
            "least_rtt_s": 0.0002,
            "bytes_sent": int(acked) + repeats * 1448,
            "bytes_acked": int(acked),
            "busy_s": busy_s,
            "data_segments_out": int(acked / 1448) + repeats,
            "total_retransmits": repeats,
            "repeated_needlessly": dups,
            "receiver_limited_s": 0.0,
            **fields,
        }
        found.append((100 + look * every, Connection("10.0.0.1", 4000, "10.0.0.2", 5000, "established", **told)))
    return found


def judged(one: Flow) -> str:
    return "lossy" if one.lossy else "slow" if one.slow(one.rate or 0.0, 12.5e6) else ""


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(looks(), "slow", id="two Mbit/s all the time"),
        pytest.param(looks(every=3.0, seconds=40.0), "slow", id="looked at seldom"),
        pytest.param(looks(rate=1250 * MBIT), "", id="a full fast link"),
        pytest.param(looks(rate=300 * MBIT), "slow", id="300 Mbit/s and a queue on the way"),
        pytest.param(looks(rate=300 * MBIT, rtt_s=0.001), "", id="300 Mbit/s, as fast as it was asked"),
        pytest.param(looks(busy=lambda look: 0.1), "", id="busy now and then"),
        pytest.param(looks(busy=lambda look: float(look > 14)), "", id="one long transfer"),
        pytest.param(looks(send_queue=200), "", id="small messages, answered late"),
        pytest.param(looks(receiver_limited_s=None), "slow", id="a kernel that does not tell of windows"),
        pytest.param(looks(send_window=0), "", id="the receiver does not read"),
        pytest.param(looks(seconds=2.0), "", id="seen too shortly"),
        pytest.param(looks(rate=20e3, lost=lambda look: 2, rtt_s=0.001), "lossy", id="a fifth is lost"),
        pytest.param(looks(lost=lambda look: 20), "lossy", id="a fifth is lost through a full queue"),
        pytest.param(looks(lost=lambda look: 40 * (look % 2)), "lossy", id="a sixth is lost in every other look"),
        pytest.param(looks(lost=lambda look: 300 * (look == 9), rtt_s=0.001), "", id="much is lost at once"),
        pytest.param(looks(lost=lambda look: 150 * (look in (7, 14))), "slow", id="a queue that runs over"),
        pytest.param(looks(rate=20e3, lost=lambda look: int(look == 9)), "slow", id="one loss in ten seconds"),
        pytest.param(looks(needless=lambda look: 20), "slow", id="answers are lost"),
        pytest.param(
            looks(busy=lambda look: 0.05, lost=lambda look: int(look % 5 == 0)), "", id="a burst now and then"
        ),
        pytest.param(
            looks(busy=lambda look: 0.5 if look < 2 else 0.0, lost=lambda look: 5), "", id="it never recovers"
        ),
    ],
)
def test_judged_over_the_window(seen: Sequence[tuple[float, Connection]], expected: str) -> None:
    assert judged(flow(seen)) == expected


def test_a_slow_receiver_is_not_a_slow_link() -> None:
    seen = looks()
    (start, first), (end, last) = seen[0], seen[-1]
    slowed = [(start, first), *seen[1:-1], (end, replace(last, receiver_limited_s=8.0))]
    assert judged(flow(slowed)) == ""


def test_flow() -> None:
    told = flow(looks(lost=lambda look: 1, rtt_s=0.0003))
    assert (told.seconds, told.busy, told.rate) == (10.0, 1.0, 2 * MBIT)
    assert (told.repeats, told.times, told.steady) == (20, 20, 1.0)
    assert told.lost == pytest.approx(20 / (2.5e6 / 1448 + 20), rel=0.01)
    assert told.queue_full is False
    assert flow(looks(rtt_s=0.08)).queue_full is True


def test_without_evidence_nothing_is_claimed() -> None:
    bare = Connection("10.0.0.1", 4000, "10.0.0.2", 5000, "established")
    assert flow([]) == flow([(1.0, bare)]) == flow([(1.0, bare), (2.0, bare)]) == NOTHING
    assert judged(NOTHING) == ""
    assert since_start(bare) is None


def test_losses_over_the_life_of_a_connection() -> None:
    _, last = looks(rate=20e3, lost=lambda look: 2)[-1]
    paused = replace(last, retransmits=6)
    before = since_start(paused)
    assert before is not None
    assert before.repeats == 34
    assert since_start(replace(last, retransmits=30)) is None, "it repeats in vain, and has never lost much before"
