"""Exceptions that the threads of a program handle, read from its memory."""

from __future__ import annotations

import random
import struct

from hangdoc.evidence.stacks import Exceptions, HandledException
from hangdoc.introspect.exceptions import handled_exceptions
from hangdoc.introspect.interpreter import find
from hangdoc.introspect.memory import Memory, Unreadable
from probes import Tier
from probes.exceptions import ExceptionsProbe
from tests.support.paths import PROGRAMS
from tests.support.probe_targets import Program, every_python, started
from tests.unit.introspect.test_module_globals import Garbled

LINES = [line.strip() for line in (PROGRAMS / "exceptions_program.py").read_text().splitlines()]
RAISED = (
    ("main", LINES.index("train()") + 1),
    ("train", LINES.index("read(row)") + 1),
    ("read", LINES.index('raise BrokenRow("row 3000 has no value", 7, None)') + 1),
)


def observed(program: Program) -> tuple[HandledException, ...]:
    seen = ExceptionsProbe().observe(program.request(Tier.EXAMINE))
    assert seen.unseen == ()
    record = seen.by_pid[program.pid]
    assert isinstance(record, Exceptions)
    return record.handled


@every_python
def test_exceptions_of_all_threads(python: str) -> None:
    with started("exceptions_program.py", python=python) as program:
        main, other = observed(program)
    assert (main.tid, main.type, main.text) == (program.pid, "BrokenRow", "row 3000 has no value, 7, None")
    assert tuple((frame.function, frame.line) for frame in main.frames) == RAISED
    assert {frame.short for frame in main.frames} == {"exceptions_program.py"}
    assert (other.type, other.text, [frame.function for frame in other.frames]) == ("KeyError", "missing", ["look_up"])
    assert other.tid is None or other.tid in program.said


@every_python
def test_an_exception_that_was_handled_is_gone(python: str) -> None:
    code = "import time\ntry: {}[1]\nexcept KeyError: pass\nprint(1, flush=True)\ntime.sleep(99)"
    with started("-c", code, python=python) as program:
        assert observed(program) == ()


def test_a_process_that_has_ended_is_no_error() -> None:
    with started("-c", "print(1, flush=True)") as program:
        program.process.wait()
        assert ExceptionsProbe().observe(program.request(Tier.EXAMINE)).by_pid == {}


def test_garbage_is_no_error() -> None:
    """Memory that changes under the reader."""
    rng = random.Random(7)
    with started("exceptions_program.py") as program:
        interpreter = find(Memory(program.pid))
        assert interpreter is not None
        for share in (0.3, 0.03, 0.003) * 20:
            try:
                found = handled_exceptions(Garbled(program.pid, rng, share), interpreter, program.pid)
            except (Unreadable, struct.error):
                continue
            assert len(found) <= 64
            assert all(len(one.frames) <= 100 and len(one.text) <= 120 for one in found)
