"""Rounds that finish, that block, and what the outside learns of them."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from unittest.mock import patch

import pytest

from hangdoc.daemon import health
from hangdoc.daemon.health import Abandoned, HealthServer, Liveness, Steps
from hangdoc.daemon.notify import Notifier
from hangdoc.errors import HangdocError


class Heard(Notifier):
    def __init__(self) -> None:
        super().__init__({})
        self.times = 0

    def alive(self) -> None:
        self.times += 1


def test_only_a_finished_round_is_a_sign_of_life() -> None:
    heard = Heard()
    liveness = Liveness(heard)
    assert json.loads(liveness.page()[2])["status"] == "starting"
    liveness.finished()
    assert liveness.page()[0] == 200
    liveness.blocked("probe stacks")
    code, _, body = liveness.page()
    assert code == 503
    assert json.loads(body)["blocked"] == "probe stacks"
    assert heard.times == 1
    liveness.finished()
    assert liveness.page()[0] == 200
    with patch.object(health, "STALE_S", 0.0):
        assert liveness.page()[0] == 503


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


def test_pages_are_served_on_loopback() -> None:
    liveness = Liveness(Heard())
    server = HealthServer(0, {"/healthz": liveness.page})
    try:
        address = f"http://127.0.0.1:{server.port}"
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{address}/healthz", timeout=5)
        liveness.finished()
        with urllib.request.urlopen(f"{address}/healthz?full", timeout=5) as answer:
            assert json.loads(answer.read())["status"] == "ok"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/etc/passwd", timeout=5)
        with socket.create_connection(("127.0.0.1", server.port)):  # a client that says nothing
            with urllib.request.urlopen(f"{address}/healthz", timeout=10) as answer:
                assert answer.status == 200
        with pytest.raises(HangdocError, match=f"127.0.0.1:{server.port}"):
            HealthServer(server.port, {})
    finally:
        server.close()
