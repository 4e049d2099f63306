"""Converts records to JSON values and back.

Fields at their default are not written, missing fields get their default, and unknown fields are ignored, so old and
new versions of a record read each other. Input is untrusted: any fault raises `BadRecord`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from hangdoc.evidence import Snapshot

T = TypeVar("T")


class BadRecord(ValueError):
    """Malformed input; the message has the place and the reason."""


@dataclass(frozen=True, slots=True)
class Registry:
    """Record types by probe name, for ranks and for hosts."""

    rank: Mapping[str, type]
    host: Mapping[str, type]


def registry() -> Registry:
    """The record types of all probes."""
    import probes

    found = probes.load()
    return Registry(
        {probe.name: probe.record for probe in found if probe.scope == "rank"},
        {probe.name: probe.record for probe in found if probe.scope == "host"},
    )


def encode(value: Any) -> Any:
    """A record, or a tuple, mapping or set of records, as a JSON value. Raises TypeError for any other object."""
    return msgspec.to_builtins(value, str_keys=True)


def decode(kind: type[T], value: Any) -> T:
    """The record of type `kind` that `encode` wrote. Raises BadRecord."""
    try:
        try:
            return msgspec.convert(value, kind, str_keys=True)
        except msgspec.ValidationError:
            info: msgspec.inspect.Type = _type_info(kind)  # type: ignore[arg-type]  # a type is hashable
            return msgspec.convert(_with_nulls(info, value), kind, str_keys=True)
    except (msgspec.ValidationError, UnicodeError) as error:  # UnicodeError: half of a surrogate pair in a key
        raise BadRecord(f"{kind.__name__}: {error}") from None
    except SystemError:  # msgspec before 0.21 raises it for an integer beyond every float
        raise BadRecord(f"{kind.__name__}: a number is out of range") from None
    except RecursionError:
        raise BadRecord(f"{kind.__name__}: nested too deeply") from None


def decode_snapshot(value: Any, known: Registry) -> Snapshot:
    """The snapshot that `encode` wrote. Records of unknown probes stay dictionaries. Raises BadRecord."""
    shot = decode(Snapshot, value)
    ranks = tuple([replace(rank, records=_records(rank.records, known.rank)) for rank in shot.ranks])
    return replace(shot, ranks=ranks, records=_records(shot.records, known.host))


def _records(values: Mapping[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    return {name: decode(kinds[name], value) if name in kinds else value for name, value in values.items()}


@cache
def _type_info(kind: type) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(kind)


def _with_nulls(info: msgspec.inspect.Type, value: Any) -> Any:
    """`value` with null in place of missing fields without a default: hangdoc 0.1 wrote no null."""
    match info, value:
        case msgspec.inspect.UnionType(), _:
            for member in info.types:
                value = _with_nulls(member, value)
            return value
        case msgspec.inspect.StructType() | msgspec.inspect.DataclassType(), dict():
            absent = {field.name: None for field in info.fields if field.required and _is_nullable(field.type)}
            types = {field.name: field.type for field in info.fields}
            return absent | {name: _with_nulls(types[name], item) for name, item in value.items() if name in types}
        case msgspec.inspect.DictType(), dict():
            return {key: _with_nulls(info.value_type, item) for key, item in value.items()}
        case msgspec.inspect.VarTupleType(), list():
            return [_with_nulls(info.item_type, item) for item in value]
        case msgspec.inspect.TupleType(), list() if len(value) == len(info.item_types):
            return [_with_nulls(member, item) for member, item in zip(info.item_types, value, strict=True)]
    return value


def _is_nullable(info: msgspec.inspect.Type) -> bool:
    return isinstance(info, msgspec.inspect.UnionType) and info.includes_none
