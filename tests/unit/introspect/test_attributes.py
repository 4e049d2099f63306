"""What an object of another process refers to, in every installed interpreter: nothing of its neighbours."""

from __future__ import annotations

import pytest

from hangdoc.introspect.attributes import levels
from hangdoc.introspect.interpreter import Interpreter, find
from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.objects import Objects
from tests.support.probe_targets import every_python, started


def interpreter(memory: Memory) -> Interpreter:
    found = find(memory)
    assert found is not None
    return found


KINDS = {  # what each of the program's objects refers to
    "plain": ["int", "Token"],
    "slotted": ["Token"],
    "dict": ["int", "Token", "int"],
    "list": ["Token", "Token"],
    "nested": ["int", "Slotted"],
}


@every_python
def test_what_an_object_refers_to_and_nothing_of_its_neighbours(python: str) -> None:
    with started("reach_program.py", python=python) as program:
        memory = Memory(program.pid)
        for way, (address, innermost) in program.said.items():
            own, near, further = levels(memory, interpreter(memory), address, 2)
            kinds = [kind.name for kind, _ in Objects(memory).heads(near).values()]
            assert own == [address]
            assert [kind for kind in kinds if kind != "dict"] == KINDS[way]  # in 3.10, the body leads to `__dict__`
            assert innermost in (further if way == "nested" else near)


def test_an_address_of_nothing_leads_nowhere() -> None:
    with started("reach_program.py") as program:
        memory = Memory(program.pid)
        assert list(levels(memory, interpreter(memory), 0x1000, 2)) == [[0x1000], [], []]


def test_an_ended_process_is_unreadable() -> None:
    with started("reach_program.py") as program:
        memory = Memory(program.pid)
        known, (address, _) = interpreter(memory), program.said["dict"]
    with pytest.raises(Unreadable):
        list(levels(memory, known, address, 1))
