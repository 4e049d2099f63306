"""Equal parts of two records kept once: most of what a look sees of a rank is what the look before saw."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")


def share(new: T, old: Any) -> T:
    """A record equal to `new`, made of the parts of `old` wherever they are equal."""
    if type(new) is not type(old):
        return new
    if new == old:
        return old  # type: ignore[no-any-return]
    if isinstance(new, tuple):
        # Aligned at the end: the outer frames of two stacks agree, however deep the inner ones go.
        apart = len(new) - len(old)
        parts = (share(part, old[i - apart] if i >= apart else None) for i, part in enumerate(new))
        return tuple(parts)  # type: ignore[return-value]
    if is_dataclass(new):
        return type(new)(*(share(getattr(new, f.name), getattr(old, f.name)) for f in fields(new)))
    return new
