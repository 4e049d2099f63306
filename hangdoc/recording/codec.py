"""Converts records to JSON values and back, driven by the type hints of the dataclasses.

Fields equal to their default are not written, missing fields get their default, and unknown fields are ignored, so old
and new versions of a record read each other. Input is untrusted: any fault raises `BadRecord`.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar

from hangdoc.evidence import RankEvidence, Snapshot

T = TypeVar("T")
Decoder = Callable[[Any], Any]

_SCALARS = frozenset({str, int, float, bool, type(None)})


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


# --- encoding -------------------------------------------------------------------------------------


def encode(value: Any) -> Any:
    """A record, or a tuple, mapping or set of records, as a JSON value. Fields at their default are left out."""
    kind: Any = type(value)
    if kind in _SCALARS:
        return value
    if kind is tuple or kind is list:
        return [item if type(item) in _SCALARS else encode(item) for item in value]
    if is_dataclass(value):
        written = {}
        for name, default in _defaults(kind):
            item = getattr(value, name)
            if item is not default and item != default:
                written[name] = item if type(item) in _SCALARS else encode(item)
        return written
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(f"{kind.__name__} cannot be recorded")


@cache
def _defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, _default(field)) for field in fields(kind))


def _default(field: Field[Any]) -> Any:
    """The value that is not written: the field's default, or None without one."""
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else None


# --- decoding -------------------------------------------------------------------------------------


def decode(kind: type[T], value: Any) -> T:
    """The record of type `kind` that `encode` wrote. Raises BadRecord."""
    hint: Any = kind
    try:
        return typing.cast(T, _decoder(hint)(value))
    except RecursionError:
        raise BadRecord(f"{kind.__name__}: nested too deeply") from None


def decode_snapshot(value: Any, known: Registry) -> Snapshot:
    """The snapshot that `encode` wrote. Records of unknown probes stay dictionaries. Raises BadRecord."""
    if not isinstance(value, dict):
        raise BadRecord(f"Snapshot: {_name(value)} instead of a record")
    ranks = value.get("ranks", [])
    if not isinstance(ranks, list) or not all(isinstance(rank, dict) for rank in ranks):
        raise BadRecord("Snapshot.ranks: not a list of records")
    shot = decode(Snapshot, {**value, "ranks": [], "records": {}})
    return Snapshot(
        **{
            **{field.name: getattr(shot, field.name) for field in fields(shot)},
            "ranks": tuple(_rank(rank, known.rank) for rank in ranks),
            "records": _records(value.get("records", {}), known.host),
        }
    )


def _rank(value: dict[str, Any], kinds: Mapping[str, type]) -> RankEvidence:
    rank = decode(RankEvidence, {**value, "records": {}})
    return replace(rank, records=_records(value.get("records", {}), kinds))


def _records(value: Any, kinds: Mapping[str, type]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRecord("records: not a mapping")
    return {name: decode(kinds[name], record) if name in kinds else record for name, record in value.items()}


@cache
def _decoder(hint: Any) -> Decoder:
    """A function from JSON to the type `hint`. Raises TypeError for a type that records must not use."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        return _anything
    if hint in _SCALARS:
        return _scalar(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return _dataclass(hint)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments)
    if origin is tuple and len(arguments) == 2 and arguments[1] is ...:
        return _sequence(tuple, _decoder(arguments[0]))
    if origin is tuple:
        return _fixed(tuple(_decoder(argument) for argument in arguments))
    if origin is frozenset:
        return _sequence(frozenset, _decoder(arguments[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(_whole if arguments[0] is int else _decoder(arguments[0]), _decoder(arguments[1]))
    raise TypeError(f"a record may not have a field of type {hint}")


def _dataclass(kind: type) -> Decoder:
    plan: dict[str, tuple[Decoder, Any]] = {}  # filled on first use, because a record may contain its own type

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise BadRecord(f"{kind.__name__}: {_name(value)} instead of a record")
        if not plan:
            hints = typing.get_type_hints(kind)
            plan.update({field.name: (_decoder(hints[field.name]), _absent(field, hints)) for field in fields(kind)})
        given = {}
        for name, (decoder, absent) in plan.items():
            item = value.get(name, plan)  # `plan` as the marker for a missing field
            if item is not plan:
                try:
                    given[name] = decoder(item)
                except BadRecord as error:
                    raise BadRecord(f"{kind.__name__}.{name}: {error}") from None
            elif absent is MISSING:
                raise BadRecord(f"{kind.__name__}.{name}: missing")
            elif absent is None:
                given[name] = None
        return kind(**given)

    return read


def _absent(field: Field[Any], hints: Mapping[str, Any]) -> Any:
    """What to do if a field is missing. MISSING: refuse; None: set None; other: use the default."""
    if field.default is not MISSING or field.default_factory is not MISSING:
        return True
    return None if type(None) in typing.get_args(hints[field.name]) else MISSING


def _scalar(kind: type) -> Decoder:
    accepted = (float, int) if kind is float else (kind,)

    def read(value: Any) -> Any:
        if type(value) not in accepted:
            raise BadRecord(f"{_name(value)} instead of {kind.__name__}")
        return value

    return read


def _union(arguments: tuple[Any, ...]) -> Decoder:
    decoders = tuple(_decoder(argument) for argument in arguments if argument is not type(None))
    nullable = type(None) in arguments

    def read(value: Any) -> Any:
        if value is None and nullable:
            return None
        for decoder in decoders[:-1]:
            try:
                return decoder(value)
            except BadRecord:
                continue
        return decoders[-1](value)

    return read


def _sequence(build: Callable[[Any], Any], item: Decoder) -> Decoder:
    def read(value: Any) -> Any:
        if type(value) is not list:
            raise BadRecord(f"{_name(value)} instead of a list")
        return build([item(member) for member in value])

    return read


def _fixed(items: tuple[Decoder, ...]) -> Decoder:
    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(items):
            raise BadRecord(f"{_name(value)} instead of a list of {len(items)}")
        return tuple(item(member) for item, member in zip(items, value, strict=True))

    return read


def _mapping(key: Decoder, item: Decoder) -> Decoder:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise BadRecord(f"{_name(value)} instead of a mapping")
        return {key(name): item(member) for name, member in value.items()}

    return read


def _whole(value: Any) -> int:
    """An integer key, which JSON turned into text."""
    try:
        return int(value)
    except (TypeError, ValueError):
        raise BadRecord(f"{_name(value)} instead of a whole number") from None


def _anything(value: Any) -> Any:
    return value


def _name(value: Any) -> str:
    return {dict: "a mapping", list: "a list", type(None): "null"}.get(type(value), type(value).__name__)
