"""Equal parts of two records kept once: most of what a look sees of a rank is what the look before saw."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any


def share(new: Any, old: Any) -> Any:
    """What equals `new`, made of the parts of `old` wherever they are equal: tuples and dataclasses are taken apart."""
    if type(new) is not type(old):
        return new
    if new == old:
        return old
    if isinstance(new, tuple):
        # Aligned at the end: the outer frames of two stacks agree, however deep the inner ones go.
        apart = len(new) - len(old)
        return tuple(share(part, old[i - apart] if i >= apart else None) for i, part in enumerate(new))
    if is_dataclass(new):
        kind: Any = type(new)
        return kind(*(share(getattr(new, field.name), getattr(old, field.name)) for field in fields(new)))
    return new
