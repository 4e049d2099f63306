"""Frozen dataclasses that are quick to make: of some there are tens of thousands in one judgement.

`@fast_dataclass(frozen=True, slots=True)` is `dataclass` to the type checker, which sees to it that nothing writes to a field.
At runtime nothing guards them: a frozen dataclass makes a call for each of its fields (57 ns each in CPython 3.11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as fast_dataclass
else:
    from dataclasses import dataclass

    def fast_dataclass(*, frozen: bool, slots: bool):
        """A dataclass with the same equality and hash, which is not guarded."""
        return dataclass(slots=slots, unsafe_hash=frozen)


__all__ = ["fast_dataclass"]
