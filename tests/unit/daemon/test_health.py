"""Rounds that finish, that block, and what the outside learns of them."""

from __future__ import annotations

import threading
import time
from unittest.mock import patch

from hangdoc.daemon import health
from hangdoc.daemon.health import Abandoned, Liveness, Steps
from hangdoc.daemon.notify import Notifier


class Heard(Notifier):
    def __init__(self) -> None:
        super().__init__({})
        self.times = 0

    def alive(self) -> None:
        self.times += 1


def test_only_a_finished_round_is_a_sign_of_life() -> None:
    heard = Heard()
    liveness = Liveness(heard)
    assert liveness.trouble().startswith("starting")
    liveness.finished()
    assert not liveness.trouble()
    liveness.blocked("probe stacks")
    assert liveness.trouble() == "blocked: probe stacks does not answer"
    assert heard.times == 1
    liveness.finished()
    assert not liveness.trouble()
    assert heard.times == 2
    with patch.object(health, "STALE_S", 0.0):
        assert liveness.trouble().startswith("no round has finished for")


def test_a_step_that_takes_too_long_is_named() -> None:
    steps = Steps()
    steps.hand_over(threading.current_thread())
    now_s = time.monotonic()
    assert steps.overdue(now_s + 1000) is None
    with steps.doing("look"):
        assert steps.overdue(now_s + 1000) == "look"
        with steps.doing("probe cpu"):
            assert steps.overdue(now_s) is None
            assert steps.overdue(now_s + 1000) == "probe cpu"
        assert steps.overdue(time.monotonic() + 1000) == "look"
    assert steps.overdue(now_s + 1000) is None


def test_a_thread_that_was_given_up_does_not_go_on() -> None:
    steps, blocked, went_on = Steps(), threading.Event(), []
    inside = threading.Event()

    def rounds() -> None:
        try:
            with steps.doing("probe stacks"):
                inside.set()
                blocked.wait(20)
            went_on.append("after the step")
        except Abandoned:
            went_on.append("abandoned")

    thread = threading.Thread(target=rounds)
    steps.hand_over(thread)
    thread.start()
    assert inside.wait(20)
    steps.hand_over(threading.current_thread())
    blocked.set()
    thread.join(20)
    assert went_on == ["abandoned"]
    with steps.doing("look"):  # the other thread has left nothing behind
        assert steps.overdue(time.monotonic() + 1000) == "look"
