"""Globals of a training script, across the interpreters that are installed here."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from hangdoc.evidence import Tensor, Variable
from hangdoc.introspect import module_globals
from hangdoc.introspect.interpreter import Interpreter, modules_path
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.module_globals import MOST, Globals
from hangdoc.introspect.objects import Objects
from tests.support import requirements
from tests.support.polling import until
from tests.support.probe_targets import every_python, started

PROGRAM = "globals_program.py"
EXPECTED = {
    "count": ("int", "12", 12, None),
    "negative": ("int", "-5", -5, None),
    "wide": ("int", str(2**40 + 1), 2**40 + 1, None),
    "wider": ("int", str(-(2**45)), -(2**45), None),
    "zero": ("int", "0", 0, None),
    "rate": ("float", "1.5", 1.5, None),
    "endless": ("float", "inf", None, None),
    "flag": ("bool", "True", 1, None),
    "nothing": ("none", "None", None, None),
    "name": ("str", '"resnet"', None, 6),
    "accented": ("str", "str of 1", None, 1),
    "empty": ("str", '""', None, 0),
    "items": ("list", "list of 3", None, 3),
    "pair": ("tuple", "tuple of 1", None, 1),
    "table": ("dict", "dict of 2", None, 2),
    "api_key": ("str", "<redacted>", None, 25),
}


@every_python
@pytest.mark.parametrize("way", [[PROGRAM], ["-m", "globals_program"]], ids=["script", "module"])
def test_what_the_script_holds(python: str, way: list[str]) -> None:
    reader = Globals()
    with started(*way, python=python) as program:
        version, first = reader.read(program.pid, 1)
        assert first is not None
        begun = step(first)
        until(lambda: step(reader.read(program.pid, 1)[1] or ()), lambda now: now is not None and now > (begun or 0))
        assert program.state() in "RS"
    assert version is not None
    assert program.said.startswith(version)
    found = {v.name: (v.kind, v.text, v.number, v.length) for v in first}
    assert {name: found.get(name) for name in EXPECTED} == EXPECTED
    assert found["huge"][::2] == ("int", None)
    assert found["long"][3] == 500
    assert len(found["long"][1]) <= 120
    assert not found.keys() & {"gone", "Model", "train", "math", "model", "__name__", "Path"}
    assert begun is not None


def step(variables: Iterable[Variable]) -> float | None:
    return next((variable.number for variable in variables if variable.name == "step"), None)


def test_the_last_defined_of_many() -> None:
    code = "import time\nfor i in range(5000): globals()[f'v{i}'] = i\nprint(1, flush=True); time.sleep(99)"
    with started("-c", code) as program:
        _, found = Globals().read(program.pid, 1)
    assert found is not None
    assert [v.name for v in found] == [f"v{i}" for i in range(5000 - MOST, 5000)]
    assert [v.number for v in found] == list(range(5000 - MOST, 5000))


def test_a_module_put_in_place_of_main_is_followed() -> None:
    """`sys.modules['__main__']` is not the module of the start: runpy.run_path and spawned workers replace it."""
    code = (
        "import sys, types, time\nm = types.ModuleType('__main__'); m.mark = 41; sys.modules['__main__'] = m\n"
        "sys.modules.update({f'x{i}': m for i in range(3000)})\nprint(1, flush=True); time.sleep(99)"
    )
    with started("-c", code) as program:
        _, found = Globals().read(program.pid, 1)
    assert found is not None
    assert [(v.name, v.number) for v in found] == [("mark", 41)]


def test_the_script_of_a_spawned_process(tmp_path: Path) -> None:
    """multiprocessing's spawn runs the script again under the name `__mp_main__`."""
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing as mp, os, time\nmark = 17\n"
        "def work(n):\n print(os.getpid(), flush=True); time.sleep(99)\n"
        "if __name__ == '__main__':\n p = mp.get_context('spawn').Process(target=work, args=(1,), daemon=True)\n"
        " p.start(); p.join()"
    )
    with started(str(script)) as program:
        _, found = Globals().read(program.said, 1)
        os.kill(program.said, signal.SIGKILL)
    assert found is not None
    assert [(v.name, v.number) for v in found] == [("mark", 17)]


def test_tensors_and_arrays_among_globals() -> None:
    requirements.met(requirements.torch())
    code = (
        "import torch, numpy, time\n"
        "w = torch.ones(3, 4, dtype=torch.bfloat16); a = numpy.zeros((7, 2)); n = numpy.int64(9)\n"
        "print(1, flush=True); time.sleep(99)"
    )
    with started("-c", code) as program:
        _, found = Globals().read(program.pid, 1)
    known = {v.name: v for v in found or ()}
    assert known["w"].tensor == Tensor((3, 4), "bfloat16", "cpu")
    assert (known["a"].length, known["a"].text) == (7, "ndarray of 7")
    assert (known["n"].kind, known["n"].number) == ("int", 9)


def test_the_search_is_made_once_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = []

    def search(memory: Memory, interpreter: Interpreter) -> tuple[int, ...] | None:
        searches.append(memory.pid)
        return modules_path(memory, interpreter)

    monkeypatch.setattr(module_globals, "modules_path", search)
    reader = Globals()
    with started(PROGRAM) as one, started(PROGRAM) as other:
        for program in (one, other, one):
            assert reader.read(program.pid, 1)[1]
    assert len(searches) == 1


@pytest.mark.parametrize("command", [["sleep", "99"], ["true"]], ids=["not-python", "ended"])
def test_no_globals_is_unknown(command: list[str]) -> None:
    process = subprocess.Popen(command)
    try:
        if command == ["true"]:
            process.wait()
        reader = Globals()
        assert [reader.read(process.pid, 1) for _ in range(5)] == [(None, None)] * 5
    finally:
        process.kill()
        process.wait()


class Garbled(Memory):
    """Memory that changes under the reader."""

    def __init__(self, pid: int, rng: random.Random, share: float) -> None:
        super().__init__(pid)
        self._rng, self._share = rng, share

    def read_many(self, pieces: Sequence[tuple[int, int]]) -> list[bytes | None]:
        return [self._garble(data) for data in super().read_many(pieces)]

    def _garble(self, data: bytes | None) -> bytes | None:
        if not data or self._rng.random() > self._share:
            return data
        if self._rng.random() < 0.1:
            return None
        start = self._rng.randrange(len(data))
        return (data[:start] + self._rng.randbytes(8) + data[start + 8 :])[: len(data)]


@pytest.mark.parametrize("share", [0.3, 0.03, 0.003])
def test_garbage_is_survived(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    monkeypatch.setattr(module_globals, "Memory", lambda pid: Garbled(pid, rng, share))
    with started(PROGRAM) as program:
        for _ in range(60):
            Globals().read(program.pid, 1)
            with suppress(Unreadable):
                Objects(Garbled(program.pid, rng, share), (3, 12)).describe(range(1 << 20, 1 << 21, 1 << 14))


def test_this_very_process() -> None:
    """The test runner itself: hundreds of modules, another `__main__`."""
    version, found = Globals().read(os.getpid(), 1)
    # Before 3.11 a process does not hold its version as a number: then the name of the library tells only so much.
    assert version == ".".join(map(str, sys.version_info[: 3 if sys.version_info >= (3, 11) else 2]))
    assert found is not None
