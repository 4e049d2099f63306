"""Coroutines in which a program waits, read from its memory."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hangdoc.evidence import Stacks
from hangdoc.introspect import coroutines
from hangdoc.introspect.interpreter import find
from hangdoc.introspect.memory import Memory
from hangdoc.introspect.py_spy import PySpy
from hangdoc.system import programs
from probes.stacks import StacksProbe
from tests.support.paths import PROGRAMS
from tests.support.probe_targets import Program, every_python, started
from tests.unit.introspect.test_module_globals import Garbled

NAME = "coroutines_program.py"
LINES = [line.strip() for line in (PROGRAMS / NAME).read_text().splitlines()]
WAITS = {
    "queue": ("get", "serve", "main"),
    "sleep": ("sleep", "deliver", "serve", "main"),
    "task": ("sleep", "deliver", "serve", "main"),
}


def look(program: Program) -> list[tuple[str, str, int | None]]:
    """Function, file and line of the frames of the main thread."""
    stacks = StacksProbe().observe(program.request()).by_pid[program.pid]
    assert isinstance(stacks, Stacks)
    (main,) = (stack for stack in stacks.threads if stack.name == "MainThread")
    return [(frame.function, frame.short, frame.line) for frame in main.frames]


@every_python
@pytest.mark.parametrize("how", WAITS)
def test_above_the_event_loop(how: str, python: str) -> None:
    with started(NAME, how, python=python) as program:
        frames = look(program)
    names = [name for name, _, _ in frames]
    assert tuple(names[: len(WAITS[how])]) == WAITS[how]
    assert names[len(WAITS[how])] == "select"
    own = {name: line for name, file, line in frames if file == NAME}
    assert own["main"] == LINES.index("await serve(how)") + 1
    if how != "queue":
        assert own["deliver"] == LINES.index("await asyncio.sleep(pause)") + 1


def test_a_loop_without_a_task_is_shown_as_it_is() -> None:
    code = "import asyncio\nprint(1, flush=True)\nasyncio.new_event_loop().run_forever()"
    with started("-c", code) as program:
        frames = look(program)
    assert [name for name, _, _ in frames][:3] == ["select", "_run_once", "run_forever"]


def task_of(pid: int) -> int:
    """The address of the main task, as py-spy shows it."""
    binary = programs.py_spy()
    assert binary is not None
    frames: list[dict[str, Any]] = [
        frame for thread in PySpy(binary, {}).dump(pid) for frame in thread["frames"] if frame["locals"]
    ]
    return next(int(one["addr"]) for frame in frames for one in frame["locals"] if one["name"] == "future")


def test_what_is_no_task_has_no_coroutines() -> None:
    with started(NAME, "sleep") as program:
        task = task_of(program.pid)
        assert next(frame["name"] for frame in coroutines.awaiting(program.pid, task)) == "sleep"
        assert [coroutines.awaiting(program.pid, at) for at in (0, 8, task + 16, 1 << 46)] == [[]] * 4
        program.process.kill()
        program.process.wait()
        assert coroutines.awaiting(program.pid, task) == []


def test_garbage_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that changes under the reader."""
    rng = random.Random(7)
    with started(NAME, "sleep") as program:
        task, interpreter = task_of(program.pid), find(Memory(program.pid))
        monkeypatch.setattr(coroutines, "find", lambda memory: interpreter)
        for share in (0.3, 0.03, 0.003) * 20:
            monkeypatch.setattr(coroutines, "Memory", lambda pid, share=share: Garbled(pid, rng, share))
            assert len(coroutines.awaiting(program.pid, task)) <= 64
