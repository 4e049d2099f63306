"""Equal parts of two records kept once: most of what a look sees of a rank is what the look before saw."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any


def share(new: Any, old: Any) -> Any:
    """What equals `new`, made of the parts of `old` wherever they are equal: tuples and dataclasses are taken apart."""
    if new is old or type(new) is not type(old):
        return new
    if new == old:
        return old
    if isinstance(new, tuple):
        # Aligned at the end: the outer frames of two stacks agree, however deep the inner ones go.
        apart = len(new) - len(old)
        return tuple(share(part, old[i - apart] if i >= apart else None) for i, part in enumerate(new))
    if is_dataclass(new):
        kind: Any = type(new)
        values = _values(kind)
        return kind(*map(share, values(new)[:-1], values(old)[:-1]))
    return new


@cache
def _values(kind: type) -> attrgetter[Any]:
    """Reads all fields of a dataclass at once, as a tuple."""
    names = [field.name for field in fields(kind)]
    return attrgetter(*names, *names[:1])  # of one name alone it would not be a tuple
