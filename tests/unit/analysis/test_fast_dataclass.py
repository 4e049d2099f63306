"""`fast_dataclass` behaves as a frozen dataclass, apart from the guard on writes."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest

from hangdoc.analysis.fast_dataclass import fast_dataclass


@fast_dataclass(frozen=True, slots=True)
class Fast:
    name: str
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Frozen:
    name: str
    sizes: tuple[int, ...] = ()


@pytest.mark.parametrize("of", [Fast, Frozen])
def test_same_as_a_frozen_dataclass(of: type[Fast] | type[Frozen]) -> None:
    one = of("a", (1, 2))
    assert [field.name for field in fields(one)] == ["name", "sizes"]
    assert {one, of("a", (1, 2)), of("a")} == {one, of("a")}  # equal by their fields, and hashed by them
    assert replace(one, sizes=()) == of("a")
    assert repr(one) == f"{of.__name__}(name='a', sizes=(1, 2))"
    assert not hasattr(one, "__dict__")
