"""Equal parts of two records kept once: most of what a look sees of a rank is what the look before saw."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any

from hangdoc.evidence import Variable

PLAIN = frozenset({type(None), bool, int, float, str})


def share(new: Any, old: Any) -> Any:
    """What equals `new`, made of the parts of `old` wherever they are equal: tuples and dataclasses are taken apart."""
    kind = new.__class__
    if new is old or kind is not old.__class__:
        return new
    if new == old:
        return old
    if kind is tuple:
        # Aligned at the end: the outer frames of two stacks agree, however deep the inner ones go.
        apart = len(new) - len(old)
        pairs = zip(new[max(0, apart) :], old[max(0, -apart) :], strict=True)
        return (*new[: max(0, apart)], *[one if one is two else share(one, two) for one, two in pairs])
    values = _values(kind)
    if values is None or kind is Variable:  # of which many ranks may have the very same
        return new
    parts = [
        (two if one == two and type(one) is type(two) else one) if type(one) in PLAIN else share(one, two)
        for one, two in zip(values(new), values(old), strict=True)
    ]
    return kind(*parts[:-1])


@cache
def _values(kind: Any) -> attrgetter[Any] | None:
    """Reads all fields of a dataclass at once, as a tuple; the first comes again at the end."""
    if not is_dataclass(kind):
        return None
    names = [field.name for field in fields(kind)]
    return attrgetter(*names, *names[:1])  # of one name alone it would not be a tuple
