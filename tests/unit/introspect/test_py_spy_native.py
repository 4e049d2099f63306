"""Native dumps are taken only when needed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hangdoc.introspect import py_spy
from hangdoc.introspect.py_spy import PySpy, _rarest_first
from probes import Tier
from probes.stacks import StacksProbe
from tests.support.polling import at_rest, until
from tests.support.probe_targets import started


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were paused, in order."""
    pids: list[int] = []
    dump = PySpy.dump_native

    def count(spy: PySpy, pid: int) -> list[dict[str, Any]]:
        pids.append(pid)
        return dump(spy, pid)

    monkeypatch.setattr(PySpy, "dump_native", count)
    return pids


def test_what_has_not_run_is_not_paused_again(paused: list[int]) -> None:
    probe = StacksProbe()
    with started("stacks_program.py") as program:
        at_rest(program.pid)
        for tier in (Tier.EXAMINE, Tier.LOOK, Tier.EXAMINE):
            seen = probe.observe(program.request(tier, still=True)).by_pid[program.pid]
    assert seen.native
    assert paused == [program.pid]


def test_what_has_run_is_looked_at_again(paused: list[int]) -> None:
    probe = StacksProbe()
    with started("globals_program.py") as program:
        ran = Path(f"/proc/{program.pid}/schedstat")
        for _ in range(2):
            assert probe.observe(program.request(Tier.EXAMINE, still=True)).by_pid[program.pid].native
            until(ran.read_text, ran.read_text().__ne__)
    assert paused == [program.pid] * 2


def test_no_further_dump_is_started_when_the_time_is_up(paused: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py_spy, "_BUDGET_S", -1.0)
    with started("stacks_program.py") as program:
        seen = StacksProbe().observe(program.request(Tier.EXAMINE, still=True))
    assert seen.unseen == ()
    assert not seen.by_pid[program.pid].native
    assert paused == []


def at(line: int) -> list[dict[str, Any]]:
    return [{"frames": [{"name": "train", "line": line, "module": None}]}]


def test_ranks_with_rare_stacks_come_first() -> None:
    dumps: dict[int, Any] = {1: at(5), 2: at(5), 3: at(5), 4: at(9), 5: at(7), 6: at(7)}
    assert _rarest_first(list(dumps), dumps) == [4, 5, 1, 6, 2, 3]


def test_threads_that_a_pause_has_woken_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter([{"R", "S"}, {"R"}, {"S"}])
    monkeypatch.setattr(py_spy, "_states", lambda pid: next(states))
    py_spy._await_rest([7])
    assert list(states) == []


def test_threads_that_go_on_running_are_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py_spy, "_states", lambda pid: {"R"})
    began = time.monotonic()
    py_spy._await_rest(range(64))
    assert py_spy.RESUMED_S <= time.monotonic() - began < 10
