"""Ranks of a launcher that have not started yet."""

from __future__ import annotations

import math
from typing import cast

import pytest

from hangdoc.watch import run
from hangdoc.watch.run import QUIET_WAIT_S, WatchOptions
from hangdoc.watch.sources import LocalSource


class Late:
    """A source that finds its rank `after_s` seconds from now; its launcher ends after `ends_s`."""

    def __init__(self, after_s: float = math.inf, ends_s: float = math.inf) -> None:
        self.now_s, self.after_s, self.ends_s = 0.0, after_s, ends_s
        self.looks = 0

    @property
    def targets(self) -> tuple[int, ...]:
        return (1,) if self.now_s >= self.after_s else ()

    @property
    def starting(self) -> tuple[int, ...]:
        return (4276,) if self.now_s < self.ends_s else ()

    def find(self) -> Late:
        self.looks += 1
        return self


@pytest.fixture
def said() -> list[str]:
    return []


def wait(source: Late, said: list[str], monkeypatch: pytest.MonkeyPatch, wait_s: float, below: bool = False) -> float:
    """How long it waits for ranks."""

    def sleep(seconds: float) -> None:
        assert 0 < seconds <= run.MAX_WAIT_S
        source.now_s += seconds

    monkeypatch.setattr("hangdoc.watch.run.time.sleep", sleep)
    monkeypatch.setattr("hangdoc.watch.run.time.monotonic", lambda: source.now_s)
    run._await_ranks(cast(LocalSource, source), WatchOptions((4276,), wait_s=wait_s, below=below), said.append)
    return source.now_s


def test_a_launcher_is_waited_for(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert 30 <= wait(Late(30), said, monkeypatch, 600) <= 33
    assert said == ["PID 4276 has not started its ranks yet; waiting for them"]


def test_the_wait_is_bounded(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert wait(Late(), said, monkeypatch, 600) == 600
    assert wait(Late(), said, monkeypatch, 0) == 0


def test_it_ends_with_the_launcher(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert wait(Late(ends_s=20), said, monkeypatch, math.inf) <= 22


def test_ranks_that_are_there_are_not_waited_for(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    source = Late(0)
    assert (wait(source, said, monkeypatch, 600), source.looks, said) == (0, 0, [])


def test_a_command_without_ranks_costs_little_and_needs_no_comment_at_first(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wait(Late(QUIET_WAIT_S / 2), said, monkeypatch, math.inf, below=True) < QUIET_WAIT_S
    assert said == []
    source = Late(86400)
    wait(source, said, monkeypatch, math.inf, below=True)
    assert said == ["the command has not started its ranks yet; waiting for them"]
    assert source.looks < 86400 / run.MAX_WAIT_S + 100
