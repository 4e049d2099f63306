"""References of objects, in every installed interpreter."""

from __future__ import annotations

import pytest

from hangdoc.introspect.memory import Memory, Unreadable
from hangdoc.introspect.objects import Objects, references, within
from tests.support.probe_targets import every_python, started


@every_python
def test_each_kind_of_attribute_is_found(python: str) -> None:
    with started("reach_program.py", python=python) as program:
        memory = Memory(program.pid)
        for way, (address, attribute) in program.said.items():
            if way != "nested":
                kind, _ = Objects(memory).heads([address])[address]
                assert attribute in references(memory, address, kind), way


@every_python
def test_an_attribute_of_an_attribute_is_two_hops_away(python: str) -> None:
    with started("reach_program.py", python=python) as program:
        address, innermost = program.said["nested"]
        levels = list(within(Memory(program.pid), address, 2))
        assert levels[0] == [address]
        assert any(innermost in level for level in levels[1:])
        assert list(within(Memory(program.pid), address, 0)) == [[address]]


def test_an_address_of_nothing_leads_nowhere() -> None:
    with started("reach_program.py") as program:
        assert list(within(Memory(program.pid), 0x1000, 2)) == [[0x1000], [], []]


def test_an_ended_process_is_unreadable() -> None:
    with started("reach_program.py") as program:
        address, _ = program.said["dict"]
    with pytest.raises(Unreadable):
        list(within(Memory(program.pid), address, 1))
