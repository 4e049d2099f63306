"""Masks secrets in records, in one place, before a record is judged, recorded, sent or shown.

Three callers: `Sampler.round` for live evidence; `assemble.snapshots` for evidence from files, including recordings,
because an older version may have written them unmasked; and `incident` for everything that a report shows. The mask
knows the structure of records: command lines, environments, variables and source code each have their own rules
(`hangdoc/redaction/text.py`). Names of groups and jobs keep their hashes, because analysis compares them. Equal texts
are masked equally.

Our own patterns come first: detect-secrets 1.5 (2024) has 46 for 23 services, and none for command lines or source
code. Its detectors are a second opinion on random-looking words (`hangdoc/redaction/detectors.py`). Kingfisher's SDK
1.5 has 488 rules, takes 3 s and 55 MB to compile them, and ships 36 MB of native code for glibc only: too much for an
agent on every host. CredSweeper 1.19 needs 32 packages, including onnxruntime.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from operator import is_
from typing import Any, TypeVar

from msgspec import structs

from hangdoc.evidence import (
    Branch,
    ChildProcess,
    FlightRecorder,
    Loop,
    Place,
    Process,
    ProcessGroup,
    RecordedCall,
    Snapshot,
    Source,
    Target,
    Unseen,
    Variable,
)
from hangdoc.evidence.logs import LogEvent
from hangdoc.evidence.pieces import Piece
from hangdoc.evidence.record import Record, field_names
from hangdoc.redaction.text import HIDDEN, LONGEST, redact, redact_identifier, redact_source, redact_text, redact_words

__all__ = ["LONGEST", "Mask", "hidden", "mask_text", "masked"]

T = TypeVar("T")
_NUMBERS = (int, float, bool, type(None))
_LONG = 64  # parts of a tuple that is remembered
_SHORTEST = 6  # characters; a shorter text is not masked


def masked(record: T) -> T:
    """`record`, a tree of records, dataclasses, tuples and mappings, with the secrets in its texts hidden.

    Parts without secrets stay the same objects.
    """
    return Mask().of(record)


def mask_text(text: str) -> str:
    """`masked` for a text."""
    return redact_text(text)


def hidden(record: object) -> int:
    """Number of texts in a record that contain a masked secret."""
    if isinstance(record, str):
        return HIDDEN in record
    return sum(hidden(part) for part in _parts(record))


class Mask:
    """Masks records. Reuse it in successive rounds: unchanged records are not examined again."""

    def __init__(self) -> None:
        # id of a record -> the record itself (so that the id is not reused) and its masked form
        self._known: dict[int, tuple[object, Any]] = {}
        self._before: dict[int, tuple[object, Any]] = {}

    def again(self) -> None:
        """Start a round; forget records that the last round did not contain."""
        self._before, self._known = self._known, {}

    def of(self, value: T) -> T:
        """The value with its secrets masked."""
        made: T = self._any(value)
        return made

    def _any(self, value: Any) -> Any:
        kind: Any = type(value)
        if kind is str:
            return _same(value, redact_text(value)) if len(value) >= _SHORTEST else value
        if kind in _NUMBERS:
            return value
        if isinstance(value, tuple):
            return self._tuple(value)
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, list):
            return [self._any(part) for part in value]
        if not field_names(kind):
            return value
        known = self._known.get(id(value)) or self._before.get(id(value))
        if known is None:
            known = value, self._record(value)
        if _holds_more(kind):
            self._known[id(value)] = known
        return known[1]

    def _tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """Long ones are remembered, and their parts: dumps of many ranks share most of their thousand calls."""
        seen = self._known.get
        if len(value) >= _LONG and (known := seen(id(value))):
            shown: tuple[Any, ...] = known[1]
            return shown
        parts = tuple([found[1] if (found := seen(id(part))) else self._any(part) for part in value])
        shown = value if all(map(is_, parts, value)) else parts
        if len(value) >= _LONG:
            self._known[id(value)] = value, shown
        return shown

    def _mapping(self, value: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Masks keys as plain text, and string values by their key and content."""
        made = {}
        for name, part in value.items():
            shown = _same(name, redact_text(name)) if type(name) is str else name
            made[shown] = _same(part, redact(str(name), part)) if type(part) is str else self._any(part)
        same = all(map(is_, made, value)) and all(map(is_, made.values(), value.values()))
        return value if same and len(made) == len(value) else made

    def _record(self, value: Any) -> Any:
        special = _SPECIAL.get(type(value), {})
        kind: Any = type(value)
        changed = {}
        for name in _texts(kind):
            old = getattr(value, name)
            new = special[name](old) if name in special else self._any(old)
            if new is not old and new != old:
                changed[name] = new
        if type(value) is Variable:
            changed = _variable(value)
        if not changed:
            return value
        return structs.replace(value, **changed) if isinstance(value, Record) else replace(value, **changed)


