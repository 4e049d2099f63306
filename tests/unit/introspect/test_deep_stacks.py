"""Stacks too deep, and threads too many, for py-spy are shortened."""

from __future__ import annotations

import os
import resource
import struct
import sys
import threading
import time
from pathlib import Path

import pytest

from hangdoc.evidence import Stacks
from hangdoc.introspect import deep_stacks, py_spy, thread_states
from hangdoc.introspect.frames import INNERMOST, OUTERMOST
from hangdoc.introspect.interpreter import Interpreter
from hangdoc.introspect.memory import Memory
from hangdoc.system import programs
from probes import Tier
from probes.stacks import StacksProbe
from tests.support.pace import slowness
from tests.support.paths import PROGRAMS
from tests.support.polling import at_rest, until
from tests.support.probe_targets import Program, every_python, started

REAL = programs.py_spy() or ""
DEPTH = 100_000
SCRIPT = """
import time

def größe(*items):
    for item in (1,):
        with open(__file__):
            print(
                1,
                flush=True,
            ); [time.sleep(99) for _ in [1]]

class Job:
    def run(self): return max(
        0,
        größe(),
    )

Job().run()
"""


def look(program: Program, tier: Tier = Tier.LOOK) -> tuple[Stacks, str]:
    """What is seen of its stacks, and why that is not all; on a busy host, it may take a second look."""
    request = program.request(tier, still=tier is Tier.EXAMINE)
    seen = until(lambda: StacksProbe().observe(request), lambda seen: program.pid in seen.by_pid)
    (unseen,) = seen.unseen
    return seen.by_pid[program.pid], unseen.why


@every_python
def test_100_000_frames_are_shown_shortened(python: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with started("deep_program.py", str(DEPTH), "0", python=python) as program:
        at_rest(program.pid)
        slow, began_s = slowness(), time.monotonic()
        stacks, why = look(program, Tier.EXAMINE)
        assert time.monotonic() - began_s < 5 * max(slow, slowness())
    assert why.startswith("a stack is 100,0")
    assert why.endswith(" frames deep: only its two ends are shown, without variables")
    main, deep = stacks.threads
    assert (main.name, main.tid, main.left_out) == ("MainThread", program.pid, 0)
    assert [frame.function for frame in main.frames] == ["wait", "wait", "<module>"]
    assert len(deep.frames) == INNERMOST + OUTERMOST
    assert deep.left_out > DEPTH - INNERMOST - OUTERMOST
    own = [(frame.function, frame.line, frame.short) for frame in deep.frames if frame.short == "deep_program.py"]
    source = (PROGRAMS / "deep_program.py").read_text().splitlines()
    assert own[0] == ("descend", source.index("    event.wait()") + 1, "deep_program.py")
    recursion = source.index("            descend(left - 1),") + 1
    assert set(own[1:]) == {("descend", recursion, "deep_program.py")}
    assert deep.frames[-1].function == "_bootstrap"
    assert not stacks.native
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 << 10  # KiB


@pytest.mark.slow("a process starts 10,000 threads")
def test_10_000_threads_are_shown_in_part() -> None:
    with started("deep_program.py", "5", "10000", python=sys.executable) as program:
        stacks, why = look(program)
    assert why == "it has 10,002 threads; only 1,024 are shown, without variables"
    assert len(stacks.threads) == 1024
    assert stacks.threads[0].name == "MainThread"
    assert "descend" in [frame.function for frame in stacks.threads[1].frames]  # the oldest come first


@every_python
def test_it_reads_what_py_spy_reads(python: str, tmp_path: Path) -> None:
    script = tmp_path / "añb\u4e16.py"
    script.write_text(SCRIPT, encoding="utf-8")
    with started(str(script), python=python) as program:
        at_rest(program.pid)
        found, told = deep_stacks.read(program.pid), py_spy.PySpy(REAL).dump(program.pid)
    assert found is not None
    assert found.why is None
    mine = [(f["name"], f["filename"], f["line"]) for f in found.threads[0]["frames"]]
    theirs = [(f["name"].rpartition(".")[2], f["filename"], f["line"]) for f in told[0]["frames"]]
    assert mine == theirs


def test_a_stack_that_changes_is_no_error() -> None:
    code = (
        "import threading\ndef f(n): return n and f(n - 1)\ndef g():\n while True: f(900)\n"
        "threading.Thread(target=g).start(); print(1, flush=True); g()"
    )
    with started("-c", code) as program:
        for _ in range(20):
            found = deep_stacks.read(program.pid)
            for thread in found.threads if found else ():
                names = {frame["name"] for frame in thread["frames"]}
                assert names <= {"f", "g", "<module>", "run", "_bootstrap", "_bootstrap_inner"}


def test_none_where_there_is_no_python() -> None:
    assert deep_stacks.read(2**22 + 5) is None
    with started("-c", "import os; print(1, flush=True); os.execvp('sleep', ['sleep', '99'])") as program:
        while "sleep" not in Path(f"/proc/{program.pid}/comm").read_text():
            threading.Event().wait(0.01)
        assert deep_stacks.read(program.pid) is None


@pytest.mark.parametrize("ring", [1, 2, 700])
def test_a_ring_of_frames_ends_at_once(ring: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is seen where a stack changes while it is read."""
    layout = thread_states.LAYOUTS[3, 10]
    read: list[int] = []

    def at(reader: object, address: int) -> bytes:
        read.append(address)
        frame = bytearray(deep_stacks._FRAME_BYTES)
        struct.pack_into("<Q", frame, layout.previous, address % ring + 1)
        return bytes(frame)

    monkeypatch.setattr(deep_stacks._Reader, "_at", at)
    memory = Memory(os.getpid())
    interpreter = Interpreter((3, 10), "3.10", ("", 0), 0, 0, 0)
    reader = deep_stacks._Reader(memory, interpreter, layout, os.getpid(), time.monotonic() + 60)
    state = bytearray(4096)
    struct.pack_into("<Q", state, layout.frame[0], 1)
    with pytest.raises(thread_states.Changed):
        reader._frames(bytes(state))
    assert len(read) < 4 * ring + 4
