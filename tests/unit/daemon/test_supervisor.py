"""The main thread: a round that blocks is abandoned, signals are obeyed."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import pytest

from hangdoc.daemon import health, run
from hangdoc.daemon.config import Config
from hangdoc.daemon.health import Abandoned, Steps
from hangdoc.daemon.log import Log
from hangdoc.daemon.notify import Notifier
from hangdoc.daemon.run import FAILED, MAX_ABANDONED, RELOAD, STOP
from tests.support.polling import until


class Node:
    """Its first `blocking` rounds block until `freed`; so it is its own rounds."""

    def __init__(self, steps: Steps, blocking: int) -> None:
        self.steps, self.left = steps, blocking
        self.freed, self.runs = threading.Event(), threading.Event()
        self.named: list[str] = []
        self.configured: list[Config] = []
        self.abandoned = 0

    @property
    def rounds(self) -> Node:
        return self

    def run(self, stop: threading.Event) -> None:
        self.left -= 1
        try:
            if self.left >= 0:
                with self.steps.doing("probe stacks"):
                    self.freed.wait(20)
            self.runs.set()
            stop.wait(20)
        except Abandoned:
            self.abandoned += 1

    def blocked(self, step: str) -> None:
        self.named.append(step)

    def configure(self, config: Config) -> None:
        self.configured.append(config)

    def summary(self) -> str:
        return ""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "STEP_S", 0.1)
    monkeypatch.setattr(run, "TICK_S", 0.02)


def start(blocking: int, path: Path | None = None) -> tuple[Node, SimpleQueue[str], io.StringIO, Any]:
    steps, asked, stream = Steps(), SimpleQueue[str](), io.StringIO()
    node = Node(steps, blocking)
    found = run._Supervisor(path, cast(Any, node), steps, Log(stream, True), Notifier({}), asked)
    return node, asked, stream, found


def test_a_round_that_blocks_is_abandoned_and_named() -> None:
    node, asked, stream, supervisor = start(blocking=2)

    def stop() -> None:
        until(node.runs.is_set)
        node.freed.set()
        until(lambda: node.abandoned == 2)
        asked.put(STOP)

    helper = threading.Thread(target=stop)
    helper.start()
    assert supervisor.run() == 0
    helper.join()
    assert node.named == ["probe stacks"] * 2
    assert stream.getvalue().count("<3>probe stacks does not answer") == 2
    assert "<5>stopped" in stream.getvalue()


def test_when_the_kernel_releases_none_of_them_only_a_restart_helps() -> None:
    node, _, stream, supervisor = start(blocking=MAX_ABANDONED + 1)
    assert supervisor.run() == FAILED
    assert len(node.named) == MAX_ABANDONED
    assert "to be started again" in stream.getvalue()
    node.freed.set()


def test_an_invalid_configuration_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "hangdoc.toml"
    path.write_text("[budget]\ncpu_percent = 0\n")
    node, asked, stream, supervisor = start(0, path)
    asked.put(RELOAD)
    asked.put(STOP)
    assert supervisor.run() == 0
    assert not node.configured
    assert "the old one stays in effect" in stream.getvalue()
    path.write_text("[budget]\ncpu_percent = 3\n")
    node, asked, stream, supervisor = start(0, path)
    asked.put(RELOAD)
    asked.put(STOP)
    assert supervisor.run() == 0
    assert node.configured[0].budget.cpu_percent == 3