def _variable(value: Variable) -> dict[str, Any]:
    text = redact(value.name, value.text)
    number = None if text == HIDDEN else value.number  # the probe may already have masked the text
    return {} if text == value.text and number == value.number else {"text": text, "number": number}


def _places(places: Mapping[str, Place]) -> Mapping[str, Place]:
    """Keys are "file:line"; the file is masked as in `Frame.file`, so both still match."""
    mask = Mask()
    made = {_place_name(name): mask.of(place) for name, place in places.items()}
    return places if all(map(is_, made.values(), places.values())) and list(made) == list(places) else made


def _place_name(name: str) -> str:
    file, colon, line = name.rpartition(":")
    return redact_text(file) + colon + line


def _sources(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple([redact_source(text) for text in texts])


def _identifiers(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return {redact_identifier(name): redact_text(part) if type(part) is str else part for name, part in value.items()}


def _fields(value: Mapping[str, str]) -> Mapping[str, str]:
    """Fields of a log event; the name of a process group is an identifier."""
    return {name: (redact_identifier(v) if name.startswith("group") else redact(name, v)) for name, v in value.items()}


def _kept(value: Any) -> Any:
    return value


# Fields that are not plain text. Names of groups and jobs may be hashes that analysis compares.
_SPECIAL: Mapping[type, Mapping[str, Callable[[Any], Any]]] = {
    Process: {"command": redact_words},
    ChildProcess: {"command": redact_words},
    Place: {"text": redact_source, "calls": _sources, "around": _sources},
    Loop: {"header": redact_source, "counters": _kept},
    Branch: {"test": redact_source},
    Source: {"places": _places},
    Variable: {"name": _kept, "text": _kept},
    ProcessGroup: {"name": redact_identifier},
    RecordedCall: {"group": redact_identifier},
    FlightRecorder: {"enqueued": _identifiers, "completed": _identifiers, "labels": _identifiers},
    LogEvent: {"fields": _fields},
    Target: {"job": redact_identifier, "host": redact_identifier},
    Unseen: {"host": lambda host: host and redact_identifier(host)},
    Piece: {"job": lambda job: job and redact_identifier(job), "probe": _kept},
    Snapshot: {"time": _kept, "host": redact_identifier},
}


@cache
def _texts(kind: Any) -> tuple[str, ...]:
    """The fields of a record or dataclass that may contain text."""
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, TypeError):  # a class defined inside a function, as in tests
        return field_names(kind)
    return tuple(name for name in field_names(kind) if not set(_leaves(hints[name])) <= set(_NUMBERS))


@cache
def _holds_more(kind: Any) -> bool:
    """True if a record or dataclass contains records or collections, so that remembering it pays off."""
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, TypeError):
        return True
    leaves = {leaf for name in field_names(kind) for leaf in _leaves(hints[name])}
    plain = {str, *_NUMBERS}
    return not leaves <= plain or any(typing.get_origin(hint) in (tuple, Mapping) for hint in hints.values())


def _leaves(hint: Any) -> list[Any]:
    arguments = [argument for argument in typing.get_args(hint) if argument is not ...]
    return [leaf for argument in arguments for leaf in _leaves(argument)] if arguments else [hint]


def _same(old: str, new: str) -> str:
    return old if new == old else new


def _parts(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return [*value, *value.values()]
    kind: Any = type(value)
    return [getattr(value, name) for name in field_names(kind)]
