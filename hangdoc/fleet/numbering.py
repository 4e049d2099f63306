"""Things that are named again and again, as small numbers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Thing = TypeVar("Thing", bound=Hashable)


@dataclass(slots=True)
class Numbers(Generic[Thing]):
    """Numbers of things, in the order in which they were first named; no number is given twice."""

    _known: dict[Thing, list[int]] = field(default_factory=dict)  # its number, the answer that named it last
    _next: int = 0

    def __contains__(self, thing: Thing) -> bool:
        return thing in self._known

    def __len__(self) -> int:
        return len(self._known)

    def of(self, thing: Thing, answer: int) -> int:
        """That of a thing which this answer names."""
        known = self._known.get(thing)
        if known is None:
            self._next += 1
            known = self._known[thing] = [self._next, answer]
        known[1] = answer
        return known[0]

    def forget(self, answer: int) -> None:
        """Things that no answer since this one has named."""
        for thing in [thing for thing, (_, last) in self._known.items() if last <= answer]:
            del self._known[thing]
