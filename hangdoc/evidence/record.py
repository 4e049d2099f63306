"""Records: the base class of all evidence."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import msgspec


class Record(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A frozen record, written without the fields at their default; `msgspec.structs.replace` copies it.

    The garbage collector skips records, so a record must never contain itself. Name `frozen=True` in each subclass
    too: type checkers do not inherit it.
    """


@cache
def field_names(kind: Any) -> tuple[str, ...]:
    """The fields of a record or dataclass; none for any other type."""
    if issubclass(kind, Record):
        return tuple(kind.__struct_fields__)
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
