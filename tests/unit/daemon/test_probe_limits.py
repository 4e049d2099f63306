"""A probe that is slow, fails or never returns on one of its targets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from hangdoc.daemon.health import Abandoned, Steps
from hangdoc.daemon.probe_limits import MAX_S, LimitedProbe
from hangdoc.evidence import Process, Target
from probes import Observation, Request, Tier
from tests.support.polling import until

TARGETS = tuple(Target(pid, 1, "here", pid) for pid in (1, 2, 3))


class Probe:
    """Blocks on the targets in `bad` until `freed`, and fails on those in `broken`."""

    name, scope, tier, needs, order, steady = "fake", "rank", Tier.PULSE, "nothing", 1, False
    record: type = Process

    def __init__(self) -> None:
        self.bad: set[int] = set()
        self.broken: set[int] = set()
        self.asked: list[tuple[int, ...]] = []
        self.freed = threading.Event()

    def observe(self, request: Request) -> Observation:
        self.asked.append(tuple(target.pid for target in request.targets))
        if self.broken & set(self.asked[-1]):
            raise ValueError("broken")
        if self.bad & set(self.asked[-1]):
            self.freed.wait(20)
        return Observation({target.pid: "seen" for target in request.targets})


@pytest.fixture
def probe() -> Iterator[Probe]:
    found = Probe()
    yield found
    found.freed.set()


def observe(limited: LimitedProbe, *targets: Target) -> Observation:
    return limited.observe(Request(targets or TARGETS, Tier.PULSE))


def test_a_blocked_call_is_left_behind_and_its_target_left_alone(probe: Probe) -> None:
    steps, failed = Steps(), list[str]()
    limited = LimitedProbe(probe, steps, failed.append)
    probe.bad = {2}
    ended: list[str] = []

    def round() -> None:
        try:
            observe(limited)
        except Abandoned:
            ended.append("abandoned")

    threads = []
    for calls in (1, 3):  # all at once blocks; one by one, the second of them does
        thread = threading.Thread(target=round)
        steps.hand_over(thread)
        thread.start()
        until(lambda calls=calls: len(probe.asked) >= calls)  # type: ignore[misc]
        threads.append(thread)
    assert probe.asked == [(1, 2, 3), (1,), (2,)]
    steps.hand_over(threading.current_thread())
    seen = observe(limited)
    assert sorted(seen.by_pid) == [1, 3]
    assert [(lack.pid, lack.why) for lack in seen.unseen] == [(2, "left alone: the probe is blocked on PID 2")]
    probe.freed.set()
    for thread in threads:
        thread.join(20)
    assert ended == ["abandoned", "abandoned"]
    assert sorted(observe(limited).by_pid) == [1, 2, 3]
    assert probe.asked[-1] == (1, 2, 3)


def test_a_slow_target_is_found_and_left_alone_for_longer_each_time(probe: Probe) -> None:
    steps, failed, now = Steps(), list[str](), [0.0]
    steps.hand_over(threading.current_thread())
    limited = LimitedProbe(probe, steps, failed.append, lambda: now[0])
    slow = probe.observe

    def takes(request: Request) -> Observation:
        now[0] += 5.0 if any(target.pid == 2 for target in request.targets) else 0.01
        return slow(request)

    with patch.object(probe, "observe", takes):
        observe(limited)
        assert sorted(observe(limited).by_pid) == [1, 2, 3]
        assert probe.asked == [(1, 2, 3), (1,), (2,), (3,)]
        assert sorted(observe(limited).by_pid) == [1, 3]
        rests = []
        for _ in range(8):
            left_s = limited._rests[2, 1][1] - now[0]
            rests.append(round(left_s))
            now[0] += left_s
            observe(limited, TARGETS[1])
        assert rests == sorted(rests)
        assert rests[-1] == MAX_S
    assert len(failed) == 10


def test_a_target_that_is_fast_again_is_forgiven(probe: Probe) -> None:
    steps, now = Steps(), [0.0]
    steps.hand_over(threading.current_thread())
    limited = LimitedProbe(probe, steps, lambda name: None, lambda: now[0])
    limited._rests[2, 1] = (60.0, 10.0)
    assert observe(limited, TARGETS[1]).unseen
    now[0] = 11.0
    assert observe(limited, TARGETS[1]).by_pid
    assert not limited._rests
    limited._rests[9, 9] = (60.0, 10.0)
    limited.forget(TARGETS)
    assert not limited._rests


def test_a_failure_is_counted_and_raised(probe: Probe) -> None:
    steps, failed = Steps(), list[str]()
    steps.hand_over(threading.current_thread())
    limited = LimitedProbe(probe, steps, failed.append)
    probe.broken = {1}
    with pytest.raises(ValueError, match="broken"):
        observe(limited)
    assert failed == ["fake"]
