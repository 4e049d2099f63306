"""A process whose dumps fail slowly is tried less and less often."""

from __future__ import annotations

from probes.stacks import LONG_S, PAUSES_S, Backoff

ONE, OTHER = (10, 1), (10, 2)
WHY = OSError("no answer")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_pauses_grow_until_a_dump_succeeds() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    backoff.note(ONE, LONG_S, WHY)
    assert backoff.skip_reason(ONE) is None  # the first of a row may be the fault of a busy host
    for pause_s in (*PAUSES_S[1:], PAUSES_S[-1]):
        backoff.note(ONE, LONG_S, WHY)
        clock.now_s += pause_s
        assert backoff.skip_reason(ONE) is None
        clock.now_s -= 1.0
        assert backoff.skip_reason(ONE) is WHY
        assert backoff.skip_reason(OTHER) is None
        clock.now_s += 1.0
    backoff.note(ONE, LONG_S, [])
    backoff.note(ONE, LONG_S, WHY)
    assert backoff.skip_reason(ONE) is None


def test_a_dump_that_fails_quickly_is_retried_at_once() -> None:
    backoff = Backoff(Clock())
    for _ in range(5):
        backoff.note(ONE, LONG_S / 2, WHY)
        assert backoff.skip_reason(ONE) is None


def test_unwatched_processes_are_forgotten() -> None:
    backoff = Backoff(Clock())
    for process in (ONE, OTHER):
        for _ in range(2):
            backoff.note(process, LONG_S, WHY)
    backoff.keep({ONE})
    assert backoff.skip_reason(ONE) is WHY
    assert backoff.skip_reason(OTHER) is None
